"""Programs of other people that judge what is sent: DKIM verifiers, mail parsers, a validating server.

`.ci/judges` installs them; a test that needs one that is absent is skipped with the reason. Each is one process over a
folder of messages, so that starting it costs once.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CACHE = Path(
    os.environ.get("NOTIFYCTL_JUDGES")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notifyctl-judges"
)
PATIENT = 120.0

Verdicts = dict[str, list[bool | None]]  # file → per signature, from the top: good, bad, or None: unknown algorithm


def _run(command: list[str], given: str = "", **environment: str) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=PATIENT, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]}: {done.stderr[-2000:]}"
    return done.stdout


def _node(script: str, *arguments: str) -> Any:
    if not shutil.which("node") or not (CACHE / "node_modules").is_dir():
        pytest.skip("the npm judges are not installed: run .ci/judges")
    return json.loads(_run(["node", str(HERE / script), *arguments], NODE_PATH=str(CACHE / "node_modules")))


def _perl(script: str, module: str, *arguments: str) -> Any:
    probe = ["perl", f"-M{module}", "-e1"]
    if not shutil.which("perl") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip(f"the judge {module} (Perl) is not installed: run .ci/judges")
    return json.loads(_run(["perl", str(HERE / script), *arguments]))


# -- DKIM: `records` are the TXT records of the DNS, by name -----------------------------------------------------------


def mailauth(folder: Path, records: Mapping[str, str]) -> Verdicts:
    """npm mailauth."""
    return dict(_node("mailauth.js", str(folder), json.dumps(records)))


def mail_dkim(folder: Path, records: Mapping[str, str]) -> Verdicts:
    """Perl Mail::DKIM; the version in Debian 12 knows no Ed25519."""
    return dict(_perl("mail_dkim.pl", "Mail::DKIM::Verifier", str(folder), json.dumps(records)))


def msgauth(folder: Path, records: Mapping[str, str]) -> Verdicts:
    """Go go-msgauth, built by `.ci/judges`."""
    if not (CACHE / "msgauth").exists():
        pytest.skip("the judge go-msgauth is not installed: run .ci/judges")
    return dict(json.loads(_run([str(CACHE / "msgauth"), str(folder), json.dumps(records)])))


def opendkim(folder: Path, records: Mapping[str, str]) -> Verdicts:
    """OpenDKIM's test mode. It says one word for a message, so that each message must carry one signature only."""
    program = shutil.which("opendkim", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if not program:
        pytest.skip("the judge opendkim is not installed: run .ci/judges")
    data = folder / "opendkim.dns"
    data.write_text("".join(f"{name} {text}\n" for name, text in records.items()))
    (folder / "opendkim.conf").write_text(f"Mode v\nTestDNSData file:{data}\nSyslog no\n")
    files = sorted(folder.glob("*.eml"))
    command = [program, "-x", str(folder / "opendkim.conf"), "-v", "-t", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT, check=False)
    said = {
        Path(line.partition(": verification")[0].removeprefix("opendkim: ")).name: line
        for line in (done.stdout + done.stderr).splitlines()
        if ": verification" in line
    }
    assert len(said) == len(files), f"opendkim judged {len(said)} of {len(files)}: {done.stderr[-1000:]}"
    return {name: ["succeeded" in line] for name, line in said.items()}


# -- mail parsers ------------------------------------------------------------------------------------------------------


def mailparser(folder: Path) -> dict[str, Any]:
    """npm mailparser: per file names (of header fields), subject, to, from, reply_to, text, html, files, headers."""
    return dict(_node("mailparser.js", str(folder)))


def email_mime(folder: Path) -> dict[str, Any]:
    """Perl Email::MIME: the same keys."""
    return dict(_perl("email_mime.pl", "Email::MIME", str(folder)))


# -- requests ---------------------------------------------------------------------------------------------------------


@contextmanager
def prism(description: Path) -> Iterator[str]:
    """Stoplight Prism, serving a provider's published description: its URL. A request that breaks the description gets
    422 (or 404), any other an answer that keeps it."""
    program = CACHE / "node_modules/.bin/prism"
    if not shutil.which("node") or not program.exists():
        pytest.skip("the npm judges are not installed: run .ci/judges")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["node", str(program.resolve()), "mock", "-h", "127.0.0.1", "-p", str(port), str(description)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = []
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                if "listening" in line:
                    break
            else:
                pytest.fail("Prism does not start: " + "".join(said[-5:]))
            threading.Thread(target=process.stdout.read, daemon=True).start()  # its log must not fill the pipe
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


VERIFIERS = (opendkim, mail_dkim, mailauth, msgauth)
PARSERS = (mailparser, email_mime)
