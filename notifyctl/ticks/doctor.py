"""`doctor`: is this installation able to do its work? Everything is asked, nothing is sent, nothing is written.

Each question ends in a `Check`; none of them raises, so that one fault hides no other. The worst exit code among the
faults is the run's: 78 for what a person must mend in the configuration, the ledger or at the provider, 75 for what
may be away for the moment only, 3 for what works and still deserves a look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from notifyctl import clock
from notifyctl.clock import Deadline
from notifyctl.compose import destinations, dkim_keys, dkim_record, sms
from notifyctl.compose.dkim import SigningKey
from notifyctl.config import Config
from notifyctl.errors import (
    EXIT_BUG,
    EXIT_CONFIG,
    EXIT_OK,
    EXIT_PERSON,
    EXIT_TEMPORARY,
    ConfigError,
    InputError,
    NotifyctlError,
    worst,
)
from notifyctl.keys import Keys
from notifyctl.ledger import checkup, runs, schema, templates
from notifyctl.ledger.connect import is_sqlite, sqlite_path
from notifyctl.ledger.database import Ledger
from notifyctl.model import Channel, Lane, Outcome, OutcomeKind
from notifyctl.settings import TransportSettings
from notifyctl.ticks import prospects
from notifyctl.transports import capabilities
from notifyctl.transports.base import Checkup, Transport, Trouble
from notifyctl.transports.dns_text import texts
from notifyctl.transports.registry import open_transport
from notifyctl.units import iso, short

CLOCK_SLACK = 2.0  # seconds by which two clocks may differ
INTEGRITY_SECONDS = 5.0  # for looking through an SQLite file
DNS_SECONDS = 5.0
_AT_ONCE = 16  # transports
_PRIVATE = re.compile(r"@|\+?\d{9,}")  # an address, or a number to call, in what a provider says of an account


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer. `code`: the exit code that a fault asks for; EXIT_OK: it is fine."""

    what: str  # config, ledger, clock, dkim, transport, lane, template
    name: str
    detail: str
    hint: str = ""
    code: int = EXIT_OK

    def document(self) -> dict[str, Any]:
        """For machines."""
        return {
            "what": self.what, "name": self.name, "ok": self.code == EXIT_OK, "detail": self.detail, "hint": self.hint,
        }  # fmt: skip


def failed(what: str, name: str, error: NotifyctlError) -> Check:
    """The check that an error of ours ended."""
    return Check(what, name, error.message, error.hint, error.exit_code)


@dataclass
class Doctor:
    """One examination. `only`: of these transports; none: of all. `wall`: this host's clock."""

    config: Config
    only: Collection[str] = ()
    wall: Callable[[], Any] = clock.wall
    checks: list[Check] = field(default_factory=list)
    opened: dict[str, Transport] = field(default_factory=dict)
    keys: Keys | None = None
    lanes: list[dict[str, Any]] = field(default_factory=list)
    transports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def code(self) -> int:
        """The exit code: 0 where all is well."""
        return worst(*(check.code for check in self.checks))

    def document(self) -> dict[str, Any]:
        """The JSON of `doctor`."""
        return {
            "healthy": self.code == EXIT_OK, "checks": [check.document() for check in self.checks],
            "lanes": self.lanes, "transports": self.transports,
        }  # fmt: skip

    def examine(self) -> None:
        """Ask everything. The transports stay open until `close`."""
        config = self.config
        self.checks.append(Check("config", config.path.name, f"instance {config.instance}, loaded"))
        self.checks += [
            Check("config", config.path.name, warning.removeprefix(f"{config.path}: "), code=EXIT_PERSON)
            for warning in config.warnings
        ]
        self.checks += self._ledger()
        chosen = [one for name, one in config.transports.items() if not self.only or name in self.only]
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(chosen))), "notifyctl-doctor") as workers:
            for found, entry in workers.map(self._transport, chosen):
                self.checks += found
                self.transports.append(entry)
        self._judge_lanes()

    def close(self) -> None:
        """Give back what was opened."""
        for transport in self.opened.values():
            transport.close()

    # -- the ledger --

    def _ledger(self) -> Iterator[Check]:
        config = self.config
        try:
            ledger = Ledger(config.url, patience=config.patience)
        except NotifyctlError as error:
            yield failed("ledger", "connection", error)
            return
        try:
            yield from self._open_ledger(ledger)
        except NotifyctlError as error:
            yield failed("ledger", "connection", error)
        finally:
            ledger.close()

    def _open_ledger(self, ledger: Ledger) -> Iterator[Check]:
        config, dialect = self.config, ledger.dialect.name
        yield Check("ledger", "connection", dialect)
        try:
            waiting = ledger.look(lambda connection: schema.pending(connection, dialect))
            ledger.look(lambda connection: schema.check(connection, dialect, config.instance))
        except ConfigError as error:
            about = "instance" if error.code in ("wrong_instance", "no_instance") else "version"
            yield failed("ledger", about, error)
            return
        found = ledger.look(checkup.version)
        known = f"version {found.schema}, asks for reader {found.min_reader}, this notifyctl is {schema.READER}"
        if waiting:
            names = ", ".join(one.name for one in waiting)
            yield Check("ledger", "version", f"{known}; not yet applied: {names}", "notifyctl migrate", EXIT_PERSON)
        else:
            yield Check("ledger", "version", known)
        yield Check("ledger", "instance", found.instance)
        time = self._clock(ledger)
        yield time
        defect = ledger.look(lambda connection: checkup.defect(connection, dialect, INTEGRITY_SECONDS))
        if not defect and is_sqlite(config.url) and checkup.unwritable(sqlite_path(config.url)):
            defect = "this user may not write it and its folder"
        if defect:
            hint = "mend the database before anything is sent: see the README, Trouble"
            yield Check("ledger", "integrity", defect, hint, EXIT_CONFIG)
        else:
            yield Check("ledger", "integrity", "nothing found")
        if time.code == EXIT_TEMPORARY:  # no transaction is possible
            return
        self.keys = runs.keys(ledger)
        yield from self._templates(ledger)

    def _clock(self, ledger: Ledger) -> Check:
        read = ledger.look(lambda connection: checkup.reading(connection, ledger.dialect.name, self.wall))
        if is_sqlite(self.config.url):
            if read.ahead > CLOCK_SLACK or abs(read.offset) > CLOCK_SLACK:
                over = read.ahead > 86400
                return Check(
                    "clock", "ledger",
                    f"this host's clock is {read.ahead:.0f} s behind the ledger's last write "
                    f"({iso(read.mark) if read.mark else '-'}); {read.offset:.0f} s are added to it",
                    "set the clock; if the ledger's time is the wrong one: notifyctl migrate --reset-clock",
                    EXIT_TEMPORARY if over else EXIT_PERSON,
                )  # fmt: skip
            last = f"last write {iso(read.mark)}" if read.mark else "nothing written yet"
            return Check("clock", "ledger", f"offset {read.offset:.0f} s, {last}")
        if abs(read.ahead) > CLOCK_SLACK:
            side = "behind" if read.ahead > 0 else "ahead of"
            return Check(
                "clock", "ledger", f"this host's clock is {abs(read.ahead):.1f} s {side} the database server's",
                "synchronise both clocks (NTP): the server's is the one that counts", EXIT_PERSON,
            )  # fmt: skip
        return Check("clock", "ledger", f"{abs(read.ahead):.1f} s from the database server's")

    def _templates(self, ledger: Ledger) -> Iterator[Check]:
        """What is published must have a lane that serves it."""
        newest = [one for one in ledger.read(templates.listing) if one.newest]
        yield Check("template", "published", f"{len(newest)} templates" if newest else "none yet")
        served = {lane.channel for lane in self.config.lanes.values()}
        for one in newest:
            channels = {Channel.SMS if part == "sms" else Channel.EMAIL for _, part, _ in one.parts}
            if not channels & served:
                needs = " and ".join(sorted(channels))
                yield Check("template", one.name, f"is for {needs}, which no lane serves", "add a lane", EXIT_PERSON)

    # -- transports --

    def _transport(self, settings: TransportSettings) -> tuple[list[Check], dict[str, Any]]:
        """One transport, in a thread of its own: its configuration and secrets, its keys, its answer."""
        entry: dict[str, Any] = {
            "transport": settings.name, "kind": settings.kind, "ok": False, "reason": "", "facts": {},
            "capabilities": None,
        }  # fmt: skip
        try:
            transport = open_transport(settings, self.keys.return_path if self.keys else None)
        except NotifyctlError as error:
            entry["reason"] = "config"
            return [failed("transport", settings.name, error)], entry
        self.opened[settings.name] = transport
        entry["capabilities"] = capabilities.document(transport.capabilities)
        try:
            found = transport.check(Deadline.after(settings.deadline))
        except Trouble as trouble:
            kind = trouble.kind or OutcomeKind.UNAVAILABLE
            found = Checkup(Outcome(kind, trouble.reason, code=trouble.code, config=trouble.config))
        except OSError:
            found = Checkup(Outcome(OutcomeKind.UNAVAILABLE, "connection_lost"))
        except NotifyctlError as error:
            entry["reason"] = "config"
            return [failed("transport", settings.name, error)], entry
        except Exception as error:  # a bug in the transport; its text may quote anything
            detail = f"internal error: {type(error).__name__}"
            return [Check("transport", settings.name, detail, "this is a bug in notifyctl", EXIT_BUG)], entry
        entry["facts"] = {name: "…" if _PRIVATE.search(value) else value for name, value in found.facts.items()}
        entry["ok"], entry["reason"] = found.outcome is None, found.outcome.reason if found.outcome else ""
        checks = [_answered(settings, found.outcome, entry["facts"]), *self._sender(settings)]
        try:
            signer = dkim_keys.signer(settings)
        except ConfigError as error:
            return [*checks, failed("dkim", settings.name, error)], entry
        return [*checks, *(self._published(settings, key) for key in (signer.keys if signer else ()))], entry

    def _sender(self, settings: TransportSettings) -> Iterator[Check]:
        for channel in {one.channel for one in self.config.lanes.values() if one.transport == settings.name}:
            try:
                if channel is Channel.EMAIL:
                    destinations.email(settings.sender)
                else:
                    sms.check_sender(settings.sender)
            except InputError:
                wanted = "one mail address" if channel is Channel.EMAIL else "a sender of SMS"
                hint = f"set transports.{settings.name}.from"
                yield Check("transport", settings.name, f"its `from` is not {wanted}", hint, EXIT_CONFIG)

    def _published(self, settings: TransportSettings, key: SigningKey) -> Check:
        """Whether receivers can verify what this key signs."""
        name = dkim_record.name(key)
        try:
            found = texts(name, Deadline.after(DNS_SECONDS), self.config.resolver)
        except Trouble as trouble:
            if trouble.config:
                hint = 'write an address, such as "127.0.0.1" or "[::1]:53"'
                return Check("dkim", name, "dns.resolver is not an address", hint, EXIT_CONFIG)
            hint = f"see: dig TXT {name}; mails are signed all the same"
            return Check("dkim", name, f"the DNS does not answer ({trouble.reason})", hint, EXIT_TEMPORARY)
        fault = dkim_record.fault(key, found)
        if fault:
            return Check("dkim", name, fault, f'publish at {name} the TXT record "{key.record}"', EXIT_PERSON)
        try:
            sender = destinations.email(settings.sender).domain
        except InputError:
            sender = key.domain  # told already
        if not (f".{sender}".endswith(f".{key.domain}") or key.domain.endswith(f".{sender}")):
            return Check(
                "dkim", name, f"the key is published, but mails come from {sender}: DMARC does not count the signature",
                f"sign for {sender} in transports.{settings.name}.dkim", EXIT_PERSON,
            )  # fmt: skip
        return Check("dkim", name, f"{key.algorithm}, the published key is ours")

    # -- lanes and topics --

    def _judge_lanes(self) -> None:
        lanes = self.config.lanes
        if not lanes:
            hint = "add a [lanes.NAME] with channel and transport"
            self.checks.append(Check("lane", "-", "no lane is configured: nothing is ever sent", hint, EXIT_CONFIG))
        for lane in lanes.values():
            if not self.only or lane.transport in self.only:
                self._judge_lane(lane)
        if self.only:
            return
        for channel in dict.fromkeys(lane.channel for lane in lanes.values()):
            if self.config.lane_for(channel) not in lanes:
                self.checks.append(Check(
                    "lane", channel, f"deliveries by {channel} that name no lane go to lane {channel}: there is none",
                    f"name a lane {channel}, or give each topic a lane and let callers name one", EXIT_PERSON,
                ))  # fmt: skip
        self.checks += [
            Check("topic", topic.name, f"its lane {topic.lane} is not configured", "mend topics", EXIT_PERSON)
            for topic in self.config.topics.values()
            if topic.lane and topic.lane not in lanes
        ]

    def _judge_lane(self, lane: Lane) -> None:
        transport = self.opened.get(lane.transport)
        if transport is None:  # its transport's check says why
            return
        able, settings, feeds = transport.capabilities, transport.settings, transport.feeds
        doubt = prospects.prospect(lane, able, settings)
        self.lanes.append({
            "lane": lane.name, "channel": lane.channel, "transport": lane.transport,
            "on_ambiguous": lane.on_ambiguous, "in_doubt": doubt.words, "doubt_ends": doubt.ends,
            "receipts": prospects.receipts(lane, able, settings, feeds=feeds), "receipt_style": able.receipts,
            "receipt_window_s": able.receipt_window or None, "receipt_deadline_s": lane.receipt.deadline,
            "poll_every_s": settings.poll_every if feeds else None,
        })  # fmt: skip
        flaws = list(prospects.flaws(lane, able, settings, feeds=feeds))
        self.checks += [Check("lane", lane.name, detail, hint, EXIT_PERSON) for detail, hint in flaws]
        if not flaws:
            times = f"lease {short(lane.lease)}, one exchange {short(settings.deadline)}"
            self.checks.append(Check("lane", lane.name, f"{lane.channel} by {lane.transport}, {times}"))


def exit_code(outcome: Outcome) -> int:
    """What an outcome that is not `accepted` asks of whoever runs this."""
    if outcome.config:
        return EXIT_CONFIG
    return EXIT_PERSON if outcome.kind is OutcomeKind.PERMANENT_FAILURE else EXIT_TEMPORARY


def advice(outcome: Outcome, settings: TransportSettings) -> str:
    """What to do about it."""
    where = f"transports.{settings.name}"
    reason = outcome.reason.removeprefix("bounces_").partition(":")[0]
    if reason in _ADVICE:
        return _ADVICE[reason].format(where=where)
    if outcome.config:
        return f"mend {where}, or the account at the provider"
    return "try again later; its lanes wait meanwhile, and nothing is lost"


_ADVICE = {
    "certificate_invalid": "its certificate is expired, of another name, or of an authority not trusted here: renew "
    "it, or name the authority in {where}.ca_file",
    "credentials_rejected": "mend the user name, key or password of {where}",
    "authentication_required": "give {where} a username and a password",
    "login_unsupported": "the server offers no login this way: look at {where}.tls and port",
    "starttls_missing": "the server offers no TLS on this port: look at {where}.tls and port",
    "dns_failed": "its host name is not known here: mend {where}, or the resolver of this host",
    "connect_failed": "nobody answers there: look at host and port of {where}, and at firewalls",
    "endpoint_not_found": "look at {where}.base_url and the account's name",
    "redirected_to": "name the target itself in {where}.base_url: redirects are never followed",
    "quota_exceeded": "the account has no means left",
    "account_suspended": "ask the provider why the account is closed",
}


def _answered(settings: TransportSettings, outcome: Outcome | None, facts: dict[str, str]) -> Check:
    name = settings.name
    if outcome is None:
        known = ", ".join(f"{key} {value}".strip() for key, value in facts.items())
        return Check("transport", name, f"{settings.kind}: {known or 'usable'}")
    code = f" ({outcome.code})" if outcome.code else ""
    return Check(
        "transport", name, f"{settings.kind}: {outcome.reason}{code}", advice(outcome, settings), exit_code(outcome)
    )
