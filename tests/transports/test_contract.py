"""What every transport owes, whatever it speaks; then what each answer of an HTTP provider must prove.

A new provider gets all of this by a line in `contract.CONTRACTS` and a small server beside the others.
"""

from __future__ import annotations

import logging
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from notifyctl.clock import Deadline
from notifyctl.errors import ConfigError
from notifyctl.keys import Keys
from notifyctl.model import Message, Outcome, OutcomeKind, Receipts, ReceiptStatus, Scope, Search
from notifyctl.transports.base import Transport
from notifyctl.transports.registry import KINDS, open_transport
from tests.certificates import certificate
from tests.smtp_server import SmtpServer
from tests.transports.contract import CONTRACTS, LIMITED, PERMANENT, ROWS, TEMPORARY, UNAVAILABLE, Contract, scope
from tests.transports.material import mail, settings, submit, together
from tests.transports.servers import KEY, Answer, Provider, Server
from tests.transports.servers.twilio import SID

HTTP = sorted(CONTRACTS)
AMBIGUOUS, ACCEPTED = OutcomeKind.AMBIGUOUS, OutcomeKind.ACCEPTED
BASIC = b64encode(f"{SID}:{KEY}".encode()).decode()
CANARIES = (KEY, BASIC, "447700900123", "example.org", "Grüße")  # secrets, both recipients, a word of the text


@dataclass
class Bench:
    """One transport of a kind with its other end."""

    transport: Transport
    contract: Contract | None = None
    provider: Provider | None = None
    server: Server | None = None

    def message(self, number: int = 1) -> Message:
        return self.contract.message(number) if self.contract else mail(number)

    def submit(self, number: int = 1, seconds: float = 5.0) -> Outcome:
        return submit(self.transport, self.message(number), seconds)

    def says(self, *answers: Any) -> None:
        assert self.provider is not None
        self.provider.script.extend(answers)


@pytest.fixture(params=sorted(KINDS))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Every kind of transport."""
    kind = request.param
    if kind in CONTRACTS:
        yield from _http(kind, tmp_path)
    elif kind == "smtp":
        with SmtpServer() as server:
            yield Bench(open_transport(settings("smtp", tmp_path, host="127.0.0.1", port=server.port)))
    else:
        assert kind == "file", "how is this kind tested?"
        yield Bench(open_transport(settings("file", tmp_path, path="outbox")))


@pytest.fixture(params=HTTP)
def http(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Every provider with an HTTP API."""
    yield from _http(request.param, tmp_path)


def _http(kind: str, folder: Path) -> Iterator[Bench]:
    contract = CONTRACTS[kind]
    provider = contract.server()
    with Server(provider) as server:
        transport = open_transport(settings(kind, folder, **server.options()))
        yield Bench(transport, contract, provider, server)
        transport.close()


# -- every transport --------------------------------------------------------------------------------------------------


def test_the_same_message_makes_the_same_request_and_it_holds_no_secret(bench: Bench) -> None:
    first, again = (bench.transport.prepare(bench.message()) for _ in range(2))
    assert first == again
    assert Keys("00" * 32).request(first) == Keys("00" * 32).request(again)
    assert first.key == "key-1"
    assert KEY.encode() not in first.body
    assert KEY not in "".join(first.envelope)


def test_a_message_is_accepted_once_and_has_an_id_where_receipts_are_looked_up(bench: Bench) -> None:
    outcome = bench.submit()
    assert (outcome.kind, outcome.reason) == (ACCEPTED, "")
    if bench.transport.capabilities.receipts is Receipts.LOOKUP:
        (remote,) = outcome.remote_ids
        said = bench.transport.receipts([remote, "unknown"])
        assert said.get(remote) is None or said[remote].status in (ReceiptStatus.PENDING, ReceiptStatus.DELIVERED)
        assert "unknown" not in said or said["unknown"].status is ReceiptStatus.GONE


def test_several_threads_submit_at_once(bench: Bench) -> None:
    outcomes = together(8, lambda number: bench.submit(number + 1))
    assert [outcome.kind for outcome in outcomes] == [ACCEPTED] * 8
    assert len({outcome.remote_ids for outcome in outcomes}) in (1, 8)


def test_nothing_is_sent_after_the_deadline(bench: Bench) -> None:
    outcome = bench.submit(seconds=-1.0)
    assert (outcome.kind, outcome.reason) in ((UNAVAILABLE, "deadline"), (TEMPORARY, "deadline"))
    if bench.provider is not None:
        assert bench.provider.asked == []


def test_a_health_check_sends_no_message(bench: Bench) -> None:
    checkup = bench.transport.check(Deadline.after(5.0))
    assert checkup.outcome is None
    assert KEY not in str(checkup.facts)
    assert bench.provider is None or bench.provider.submissions == []


def test_nothing_that_is_printed_or_logged_tells_whom_what_or_the_secret(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if bench.contract:
        bench.says(*(bench.contract.error(code) for code in bench.contract.codes), Answer(400, body=b"+447700900123"))
    request = bench.transport.prepare(bench.message())
    outcomes = [submit(bench.transport, request) for _ in range(len(bench.contract.codes) + 2 if bench.contract else 1)]
    said = (
        f"{bench.message()!r} {request!r} {outcomes!r} {bench.transport!r} {bench.transport.settings!r} {caplog.text}"
    )
    assert not [canary for canary in CANARIES if canary in said]


def test_a_transport_can_be_closed_twice_and_used_again(bench: Bench) -> None:
    bench.submit()
    bench.transport.close()
    bench.transport.close()
    assert bench.submit(2).kind in (ACCEPTED, UNAVAILABLE)


def test_what_is_declared_fits_together(bench: Bench) -> None:
    declared = bench.transport.capabilities
    assert declared.max_batch == 1 or declared.replay_window == 0, "one key for each request"
    assert not declared.absence_proves_unsent or declared.search is not Search.NONE
    assert declared.search is Search.NONE or declared.settle_delay > 0 or bench.provider is None


# -- HTTP: what was written -------------------------------------------------------------------------------------------


def test_our_key_is_on_the_wire_where_the_provider_takes_one(http: Bench) -> None:
    assert http.contract is not None
    assert http.provider is not None
    http.submit()
    (asked,) = http.provider.submissions
    declared = http.transport.capabilities
    takes = declared.replay_window > 0 or declared.search is Search.OWN_KEY
    assert http.contract.wire_key(asked) == ("key-1" if takes else "")


def test_a_replay_is_the_same_request_to_the_byte(http: Bench) -> None:
    assert http.provider is not None
    http.says(Answer(fault="reset", after=True))
    assert http.submit().kind is AMBIGUOUS
    second = http.submit()
    assert second.kind is ACCEPTED
    first, again = http.provider.submissions
    assert (first.body, {**first.headers}) == (again.body, {**again.headers})
    if http.transport.capabilities.replay_window:
        assert len(http.provider.messages) == 1, "one key, one message"  # type: ignore[attr-defined]


def test_exchanges_one_after_the_other_share_a_connection(http: Bench) -> None:
    for number in range(1, 6):
        http.submit(number)
    assert http.server is not None
    assert http.server.connections == 1


def test_there_are_never_more_connections_than_exchanges_at_a_time(http: Bench) -> None:
    together(3, lambda thread: [http.submit(10 * thread + number) for number in range(5)])
    assert http.server is not None
    assert http.server.connections <= 3


@pytest.mark.parametrize("announced", [True, False])
def test_a_connection_that_the_provider_closed_is_not_written_to(http: Bench, announced: bool) -> None:
    assert http.server is not None
    http.says(Answer(503, headers={"Connection": "close"} if announced else {}, fault="close"))
    assert http.submit().kind is TEMPORARY
    assert http.server.closed.acquire(timeout=20)
    assert http.submit().kind is ACCEPTED
    assert http.server.connections == 2


# -- HTTP: what a lost exchange proves --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang", "deadline"),
        ("drip", "deadline"),
        ("reset", "reply_lost"),
        ("half", "reply_lost"),
        ("nonsense", "unreadable_reply"),
        ("huge", "unreadable_reply"),
    ],
)
def test_an_answer_that_does_not_come_whole_is_doubt(http: Bench, fault: str, reason: str) -> None:
    http.says(Answer(200, document={}, fault=fault))
    outcome = http.submit(seconds=0.5 if reason == "deadline" else 20.0)
    assert (outcome.kind, outcome.reason, outcome.config) == (AMBIGUOUS, reason, False)


def test_a_deadline_that_is_brought_forward_ends_the_exchange(http: Bench) -> None:
    http.says(Answer(fault="hang"))
    deadline = Deadline.after(600.0)
    request = http.transport.prepare(http.message())
    threading.Timer(0.2, lambda: setattr(deadline, "at", 0.0)).start()
    (outcome,) = http.transport.submit([request], deadline, None)
    assert (outcome.kind, outcome.reason) == (AMBIGUOUS, "deadline")


@pytest.mark.parametrize(
    ("url", "reasons"),
    [("http://127.0.0.1:1", {"connect_failed"}), ("https://nowhere.invalid", {"dns_failed", "deadline"})],
)
@pytest.mark.parametrize("kind", HTTP)
def test_where_nothing_was_written_the_transport_is_out(kind: str, url: str, reasons: set[str], tmp_path: Path) -> None:
    options = {**CONTRACTS[kind].server().options, "base_url": url}
    outcome = submit(open_transport(settings(kind, tmp_path, **options)), CONTRACTS[kind].message())
    assert outcome.kind is UNAVAILABLE
    assert outcome.reason in reasons
    assert (outcome.scope, outcome.config) == (Scope.ACCOUNT, False)


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize("wrong", ["expired", "another name", "unknown authority", "no TLS at all"])
def test_a_server_that_cannot_prove_itself_gets_neither_key_nor_message(kind: str, wrong: str, tmp_path: Path) -> None:
    names = ("localhost",) if wrong == "another name" else ("127.0.0.1",)
    trusted, context = certificate(tmp_path, *names, days=-1 if wrong == "expired" else 1)
    provider = CONTRACTS[kind].server()
    with Server(provider, None if wrong == "no TLS at all" else context) as server:
        more = {} if wrong == "unknown authority" else {"ca_file": str(trusted)}
        options = {**server.options(**more), "base_url": f"https://127.0.0.1:{server.port}"}
        outcome = submit(open_transport(settings(kind, tmp_path, **options)), CONTRACTS[kind].message())
    assert outcome.kind is UNAVAILABLE
    expected = ("tls_failed", False) if wrong == "no TLS at all" else ("certificate_invalid", True)
    assert (outcome.reason, outcome.config) == expected
    assert provider.asked == []


@pytest.mark.parametrize("prefix", ["", "/", "/a/gateway"])
def test_a_gateway_may_stand_between(http: Bench, prefix: str, tmp_path: Path) -> None:
    assert http.server is not None
    assert http.provider is not None
    options = http.server.options(base_url=http.server.url + prefix)
    submit(open_transport(settings(http.provider.kind, tmp_path, **options)), http.message())
    assert http.provider.asked[0].path.startswith(f"{prefix.rstrip('/')}/")
    assert "//" not in http.provider.asked[0].path


@pytest.mark.parametrize("kind", HTTP)
def test_a_server_that_proves_itself_is_used_over_tls(kind: str, tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with Server(CONTRACTS[kind].server(), context) as server:
        transport = open_transport(settings(kind, tmp_path, **server.options(ca_file=str(trusted))))
        assert [submit(transport, CONTRACTS[kind].message(n)).kind for n in (1, 2)] == [ACCEPTED, ACCEPTED]
        assert server.connections == 1
        transport.close()


# -- HTTP: what an answer proves --------------------------------------------------------------------------------------

STATUSES = [
    (301, UNAVAILABLE, "redirected"), (302, UNAVAILABLE, "redirected"), (307, UNAVAILABLE, "redirected"),
    (400, PERMANENT, "refused"), (401, UNAVAILABLE, "credentials_rejected"), (402, UNAVAILABLE, "quota_exceeded"),
    (403, UNAVAILABLE, "credentials_rejected"), (404, UNAVAILABLE, "endpoint_not_found"),
    (405, UNAVAILABLE, "endpoint_not_found"), (407, UNAVAILABLE, "endpoint_not_found"),
    (408, TEMPORARY, "service_unavailable"), (409, PERMANENT, "refused"), (410, UNAVAILABLE, "endpoint_not_found"),
    (413, PERMANENT, "refused"), (420, LIMITED, "throttled"), (422, PERMANENT, "refused"),
    (425, TEMPORARY, "service_unavailable"), (429, LIMITED, "throttled"), (451, PERMANENT, "refused"),
    (500, AMBIGUOUS, "server_error"), (501, AMBIGUOUS, "server_error"), (502, AMBIGUOUS, "server_error"),
    (503, TEMPORARY, "service_unavailable"), (504, AMBIGUOUS, "server_error"), (599, AMBIGUOUS, "server_error"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "kind", "reason"), STATUSES)
@pytest.mark.parametrize("page", [b"<html>r1@example.org</html>", b"{}", b"", b"\xff\xfe", b"[" * 100_000])
def test_a_status_without_a_code_means_its_class(
    http: Bench, status: int, kind: OutcomeKind, reason: str, page: bytes
) -> None:
    http.says(Answer(status, body=page, headers={"Content-Type": "text/html; charset=utf-8"}))
    outcome = http.submit()
    assert (outcome.kind, outcome.reason, outcome.scope) == (kind, reason, scope(kind))
    assert outcome.config is (kind is UNAVAILABLE)
    assert outcome.code == (str(status) if page == b"{}" else f"{status} text/html")


@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize(
    "page", [b"<html>ok</html>", b"{}", b"", b"null", b"ERROR:14", b'{"sid": "", "data": {"id": ""}}']
)
def test_success_without_an_id_is_doubt(http: Bench, status: int, page: bytes) -> None:
    http.says(Answer(status, body=page if status != 204 else b""))
    outcome = http.submit()
    assert (outcome.kind, outcome.reason) == (AMBIGUOUS, "unreadable_reply")


def test_an_encoded_answer_that_nobody_asked_for_is_not_unpacked(http: Bench) -> None:
    import zlib

    packed = zlib.compress(b'{"sid": "SM1", "data": {"id": "1"}, "MessageID": "1"}', wbits=31)
    http.says(Answer(200, body=packed, headers={"Content-Encoding": "gzip"}))
    assert (http.submit().kind, http.submit().kind) == (AMBIGUOUS, ACCEPTED)


@pytest.mark.parametrize("kind", HTTP)
def test_every_row_of_a_code_table_is_expected_here(kind: str) -> None:
    from importlib import import_module

    module, _, name = KINDS[kind].module.partition(":")
    table = getattr(import_module(f"notifyctl.transports.{module}"), name).CODES
    assert table.keys() == CONTRACTS[kind].codes.keys()


@pytest.mark.parametrize(("kind", "code"), ROWS)
@pytest.mark.parametrize("status", [None, 200, 500])
def test_a_code_means_what_its_page_says_whatever_the_status(
    kind: str, code: str, status: int | None, tmp_path: Path
) -> None:
    contract = CONTRACTS[kind]
    provider = contract.server()
    answer = contract.error(code)
    provider.script.append(Answer(status or answer.status, answer.document, {"Retry-After": "7"}))
    with Server(provider) as server:
        outcome = submit(open_transport(settings(kind, tmp_path, **server.options())), contract.message())
    expected, reason = contract.codes[code]
    assert (outcome.kind, outcome.reason, outcome.code) == (expected, reason, code)
    assert (outcome.config, outcome.scope) == (expected is UNAVAILABLE, scope(expected))
    assert outcome.retry_after == (7.0 if expected in (LIMITED, TEMPORARY) else None)


@pytest.mark.parametrize("code", ["99999", "1", "no code at all", "447700900123", "x" * 500])
def test_an_unknown_code_is_a_failure_of_its_class_and_suppresses_nobody(http: Bench, code: str) -> None:
    known = code.isdigit() and len(code) < 7
    for status, kind in ((400, PERMANENT), (503, TEMPORARY), (500, AMBIGUOUS)):
        document = {"code": code, "errors": [{"code": code}], "ErrorCode": code}
        http.says(Answer(status, document))
        outcome = http.submit()
        assert outcome.kind is kind
        assert outcome.reason not in ("invalid_recipient", "opted_out", "hard_bounce")
        assert outcome.code == (code if known else str(status))


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_its_target_is_named(kind: str, status: int, tmp_path: Path) -> None:
    contract = CONTRACTS[kind]
    provider, other = contract.server(), contract.server()
    with Server(provider) as server, Server(other) as second:
        provider.script.append(Answer(status, headers={"Location": f"{second.url}/elsewhere?to=r1@example.org"}))
        outcome = submit(open_transport(settings(kind, tmp_path, **server.options())), contract.message())
        assert (outcome.kind, outcome.config) == (UNAVAILABLE, True)
        assert outcome.reason == f"redirected_to:127.0.0.1:{second.port}"
        assert (second.connections, other.asked) == (0, [])


def test_a_wrong_key_stops_everything_and_is_not_shown(http: Bench) -> None:
    assert http.provider is not None
    http.provider.allowed = lambda asked: False  # type: ignore[method-assign]
    outcome = http.submit()
    assert (outcome.kind, outcome.reason, outcome.config) == (UNAVAILABLE, "credentials_rejected", True)
    checkup = http.transport.check(Deadline.after(5.0)).outcome
    assert checkup is not None
    assert (checkup.kind, checkup.config) == (UNAVAILABLE, True)


WAITS = [
    ({"Retry-After": "120"}, 120.0),
    ({"Retry-After": "1.5"}, 1.5),
    ({"Date": "Tue, 01 Dec 2026 12:00:00 GMT", "Retry-After": "Tue, 01 Dec 2026 12:02:00 GMT"}, 120.0),
    ({"Date": "Tue, 01 Dec 2026 12:00:00 GMT", "Retry-After": "Tue, 01 Dec 2026 11:00:00 GMT"}, 0.0),
    ({"X-RateLimit-Reset": "30"}, 30.0),
    ({"Date": "Tue, 01 Dec 2026 12:00:00 GMT", "X-RateLimit-Reset": "1796126460"}, 60.0),
    ({"Date": "Tue, 01 Dec 2026 12:00:00 GMT", "RateLimit-Reset": "1796126460000"}, 60.0),
    ({"X-Rate-Limit-Reset": "7"}, 7.0),
    ({"Retry-After": "5", "X-RateLimit-Reset": "30"}, 5.0),
    ({"Retry-After": "99999999"}, 86400.0),
    ({"Retry-After": "soon"}, None),
    ({"Retry-After": "-5"}, None),
    ({"Retry-After": ""}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "wait"), WAITS)
def test_a_provider_says_when_to_come_back_in_many_forms(
    http: Bench, headers: dict[str, str], wait: float | None
) -> None:
    http.says(Answer(429, {}, headers))
    outcome = http.submit()
    assert (outcome.kind, outcome.scope, outcome.retry_after) == (LIMITED, Scope.ACCOUNT, wait)


# -- HTTP: configuration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("base_url", "http://api.example.com", "is not https"),
        ("base_url", "ftp://127.0.0.1", "is not a URL"),
        ("base_url", f"https://user:{KEY}@api.example.com", "is not a URL"),
        ("base_url", "https://[::1", "is not a URL"),
        ("base_url", "https://api exam ple.com", "is not a URL"),
        ("base_url", "https://api.example.com/?key=1", "is not a URL"),
        ("base_url", "HTTPS://api.example.com", "is not a URL"),
        ("ca_file", "nowhere.pem", "names"),
        ("base_url", "", "is not a URL"),
        ("receipt_window", "soon", "is wrong"),
    ],
)
def test_a_configuration_that_cannot_work_names_its_key(
    kind: str, key: str, value: str, complaint: str, tmp_path: Path
) -> None:
    options = {**CONTRACTS[kind].server().options, key: value}
    with pytest.raises(ConfigError, match=rf"transports\.relay\.{key} {complaint}") as caught:
        open_transport(settings(kind, tmp_path, **options))
    assert KEY not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in HTTP for key in CONTRACTS[kind].server().options])
def test_what_is_required_must_be_given(kind: str, key: str, tmp_path: Path) -> None:
    options = CONTRACTS[kind].server().options
    for value in ({}, {key: ""}, {key: "sécret"}):
        with pytest.raises(ConfigError, match=rf"transports\.relay\.{key}"):
            open_transport(settings(kind, tmp_path, **{**{k: v for k, v in options.items() if k != key}, **value}))


def test_a_shorter_memory_of_an_account_can_be_configured(tmp_path: Path) -> None:
    for kind in HTTP:
        options = {**CONTRACTS[kind].server().options, "receipt_window": "36h"}
        assert open_transport(settings(kind, tmp_path, **options)).capabilities.receipt_window == 36 * 3600.0
