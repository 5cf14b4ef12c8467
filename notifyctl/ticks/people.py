"""What is said of recipients, one or many: read, validated, and written a page per commit. Safe to rerun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from notifyctl.compose import destinations
from notifyctl.config import Config
from notifyctl.errors import EXIT_DATA, EXIT_OK, InputError
from notifyctl.keys import Keys
from notifyctl.ledger import people
from notifyctl.ledger.database import Ledger, Tx
from notifyctl.ledger.people import Changed, Consent, Endpoint, Suppression
from notifyctl.model import FINGERPRINT_REASONS, Channel
from notifyctl.ticks.bulk import Row
from notifyctl.ticks.intents import identifier, refuse_unknown

T = TypeVar("T")

PAGE = 500  # rows per transaction
MAX_ERRORS = 100
REASONS = ("manual", "opted_out", "complained", "hard_bounce", "invalid_recipient")
_TRUE, _FALSE = (True, 1, "true", "1", "yes"), (False, 0, "false", "0", "no")


@dataclass(slots=True)
class Register:
    """One command about recipients; its counts grow page by page."""

    config: Config
    ledger: Ledger
    keys: Keys
    actor: str
    dry_run: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[dict[str, Any]] = field(default_factory=list)
    first_error: InputError | None = None  # for the one who said a single thing: the whole sentence

    def suppress(self, rows: Iterable[Row]) -> int:
        """Add suppressions; returns the exit code."""
        return self._paged(rows, self._suppression, self._suppress)

    def lift(self, recipient: str, channel: str, note: str) -> int:
        """Lift what is in force for a pair."""
        values = {"recipient": recipient, "channel": channel}
        pair = (identifier(values, "recipient"), _channel(values))
        self._write(1, partial(people.lift, pairs=[pair], actor=self.actor, note=note, dry_run=self.dry_run))
        return EXIT_OK

    def answer(self, rows: Iterable[Row]) -> int:
        """Record consent given or revoked."""
        return self._paged(rows, self._consent, people.answer)

    def register(self, recipient: str, addresses: Mapping[str, str]) -> set[str]:
        """Set a recipient's endpoints; returns the channels whose address is new."""
        who = identifier({"recipient": recipient}, "recipient")
        rows = [self._endpoint(who, channel, address) for channel, address in addresses.items()]
        changed = self._write(len(rows), partial(people.register, rows=rows, actor=self.actor, dry_run=self.dry_run))
        return {rows[position].channel.value for position in changed.positions}

    # -- pages --------------------------------------------------------------------------------------------------

    def _paged(self, rows: Iterable[Row], read: Callable[[Mapping[str, Any]], T], write: Callable[..., Changed]) -> int:
        source = iter(rows)
        while page := list(islice(source, PAGE)):
            found: list[T] = []
            for row in page:
                try:
                    if row.error:
                        raise row.error
                    found.append(read(row.values))
                except InputError as error:
                    self._reject(row.number, error)
            if found:
                self._write(len(found), partial(write, rows=found, actor=self.actor, dry_run=self.dry_run))
        return EXIT_DATA if self.counts["rejected"] else EXIT_OK

    def _write(self, count: int, work: Callable[[Tx], Changed]) -> Changed:
        changed = self.ledger.read(work) if self.dry_run else self.ledger.transact(work)
        self.counts["selected"] += count
        self.counts["changed"] += len(changed.positions)
        self.counts["unchanged"] += count - len(changed.positions)
        self.counts["settled"] += changed.settled
        return changed

    def _reject(self, row: int, error: InputError) -> None:
        self.counts["selected"] += 1
        self.counts["rejected"] += 1
        self.first_error = self.first_error or error
        if len(self.errors) < MAX_ERRORS:
            self.errors.append({"row": row, "reason": error.reason, "field": error.field})

    def document(self) -> dict[str, Any]:
        """The JSON of all these commands. `settled`: waiting deliveries that a "no" has suppressed."""
        names = ("selected", "changed", "unchanged", "rejected", "settled")
        return {"dry_run": self.dry_run, **{name: self.counts[name] for name in names}, "errors": self.errors}

    # -- rows ---------------------------------------------------------------------------------------------------

    def _suppression(self, values: Mapping[str, Any]) -> Suppression:
        """`reason` is one of the known codes, or a text: then it is `manual` and the text its note."""
        refuse_unknown(values, ("recipient", "channel", "reason"))
        reason = values.get("reason") or "manual"
        if not isinstance(reason, str) or not reason.isprintable() or len(reason) > 500:
            raise InputError("reason is not one line of text", reason="invalid", field="reason")
        code, note = (reason, "") if reason in REASONS else ("manual", reason)
        return Suppression(identifier(values, "recipient"), _channel(values), code, note)

    def _suppress(self, tx: Tx, rows: Sequence[Suppression], *, actor: str, dry_run: bool) -> Changed:
        """What is said of an address concerns the current one; where none is known, the whole channel."""
        pairs = [(r.recipient_id, r.channel) for r in rows if r.reason in FINGERPRINT_REASONS]
        known = people.current_addresses(tx, pairs) if pairs else {}
        rows = [
            replace(r, fingerprint=self._fingerprint(r.channel, known[r.recipient_id, r.channel]))
            if r.reason in FINGERPRINT_REASONS and (r.recipient_id, r.channel) in known
            else r
            for r in rows
        ]
        return people.suppress(tx, rows, actor=actor, dry_run=dry_run)

    def _fingerprint(self, channel: Channel, address: str) -> str | None:
        try:  # plain SQL may have stored what is no address: then nothing was ever sent to it
            normal = destinations.normalize(channel, address, self.config.phone_region or None)
        except InputError:
            return None
        return self.keys.fingerprint(channel, destinations.bare(channel, normal))

    def _consent(self, values: Mapping[str, Any]) -> Consent:
        refuse_unknown(values, ("recipient", "channel", "topic", "granted"))
        topic, granted = values.get("topic"), values.get("granted", True)
        if not isinstance(topic, str) or topic not in self.config.topics:
            raise InputError(
                "topic is missing" if not topic else "the topic is not configured", reason="topic_unknown",
                field="topic", hint=f"configured are {', '.join(sorted(self.config.topics)) or 'none'}",
            )  # fmt: skip
        if granted not in (*_TRUE, *_FALSE):
            raise InputError("granted is neither true nor false", reason="invalid", field="granted")
        return Consent(identifier(values, "recipient"), _channel(values), topic, granted in _TRUE)

    def _endpoint(self, recipient: str, name: str, address: str) -> Endpoint:
        channel = _channel({"channel": name})
        normal = destinations.normalize(channel, address, self.config.phone_region or None)
        bare = destinations.bare(channel, normal)
        return Endpoint(recipient, channel, normal, self.keys.fingerprint(channel, bare))


def _channel(values: Mapping[str, Any]) -> Channel:
    try:
        return Channel(values["channel"])
    except (KeyError, ValueError, TypeError):
        raise InputError("channel is neither email nor sms", reason="invalid", field="channel") from None
