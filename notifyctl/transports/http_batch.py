"""Several messages in one request, each with the outcome that was proved for it.

An answer is believed item by item. Results stand in the order of the requests; where one of them names another
recipient than the request at its place, the order is not believed, and results are matched by a recipient that stands
once on both sides. What is missing, what cannot be matched, and what shares its id with another is in doubt.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from notifyctl.clock import Deadline
from notifyctl.model import Outcome, OutcomeKind, Request
from notifyctl.transports.base import Exchange, Trouble
from notifyctl.transports.http import HttpTransport
from notifyctl.transports.http_answers import Reply

_LOST = Outcome(OutcomeKind.AMBIGUOUS, "missing_in_answer")
_TWICE = Outcome(OutcomeKind.AMBIGUOUS, "id_given_twice")
_NOT_YET = Outcome(OutcomeKind.RATE_LIMITED, "batch_refused", retry_after=0.0)  # this row only, and not charged


class BatchTransport(HttpTransport):
    """A provider that takes up to `capabilities.max_batch` messages, and `MOST_BYTES`, at once."""

    MOST_BYTES: int

    @abstractmethod
    def post_many(self, requests: Sequence[Request], exchange: Exchange) -> Reply:
        """Send several prepared requests as one, by `self.call`."""

    @abstractmethod
    def recipient(self, request: Request) -> str:
        """Whom a request is for, as results name it."""

    @abstractmethod
    def named(self, result: Any) -> str:
        """Whom a result names; "": nobody."""

    def submit(self, requests: Sequence[Request], deadline: Deadline, validity: float | None) -> list[Outcome]:
        made = chunks(requests, self.capabilities.max_batch, self.MOST_BYTES)
        return [outcome for some in made for outcome in self._together(some, deadline, validity)]

    def _together(self, requests: Sequence[Request], deadline: Deadline, validity: float | None) -> list[Outcome]:
        if len(requests) == 1:
            return [self.one(requests[0], deadline, validity)]
        exchange = Exchange(deadline)
        try:
            reply = self.post_many(requests, exchange)
        except Trouble as trouble:
            return [exchange.outcome(trouble)] * len(requests)
        results = reply.document if 200 <= reply.status < 300 else None
        if isinstance(results, list):
            found = zip(self._each(requests, results, reply), requests, strict=True)
            return [self.explain(outcome, request, deadline) for outcome, request in found]
        outcome = self.proves(reply)
        if outcome.kind is OutcomeKind.ACCEPTED:
            outcome = _LOST  # one id for all of them
        if outcome.kind is not OutcomeKind.PERMANENT_FAILURE:
            return [outcome] * len(requests)
        # refused whole, for something in it: one by one; what the deadline leaves unsent comes again
        return [_NOT_YET if deadline.passed else self.one(request, deadline, validity) for request in requests]

    def _each(self, requests: Sequence[Request], results: Sequence[Any], reply: Reply) -> list[Outcome]:
        named = [self.named(one) if isinstance(one, dict) else "" for one in results]
        places = matched([self.recipient(one) for one in requests], named)
        outcomes = [_LOST if at is None else self._item(reply, results[at]) for at in places]
        ids = Counter(one for outcome in outcomes for one in outcome.remote_ids)
        return [_TWICE if any(ids[one] > 1 for one in outcome.remote_ids) else outcome for outcome in outcomes]

    def _item(self, reply: Reply, item: Any) -> Outcome:
        """An item with an error's code is refused, whatever the status that all share."""
        refused = isinstance(item, dict) and self.read(item)[1]
        return self.proves(replace(reply, status=422) if refused else reply, item)


def matched(wanted: Sequence[str], named: Sequence[str]) -> list[int | None]:
    """For each wanted recipient the number of its result; `named`: whom each result names, "" for nobody."""
    if len(wanted) == len(named) and all(one in ("", other) for one, other in zip(named, wanted, strict=True)):
        return list(range(len(wanted)))
    asked, told = Counter(wanted), Counter(named)
    at = {name: number for number, name in enumerate(named)}
    return [at[name] if asked[name] == 1 and told[name] == 1 else None for name in wanted]


def chunks(requests: Sequence[Request], most: int, size: int) -> list[list[Request]]:
    """`requests` in their order, at most `most` of them and `size` bytes together (a larger one stands alone)."""
    made: list[list[Request]] = []
    room = 0
    for request in requests:
        room -= len(request.body) + 1
        if not made or len(made[-1]) == most or room < 0:
            made.append([])
            room = size - len(request.body) - 3
        made[-1].append(request)
    return made
