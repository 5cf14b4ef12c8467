"""One transport's configuration as the loader hands it over, and how its values and secrets are read.

A low-level leaf: the loader constructs it at every idle tick, so what costs an import is imported where it is used.
Every complaint is a `ConfigError` that names `transports.NAME.KEY`; no secret ever stands in one, nor in a `repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from notifyctl.errors import ConfigError
from notifyctl.model import Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

SECRET_FORMS = ("_file", "_command", "_env", "")
_COMMAND_PATIENCE = 20.0  # seconds a `x_command` may take


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """`[transports.NAME]`: the keys common to all kinds as fields, the kind's own under `options` as they stand.

    `base` is the folder of the configuration file, where relative paths start. Durations are seconds. `sender` is
    the key `from`. `settle_delay` and `status_rates` None: as the transport declares them.
    `sign` is the ledger's signature for return paths; None where the transport was opened for nothing that needs it.
    """

    name: str
    kind: str
    options: Mapping[str, object] = field(repr=False)
    base: Path = field(repr=False)
    deadline: float = 60.0
    drain: float = 10.0
    cooldown: float = 30.0
    settle_delay: float | None = None
    sender: str = field(default="", repr=False)
    reply_to: str | None = field(default=None, repr=False)
    rates: tuple[Rate, ...] = ()
    status_rates: tuple[Rate, ...] | None = None
    poll_every: float = 50.0
    sign: Callable[[str], str] | None = field(default=None, repr=False)

    def error(self, key: str, problem: str, hint: str = "") -> ConfigError:
        """A complaint about one key, to be raised by the caller."""
        return ConfigError(f"transports.{self.name}.{key} {problem}", hint=hint)

    def text(self, key: str, default: str = "") -> str:
        """An option that is a text."""
        value = self.options.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a text in quotes")
        return value

    def whole(self, key: str, default: int, lowest: int, highest: int) -> int:
        """An option that is a whole number from `lowest` to `highest`."""
        value = self.options.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise self.error(key, f"must be a whole number from {lowest} to {highest}")
        return value

    def path(self, key: str) -> Path | None:
        """An option that is a path, relative to the configuration file; None where it is not given."""
        value = self.text(key)
        return self.base / value if value else None

    def secret(self, key: str) -> str | None:
        """The secret given as `KEY_file`, `KEY_command`, `KEY_env` or `KEY`; None where none of them is given.

        One line end at the end of a file or of a command's output is not part of the secret.
        """
        given = [key + form for form in SECRET_FORMS if key + form in self.options]
        if len(given) > 1:
            raise self.error(given[0], f"and {given[1]} are both given", "keep one of them")
        if not given:
            return None
        where = given[0]
        if where.endswith("_command"):
            value = self._from_command(where)
        elif where.endswith("_file"):
            value = self._from_file(where)
        elif where.endswith("_env"):
            value = self._from_environment(where)
        else:
            value = self.text(where)
        value = value.removesuffix("\n").removesuffix("\r")
        if not value:
            raise self.error(where, "gives an empty secret")
        if "\n" in value or "\0" in value:
            raise self.error(where, "gives more than one line", "a secret is one line")
        return value

    def _from_environment(self, where: str) -> str:
        import os

        variable = self.text(where)
        if variable not in os.environ:
            raise self.error(
                where,
                f"names the environment variable {variable}, which is not set",
                "cron passes no variables of your shell: set it in the crontab, or use the _file or _command form",
            )
        return os.environ[variable]

    def _from_file(self, where: str) -> str:
        import logging
        import stat

        path = self.base / self.text(where)
        try:
            mode = path.stat().st_mode
            value = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise self.error(where, f"names {path}, which is not UTF-8 text") from None
        except (OSError, ValueError) as problem:
            said = getattr(problem, "strerror", None) or "not a usable path"
            raise self.error(where, f"names {path}, which cannot be read: {said}") from None
        if mode & stat.S_IROTH:
            logging.getLogger(__name__).warning(
                "transports.%s.%s names a file that every user of this host can read: chmod o-r %s",
                self.name,
                where,
                path,
            )
        return value

    def _from_command(self, where: str) -> str:
        import shlex
        import subprocess

        command = self.options[where]
        try:
            words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]  # type: ignore[attr-defined]
            done = subprocess.run(  # noqa: S603 - the administrator's own command, run without a shell
                words,
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                capture_output=True,  # what it says on stderr may hold the secret: it is not shown
                timeout=_COMMAND_PATIENCE,
                check=False,
            )
        except (ValueError, TypeError, IndexError):
            raise self.error(
                where, "is not a command", "give a text or a list of words; no shell is involved"
            ) from None
        except subprocess.TimeoutExpired:
            raise self.error(where, f"did not finish within {_COMMAND_PATIENCE:g} s") from None
        except OSError as problem:
            raise self.error(where, f"cannot be run: {problem.strerror}", "no shell is involved") from None
        if done.returncode:
            raise self.error(where, f"failed with exit status {done.returncode}", "run it by hand to see why")
        try:
            return done.stdout.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(where, "printed something that is not UTF-8 text") from None
