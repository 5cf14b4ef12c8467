"""G over HTTP, through the installed command: what a provider's API answers, and what then becomes of deliveries."""

from __future__ import annotations

from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import certificate
from tests.scenarios.stage import Stage, text
from tests.site import DOMAIN
from tests.transports.servers import KEY, Answer, Asked, Provider, Server
from tests.transports.servers import postmark as postmark_server
from tests.transports.servers import telnyx as telnyx_server
from tests.transports.servers import twilio as twilio_server
from tests.transports.servers.postmark import Postmark
from tests.transports.servers.telnyx import Telnyx
from tests.transports.servers.twilio import Twilio

SMS = ("twilio", "telnyx")
PLAYED: dict[str, type[Provider]] = {"twilio": Twilio, "telnyx": Telnyx, "postmark": Postmark}


def texts_by(stage: Stage, server: Server, **more: Any) -> None:
    """Let texts go to this provider, one after the other."""
    kind = server.provider.kind
    stage.settings["transports.texts"] = {"kind": kind, "from": "+15005550006", **server.options(**more)}
    stage.put("lanes.sms", concurrency=1)


def mails_by(stage: Stage, server: Server, **more: Any) -> None:
    """Let mails go to this provider, many at once."""
    sender = "Shop <no-reply@shop.example>"
    stage.settings["transports.relay"] = {"kind": "postmark", "from": sender, **server.options(**more)}
    stage.put("lanes.email", concurrency=2)


def numbers(count: int) -> list[dict[str, Any]]:
    return [text(n, f"+4477009000{n:02}") for n in range(1, count + 1)]


def clean(stage: Stage, done: Any) -> None:
    """Nothing that a process printed holds the account's key."""
    assert KEY not in done.out + done.err


@pytest.mark.parametrize("kind", SMS)
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_G1_a_rate_limit_of_an_api_is_heeded(stage: Stage, kind: str, form: str) -> None:
    """429 with Retry-After on the third of ten: two sent, eight due, none failed; again at 30 s and at 130 s."""
    from datetime import UTC, datetime, timedelta

    with Server(PLAYED[kind]()) as server:
        provider = server.provider

        def limit(asked: Asked) -> Answer:
            now = datetime.now(UTC)
            later = format_datetime(now + timedelta(seconds=120), usegmt=True)
            headers = {"Retry-After": "120" if form == "seconds" else later, "Date": format_datetime(now, usegmt=True)}
            if kind == "twilio":
                return Answer(429, twilio_server.error(20429).document, headers)
            return Answer(429, telnyx_server.error("10011").document, headers)

        provider.script.extend([provider.accept, provider.accept, limit])
        texts_by(stage, server)
        stage.bulk(*numbers(10))
        stage.dispatched("--lane", "sms", accepted=2, rate_limited=1, permanent_failure=0, dead_letter=0)
        assert stage.sql("SELECT count(*) FROM notify_work WHERE step = 'send'") == [(8,)]
        assert stage.sql("SELECT sum(attempts_used) FROM notify_delivery") == [(2,)]
        stage.pass_time(30)
        stage.dispatched("--lane", "sms", claimed=0, accepted=0)
        assert len(provider.submissions) == 3
        stage.pass_time(100)
        while stage.dispatched("--lane", "sms")["claimed"]:  # the first one is the probe
            stage.pass_time(1)
        assert {row[0] for row in stage.sql("SELECT state FROM notify_delivery")} == {"accepted"}
        assert len(provider.submissions) == 11, "each once, and the one that was limited"


def test_G2_success_with_an_error_in_it_is_never_called_sent(stage: Stage) -> None:
    """200 with `ERROR:14`, 200 with a throttling code, 200 with a refusal's code."""
    with Server(Twilio()) as server:
        server.provider.script.extend([
            Answer(200, body=b"ERROR:14"), Answer(200, {"code": 30001, "status": 200}), Answer(200, {"code": 21612}),
            Answer(200, {"code": 21211}),
        ])  # fmt: skip
        texts_by(stage, server)
        stage.bulk(*numbers(5))
        done = stage.told("dispatch", "--lane", "sms", code=0)
        clean(stage, done)
        found = dict(stage.sql("SELECT event_id, state FROM notify_delivery"))
        assert found == {
            "e1": "ambiguous", "e2": "temporary_failure", "e3": "permanent_failure", "e4": "suppressed",
            "e5": "accepted",
        }  # fmt: skip
        assert stage.delivery(3, "reason") == "route_unavailable"
        assert stage.delivery(1, "attempts_used") == 1


def test_G2_each_item_of_a_batch_has_its_own_result(stage: Stage) -> None:
    """One request for all: one of them refused, one limited, one missing in the answer; the next run asks again only
    for what was not settled."""
    with Server(Postmark()) as server:
        provider = server.provider
        assert isinstance(provider, Postmark)
        provider.codes = {f"r2@{DOMAIN}": 300, f"r3@{DOMAIN}": 100}

        def named(asked: Asked) -> Answer:
            items = provider.accept(asked).document
            mails = asked.document
            told = [{"To": mail["To"], **one} for mail, one in zip(mails, items, strict=True)]
            return Answer(200, [one for one in told if one["To"] != f"r4@{DOMAIN}"])

        provider.script.append(named)
        mails_by(stage, server)
        stage.enqueue(20)
        stage.dispatched(claimed=20, accepted=17, permanent_failure=1, temporary_failure=1, ambiguous=1)
        assert [asked.path for asked in provider.submissions] == ["/email/batch"], "one request"
        assert stage.delivery(2, "state, reason") == ("permanent_failure", "message_rejected")
        assert stage.delivery(4, "state, reason") == ("ambiguous", "missing_in_answer")
        assert len(set(stage.sql("SELECT remote_id FROM notify_attempt WHERE outcome = 'accepted'"))) == 17
        provider.codes = {}
        stage.sql("UPDATE notify_work SET eligible_at = ? WHERE step = 'send'", "2001-01-01 00:00:00.000000")
        stage.dispatched(claimed=1, accepted=1)
        assert provider.submissions[-1].path == "/email"
        assert provider.submissions[-1].document["To"] == f"r3@{DOMAIN}"


def test_G2_a_batch_that_is_refused_whole_costs_only_the_one_to_blame(stage: Stage) -> None:
    with Server(Postmark()) as server:
        server.provider.script.append(postmark_server.error(402))
        server.provider.codes = {f"r2@{DOMAIN}": 300}  # type: ignore[attr-defined]
        mails_by(stage, server)
        stage.enqueue(3)
        stage.dispatched(claimed=3, accepted=2, permanent_failure=1)
        assert stage.sql("SELECT max(attempts_used), sum(attempts_used) FROM notify_delivery") == [(1, 3)]


@pytest.mark.parametrize("kind", SMS)
def test_G3_a_page_instead_of_an_answer(stage: Stage, kind: str) -> None:
    """503 with a page is tried again; 200 with a page is unknown; what comes behind them is not affected."""
    page = f"<html><body>Sorry, {'+447700900001'}: our API is down</body></html>".encode()
    with Server(PLAYED[kind]()) as server:
        headers = {"Content-Type": "text/html"}
        server.provider.script.extend(
            [Answer(503, body=page, headers=headers), Answer(200, body=page, headers=headers)]
        )
        texts_by(stage, server)
        stage.bulk(*numbers(4))
        stage.dispatched("--lane", "sms", temporary_failure=1, ambiguous=1, accepted=2)
        assert stage.delivery(1, "state, reason") == ("temporary_failure", "service_unavailable")
        assert stage.delivery(2, "state, reason") == ("ambiguous", "unreadable_reply")
        codes = stage.sql("SELECT code FROM notify_attempt WHERE outcome <> 'accepted' ORDER BY delivery_id")
        assert codes == [("503 text/html",), ("200 text/html",)], "what it was, without a word of it"
        stage.sql("UPDATE notify_work SET eligible_at = ? WHERE step = 'send'", "2001-01-01 00:00:00.000000")
        stage.dispatched("--lane", "sms", claimed=1, accepted=1)


@pytest.mark.parametrize("kind", sorted(PLAYED))
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_G5_a_redirect_takes_no_key_with_it(stage: Stage, kind: str, status: int) -> None:
    """Not followed; rows not sent and not charged; the configuration is named as the fault, and the target."""
    with Server(PLAYED[kind]()) as server, Server(PLAYED[kind]()) as second:
        server.provider.script.append(Answer(status, headers={"Location": f"{second.url}/v2/messages"}))
        lane = "email" if kind == "postmark" else "sms"
        if kind == "postmark":
            mails_by(stage, server)
            stage.enqueue(3)
        else:
            texts_by(stage, server)
            stage.bulk(*numbers(3))
        done = stage.told("dispatch", "--lane", lane, code=78)
        clean(stage, done)
        assert f"127.0.0.1:{second.port}" in done.err, "the target is named"
        assert (second.connections, second.provider.asked) == (0, [])
        assert stage.sql("SELECT count(*), sum(attempts_used) FROM notify_delivery WHERE state = 'queued'") == [(3, 0)]
        assert len(server.provider.submissions) == 1
        stage.later()
        while stage.dispatched("--lane", lane)["claimed"]:
            stage.later()
        assert {row[0] for row in stage.sql("SELECT state FROM notify_delivery")} == {"accepted"}


@pytest.mark.parametrize("kind", sorted(PLAYED))
@pytest.mark.parametrize("wrong", ["expired", "another name"])
def test_G6_no_key_goes_to_an_api_that_cannot_prove_itself(
    stage: Stage, kind: str, wrong: str, tmp_path: Path
) -> None:  # fmt: skip
    """No way around it, nothing charged, one alert, the run ends; once the certificate is right all go."""
    names = ("localhost",) if wrong == "another name" else ("127.0.0.1",)
    trusted, context = certificate(tmp_path, *names, days=-1 if wrong == "expired" else 1)
    lane = "email" if kind == "postmark" else "sms"
    use = mails_by if kind == "postmark" else texts_by
    with Server(PLAYED[kind](), context) as server:
        use(stage, server, ca_file=str(trusted))
        if kind == "postmark":
            stage.enqueue(3)
        else:
            stage.bulk(*numbers(3))
        done = stage.told("dispatch", "--lane", lane, code=78)
        clean(stage, done)
        assert "certificate_invalid" in done.err
        assert server.provider.asked == []
        assert stage.sql("SELECT count(*), sum(attempts_used) FROM notify_delivery WHERE state = 'queued'") == [(3, 0)]
    mended, context = certificate(tmp_path, "127.0.0.1")
    with Server(PLAYED[kind](), context) as server:
        use(stage, server, ca_file=str(mended))
        stage.later()
        while stage.dispatched("--lane", lane)["claimed"]:
            stage.later()
        assert {row[0] for row in stage.sql("SELECT state FROM notify_delivery")} == {"accepted"}


def test_a_lost_answer_is_settled_as_far_as_the_provider_can_prove(stage: Stage) -> None:
    """The reset after acceptance leaves doubt in the ledger, and no second request is made by the run."""
    with Server(Telnyx()) as server:
        server.provider.script.append(Answer(fault="reset", after=True))
        texts_by(stage, server)
        stage.bulk(text(1))
        stage.dispatched("--lane", "sms", ambiguous=1)
        assert stage.delivery(1, "state, reason") == ("ambiguous", "reply_lost")
        assert len(server.provider.submissions) == 1


def test_a_log_of_everything_holds_neither_key_nor_number(stage: Stage) -> None:
    """At the level `debug`, where the libraries below would write requests."""
    with Server(Twilio()) as server:
        server.provider.script.append(twilio_server.error(21211))
        texts_by(stage, server)
        stage.bulk(*numbers(2))
        done = stage.told("dispatch", "--lane", "sms", "--log-level", "debug")
        clean(stage, done)
        assert "Basic" not in done.err
        assert "+4477" not in done.out + done.err
        assert "4477009000" not in done.out + done.err


def test_many_mails_go_in_few_requests(stage: Stage) -> None:
    """250 mails, at most 100 of them claimed at a time."""
    with Server(Postmark()) as server:
        mails_by(stage, server)
        stage.many(250)
        stage.dispatched(claimed=250, accepted=250)
        sizes = [len(asked.document) if asked.path == "/email/batch" else 1 for asked in server.provider.submissions]
        assert sum(sizes) == 250
        assert len(sizes) <= 10, sizes


def test_a_rate_holds_for_what_goes_together(stage: Stage) -> None:
    """50 a second, and many mails at once: no request takes more than a fifth of a second's."""
    with Server(Postmark()) as server:
        mails_by(stage, server, rate="50/s")
        stage.many(30)
        stage.dispatched(claimed=30, accepted=30)
        sizes = [len(asked.document) if asked.path == "/email/batch" else 1 for asked in server.provider.submissions]
        assert sum(sizes) == 30
        assert max(sizes) <= 10
