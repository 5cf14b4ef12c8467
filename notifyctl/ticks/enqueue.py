"""Enqueue: validate, then one transaction per page. Safe to rerun and to interrupt: what is there is a duplicate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from notifyctl.errors import EXIT_DATA, EXIT_OK, EXIT_TEMPORARY, InputError, worst
from notifyctl.failpoints import reach
from notifyctl.ledger import enqueue as entering
from notifyctl.ledger import templates
from notifyctl.ledger.database import Tx
from notifyctl.ledger.enqueue import Verdict
from notifyctl.model import Intent, Template
from notifyctl.ticks.bulk import Row
from notifyctl.ticks.intents import Checked, Checker
from notifyctl.ticks.run import Run

PAGE = 500  # rows per transaction
MAX_IDS = 1000
MAX_ERRORS = 100
COUNTS = ("selected", "enqueued", "duplicate", "conflict", "suppressed", "rejected")


@dataclass(slots=True)
class Enqueue:
    """One run of `enqueue`; its counts grow page by page."""

    run: Run
    dry_run: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    ids: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    sms: tuple[str, int] | None = None
    interrupted: bool = False
    hints: dict[str, str] = field(default_factory=dict)  # what to do about each reason
    first_error: InputError | None = None  # for the one who enqueued a single event: the whole sentence
    _templates: dict[tuple[str, str | None], Template | None] = field(default_factory=dict)

    def __call__(self, rows: Iterable[Row]) -> int:
        """Enqueue all rows; returns the exit code."""
        checker = Checker(self.run.config, self.run.keys, self.run.ledger.now())
        source = iter(rows)
        with self.run.draining():
            while page := list(islice(source, PAGE)):
                checker.now = self.run.ledger.now()
                self._page(checker, page)
                if self.run.signalled:
                    self.interrupted = True
                    break
        code = worst(
            EXIT_DATA if self.counts["rejected"] or self.counts["conflict"] else EXIT_OK,
            EXIT_TEMPORARY if self.interrupted else EXIT_OK,
        )
        self.run.close_record(code, {name: self.counts[name] for name in COUNTS})
        return code

    def _page(self, checker: Checker, page: list[Row]) -> None:
        known = len(self.errors)
        self._take(checker, page)
        # a row may be refused when it is read, checked or entered; people look for it by its number
        self.errors = [*self.errors[:known], *sorted(self.errors[known:], key=lambda e: e["row"])][:MAX_ERRORS]

    def _take(self, checker: Checker, page: list[Row]) -> None:
        intents: list[tuple[int, Intent]] = []
        for row in page:
            try:
                if row.error:
                    raise row.error
                found = checker.read(row.values)
            except InputError as error:
                self.counts["selected"] += 1
                self._reject(row.number, error.reason, error.field)
                self._explain(error)
                continue
            self.counts["selected"] += len(found)
            intents += [(row.number, intent) for intent in found]
        self._load({(intent.template, intent.template_version) for _, intent in intents})
        checked: list[tuple[int, Checked]] = []
        for number, intent in intents:
            try:
                template = self._templates.get((intent.template, intent.template_version))
                checked.append((number, checker.check(intent, template)))
            except InputError as error:
                self._reject(number, error.reason, error.field)
                self._explain(error)
        if checked:
            self.sms = checked[-1][1].sms
        self._enter(checked)

    def _load(self, wanted: set[tuple[str, str | None]]) -> None:
        missing = wanted - self._templates.keys()
        if missing:
            found = self.run.ledger.read(lambda tx: templates.load_many(tx, missing))
            self._templates.update({pair: found.get(pair) for pair in missing})

    def _enter(self, checked: list[tuple[int, Checked]]) -> None:
        entries = [c.entry for _, c in checked]

        def work(tx: Tx) -> list[Verdict]:
            self.run.open_record(tx)
            verdicts = entering.enqueue(tx, entries, run=self.run.id)
            reach("enqueue.page")
            return verdicts

        if self.dry_run:
            verdicts = self.run.ledger.read(
                lambda tx: entering.enqueue(tx, entries, run=self.run.id, dry_run=True)
            )
        else:
            verdicts = self.run.ledger.transact(work)
            reach("enqueue.committed")
            self.run.recorded = True
        for (number, _), verdict in zip(checked, verdicts, strict=True):
            if verdict.kind == "rejected":
                self._reject(number, verdict.reason, verdict.field)
                continue
            self.counts[verdict.kind] += 1
            if verdict.kind == "conflict":
                self._note(number, "conflict", verdict.field)
            if verdict.id is not None and len(self.ids) < MAX_IDS:
                self.ids.append(verdict.id)

    def _explain(self, error: InputError) -> None:
        self.first_error = self.first_error or error
        if error.hint:
            self.hints.setdefault(error.reason, f"{error.reason}: {error.hint}")

    def _reject(self, row: int, reason: str, field: str) -> None:
        self.counts["rejected"] += 1
        self._note(row, reason, field)

    def _note(self, row: int, reason: str, field: str) -> None:
        self.errors.append({"row": row, "reason": reason, "field": field})

    def document(self) -> dict[str, Any]:
        """The JSON of `enqueue`."""
        sms = None if self.sms is None else {"encoding": self.sms[0], "segments": self.sms[1]}
        return {
            "run": self.run.id if self.run.recorded else None,
            **{name: self.counts[name] for name in COUNTS},
            "sms": sms,
            "ids": self.ids,
            "errors": self.errors,
        }
