"""Many messages in one request: each gets the outcome that was proved for it, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifyctl.clock import Deadline
from notifyctl.errors import InputError
from notifyctl.model import Mailbox, Outcome, OutcomeKind, Request
from notifyctl.transports.base import Transport
from notifyctl.transports.http_batch import chunks, matched
from notifyctl.transports.http_mail import bare, written
from notifyctl.transports.registry import open_transport
from tests.transports.material import mail, settings
from tests.transports.servers import Answer, Asked, Server
from tests.transports.servers.postmark import Postmark, error

ACCEPTED, AMBIGUOUS = OutcomeKind.ACCEPTED, OutcomeKind.AMBIGUOUS
PERMANENT, UNAVAILABLE = OutcomeKind.PERMANENT_FAILURE, OutcomeKind.UNAVAILABLE
LIMITED, TEMPORARY = OutcomeKind.RATE_LIMITED, OutcomeKind.TEMPORARY_FAILURE


class Desk:
    """Postmark and a transport to it."""

    def __init__(self, provider: Postmark, transport: Transport) -> None:
        self.provider = provider
        self.transport = transport

    def submit(self, *numbers: int, seconds: float = 10.0, **more: Any) -> list[Outcome]:
        requests = [self.transport.prepare(mail(number, **more)) for number in numbers]
        return self.transport.submit(requests, Deadline.after(seconds), None)

    def paths(self) -> list[str]:
        return [asked.path for asked in self.provider.submissions]

    def change(self, how: Any) -> None:
        """The answer to the next batch, with its results changed."""

        def answer(asked: Asked) -> Answer:
            said = self.provider.accept(asked)
            return Answer(said.status, how(said.document))

        self.provider.script.append(answer)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    provider = Postmark()
    with Server(provider) as server:
        transport = open_transport(settings("postmark", tmp_path, **server.options()))
        yield Desk(provider, transport)
        transport.close()


def kinds(outcomes: list[Outcome]) -> list[OutcomeKind]:
    return [outcome.kind for outcome in outcomes]


def test_500_go_in_one_request_and_each_has_its_own_id(desk: Desk) -> None:
    outcomes = desk.submit(*range(500))
    assert desk.paths() == ["/email/batch"]
    assert kinds(outcomes) == [ACCEPTED] * 500
    found = [desk.provider.messages[outcome.remote_ids[0]]["mail"]["Metadata"]["notifyctl"] for outcome in outcomes]
    assert found == [f"key-{number}" for number in range(500)]


def test_one_goes_alone(desk: Desk) -> None:
    assert kinds(desk.submit(1)) == [ACCEPTED]
    assert desk.paths() == ["/email"]


def test_a_refused_item_costs_the_others_nothing(desk: Desk) -> None:
    desk.provider.codes = {
        "r2@example.org": 406, "r3@example.org": 300, "r4@example.org": 100, "r5@example.org": 429,
        "r6@example.org": 99999, "r7@example.org": 400,
    }  # fmt: skip
    outcomes = desk.submit(*range(1, 9))
    assert [(o.kind, o.reason) for o in outcomes] == [
        (ACCEPTED, ""), (PERMANENT, "provider_suppressed"), (PERMANENT, "message_rejected"),
        (TEMPORARY, "service_unavailable"), (LIMITED, "throttled"), (PERMANENT, "refused"),
        (UNAVAILABLE, "sender_rejected"), (ACCEPTED, ""),
    ]  # fmt: skip
    assert [o.config for o in outcomes] == [False] * 6 + [True, False]


def test_results_in_another_order_are_told_apart_by_their_recipients(desk: Desk) -> None:
    desk.provider.codes = {"r2@example.org": 300}
    desk.change(lambda items: [{"To": "r2@example.org", **one} for one in items][::-1])
    outcomes = desk.submit(1, 2, 3)
    assert kinds(outcomes) == [ACCEPTED, PERMANENT, ACCEPTED]
    for number in (1, 3):
        sent = desk.provider.messages[outcomes[number - 1].remote_ids[0]]["mail"]
        assert sent["Metadata"]["notifyctl"] == f"key-{number}"


def test_a_result_that_is_missing_is_doubt_and_no_other_takes_its_place(desk: Desk) -> None:
    desk.change(lambda items: [items[0], items[2]])
    outcomes = desk.submit(1, 2, 3)
    assert kinds(outcomes) == [ACCEPTED, AMBIGUOUS, ACCEPTED]
    assert outcomes[1].reason == "missing_in_answer"
    assert desk.provider.messages[outcomes[2].remote_ids[0]]["mail"]["Metadata"]["notifyctl"] == "key-3"


def test_results_that_name_nobody_are_believed_only_in_full_number(desk: Desk) -> None:
    def nameless(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in one.items() if name != "To"} for one in items]

    desk.change(nameless)
    assert kinds(desk.submit(1, 2, 3)) == [ACCEPTED] * 3
    desk.change(lambda items: nameless(items)[1:])
    assert kinds(desk.submit(4, 5, 6)) == [AMBIGUOUS] * 3


def test_an_id_that_two_items_share_proves_neither(desk: Desk) -> None:
    desk.change(lambda items: [items[0], {**items[1], "MessageID": items[0]["MessageID"]}, items[2]])
    outcomes = desk.submit(1, 2, 3)
    assert kinds(outcomes) == [AMBIGUOUS, AMBIGUOUS, ACCEPTED]
    assert outcomes[0].reason == "id_given_twice"


@pytest.mark.parametrize("twice", [[0, 0, 1, 2], [0, 1, 2, 2]])
def test_a_result_that_comes_twice_proves_nothing_of_its_item(desk: Desk, twice: list[int]) -> None:
    desk.change(lambda items: [items[at] for at in twice])
    outcomes = desk.submit(1, 2, 3)
    assert kinds(outcomes) == [AMBIGUOUS if twice.count(at) > 1 else ACCEPTED for at in range(3)]


@pytest.mark.parametrize("item", [None, 7, "no", [], {}, {"ErrorCode": 0}, {"MessageID": "a b", "ErrorCode": 0}])
def test_a_result_that_cannot_be_read_is_doubt(desk: Desk, item: object) -> None:
    desk.change(lambda items: [items[0], item, items[2]])
    assert kinds(desk.submit(1, 2, 3)) == [ACCEPTED, AMBIGUOUS, ACCEPTED]


@pytest.mark.parametrize("document", [{}, "no", None, 7, {"MessageID": "b7bc"}])
def test_an_answer_that_is_no_list_is_doubt_for_all(desk: Desk, document: object) -> None:
    desk.provider.script.append(Answer(200, body=json.dumps(document).encode()))
    outcomes = desk.submit(1, 2)
    assert {outcome.kind for outcome in outcomes} <= {AMBIGUOUS}


def test_a_batch_whose_answer_is_lost_is_doubt_for_all_and_found_by_each_key(desk: Desk) -> None:
    desk.provider.script.append(Answer(fault="reset", after=True))
    assert kinds(desk.submit(1, 2, 3)) == [AMBIGUOUS] * 3
    assert len(desk.provider.submissions) == 1, "never sent again by the transport"
    found = {str(desk.transport.find(f"key-{number}")) for number in (1, 2, 3)}
    assert len(found) == 3


def test_a_batch_refused_whole_goes_one_by_one(desk: Desk) -> None:
    """402: one item's JSON is broken, and Postmark takes none of them."""
    desk.provider.script.append(error(402))
    desk.provider.codes = {"r2@example.org": 300}
    assert kinds(desk.submit(1, 2, 3)) == [ACCEPTED, PERMANENT, ACCEPTED]
    assert desk.paths() == ["/email/batch", "/email", "/email", "/email"]


def test_what_is_left_of_a_refused_batch_at_the_deadline_is_not_charged(desk: Desk) -> None:
    desk.provider.script.extend([error(402), Answer(fault="hang")])
    outcomes = desk.submit(1, 2, 3, seconds=0.5)
    assert kinds(outcomes) == [AMBIGUOUS, LIMITED, LIMITED]
    assert not outcomes[1].charged
    assert (outcomes[1].reason, outcomes[1].scope.value) == ("batch_refused", "destination")
    assert len(desk.provider.submissions) == 2


@pytest.mark.parametrize(("code", "kind"), [(10, UNAVAILABLE), (405, UNAVAILABLE), (100, TEMPORARY), (429, LIMITED)])
def test_a_batch_refused_for_the_account_is_not_tried_one_by_one(desk: Desk, code: int, kind: OutcomeKind) -> None:
    desk.provider.script.append(error(code))
    assert kinds(desk.submit(1, 2, 3)) == [kind] * 3
    assert desk.paths() == ["/email/batch"]


@pytest.mark.parametrize(
    ("why", "origin", "reason"),
    [
        ("HardBounce", "Recipient", "invalid_recipient"),
        ("SpamComplaint", "Recipient", "opted_out"),
        ("ManualSuppression", "Recipient", "opted_out"),
        ("ManualSuppression", "Customer", "provider_suppressed"),
        ("Something new", "Admin", "provider_suppressed"),
    ],
)
def test_postmarks_own_list_says_why_it_refuses(desk: Desk, why: str, origin: str, reason: str) -> None:
    desk.provider.suppressed["r2@example.org"] = (why, origin)
    for outcomes in (desk.submit(1, 2, 3), desk.submit(2)):
        outcome = outcomes[len(outcomes) // 2]
        assert (outcome.kind, outcome.reason, outcome.code) == (PERMANENT, reason, "406")


@pytest.mark.parametrize("answer", [Answer(500), Answer(200, {"Suppressions": []}), Answer(200, [7]), Answer(404, {})])
def test_a_list_that_does_not_answer_suppresses_nobody(desk: Desk, answer: Answer) -> None:
    desk.provider.suppressed["r2@example.org"] = ("HardBounce", "Recipient")
    desk.provider.tell = lambda asked: answer  # type: ignore[method-assign]
    assert [o.reason for o in desk.submit(2)] == ["provider_suppressed"]


def test_a_mail_has_all_its_parts_and_nothing_is_tracked(desk: Desk) -> None:
    desk.submit(
        1, headers=(("List-Unsubscribe", "<https://example.com/u>"),), reply_to=Mailbox("help@example.com"),
        files=((b"%PDF", "application/pdf", "Rechnung März.pdf"),),
    )  # fmt: skip
    assert desk.provider.submissions[0].document == {
        "From": '"Shop" <shop@example.com>', "To": "r1@example.org", "Subject": "test", "ReplyTo": "help@example.com",
        "Headers": [
            {"Name": "List-Unsubscribe", "Value": "<https://example.com/u>"},
            {"Name": "Auto-Submitted", "Value": "auto-generated"},
        ],
        "Attachments": [{"Name": "Rechnung März.pdf", "Content": "JVBERg==", "ContentType": "application/pdf"}],
        "Metadata": {"notifyctl": "key-1"}, "TrackOpens": False, "TrackLinks": "None", "MessageStream": "outbound",
    }  # fmt: skip


def test_an_address_in_another_script_is_refused_before_anything_is_sent(desk: Desk) -> None:
    with pytest.raises(InputError) as caught:
        desk.transport.prepare(mail(1, "grüße@example.org"))
    assert caught.value.reason == "smtputf8_unsupported"
    assert "grüße" not in str(caught.value)


@given(st.text(max_size=30).filter(lambda text: "\n" not in text))
def test_a_name_stays_one_quoted_name(name: str) -> None:
    text = written(Mailbox("jane@example.com", name))
    assert bare(text) == "jane@example.com"
    if name:
        quoted = text.removesuffix(" <jane@example.com>")
        assert quoted[0] == quoted[-1] == '"'
        assert quoted[1:-1].replace("\\\\", "").replace('\\"', "").count('"') == 0


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 7), st.integers(400, 900))
def test_batches_keep_order_and_limits(sizes: list[int], most: int, size: int) -> None:
    requests = [Request(str(number), (), b"x" * length) for number, length in enumerate(sizes)]
    made = chunks(requests, most, size)
    assert [request for some in made for request in some] == requests
    for some in made:
        assert 1 <= len(some) <= most
        body = b"[" + b",".join(request.body for request in some) + b"]"
        assert len(body) <= size or len(some) == 1


@given(st.lists(st.sampled_from("abcd"), max_size=8), st.lists(st.sampled_from(["a", "b", "c", "e", ""]), max_size=8))
def test_a_result_is_never_given_to_two_and_never_to_somebody_it_does_not_name(
    wanted: list[str], named: list[str]
) -> None:
    places = [at for at in matched(wanted, named) if at is not None]
    assert len(places) == len(set(places))
    for name, at in zip(wanted, matched(wanted, named), strict=True):
        assert at is None or named[at] in ("", name)
