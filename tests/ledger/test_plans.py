"""Plans are pinned: no statement of a tick walks over history or over other lanes' backlog, whatever statistics say."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from notifyctl.ledger import claim as claiming
from notifyctl.ledger import gate, receipts, resolve
from notifyctl.ledger import record as recording
from notifyctl.ledger.database import Tx
from notifyctl.model import Outcome, OutcomeKind, Rate, Receipt, ReceiptStatus
from tests.ledger.workbench import Workbench, workbench

HISTORY = 4000
SMALL = {
    "notify_meta",
    "notify_gate",
    "notify_pace",
    "notify_template",
    "notify_cursor",
}  # a handful of rows, by their nature


@pytest.fixture
def explained(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A workbench with settled history, whose every statement is explained before it runs."""
    with workbench(migrated_url) as bench:
        bench.deliveries(HISTORY, prefix="old", state="'delivered'")
        bench.execute(
            "INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started, finished, "
            "outcome) SELECT id, 1, 'r', 1, 'relay', :now, :now, 'accepted' FROM notify_delivery"
        )
        bench.execute(
            "INSERT INTO notify_endpoint (recipient_id, channel, address) "
            "SELECT recipient_id, channel, id || '@x.example' FROM notify_delivery"
        )
        bench.deliveries(HISTORY, prefix="waiting", lane="bulk")
        bench.execute("ANALYZE")
        scans: list[tuple[str, str]] = []
        run = Tx._run

        def explaining(self: Tx, sql: str, parameters: dict[str, Any]) -> Any:
            for table in explain(self, run, sql, dict(parameters)):
                scans.append((table, " ".join(sql.split())[:90]))
            return run(self, sql, parameters)

        bench.scans = scans  # type: ignore[attr-defined]
        monkeypatch.setattr(Tx, "_run", explaining)
        yield bench


def explain(tx: Tx, run: Callable[..., Any], sql: str, parameters: dict[str, Any]) -> list[str]:
    """The tables that this statement reads from end to end."""
    if sql.startswith(("INSERT INTO notify_delivery", "ANALYZE")):
        return []
    if tx.dialect.name == "sqlite":
        rows, _ = run(tx, f"EXPLAIN QUERY PLAN {sql}", parameters)
        words = [str(row[3]).split() for row in rows]
        named = [(line[0], line[1]) for line in words if len(line) > 1]
        aliases = {
            "d": "notify_delivery", "p": "notify_delivery", "q": "notify_delivery", "w": "notify_work",
            "a": "notify_attempt", "r": "notify_receipt", "l": "notify_suppression", "c": "notify_cursor",
        }  # fmt: skip
        tables = [aliases.get(name, name) for verb, name in named if verb == "SCAN"]
        return [name for name in tables if name.startswith("notify_") and name not in SMALL]
    rows, _ = run(tx, f"EXPLAIN (FORMAT JSON) {sql}", parameters)
    plan = rows[0][0]
    found: list[str] = []
    stack = [json.loads(plan)[0]["Plan"] if isinstance(plan, str) else plan[0]["Plan"]]
    while stack:
        node = stack.pop()
        stack += node.get("Plans", [])
        whole = node["Node Type"] == "Seq Scan" or (
            node["Node Type"].startswith(("Index", "Bitmap Index")) and "Index Cond" not in node
        )
        if whole and node.get("Relation Name", "").startswith("notify_") and node["Relation Name"] not in SMALL:
            found.append(node["Relation Name"])
    return found


def test_no_statement_of_a_tick_walks_over_the_history(explained: Workbench) -> None:
    bench = explained
    bench.deliveries(30)
    claimed = bench.claim(20)
    claiming.renew(bench.ledger, run="run-1", owned={d.id: d.token for d in claimed}, lease=60)
    rows = [(d.id, d.token, d.due_at) for d in claimed[15:]]
    bench.ledger.transact(lambda tx: claiming.release(tx, run="run-1", rows=rows))
    limits = (("lane:email", Rate(1000, 1, "1000/s")),)
    begun = bench.begin(claimed[:15], limits=limits)
    outcomes = [
        Outcome(OutcomeKind.ACCEPTED, remote_ids=("r",)), Outcome(OutcomeKind.TEMPORARY_FAILURE, "busy"),
        Outcome(OutcomeKind.AMBIGUOUS, "reply_lost"), Outcome(OutcomeKind.PERMANENT_FAILURE, "invalid_recipient"),
    ]  # fmt: skip
    results = [bench.result(d, begun[d.id], outcomes[n % 4]) for n, d in enumerate(claimed[:12])]
    bench.record(results)
    bench.record(results)
    bench.pass_leases()
    assert bench.ledger.read(lambda tx: recording.any_lapsed(tx, [("email", "")]))
    assert len(bench.lapse()) == 3
    bench.record([bench.result(d, begun[d.id], outcomes[0]) for d in claimed[12:15]])
    bench.ledger.transact(
        lambda tx: gate.close(
            tx, "transport", "relay", "breaker", until=tx.now + timedelta(seconds=9), level=1, reason="x", actor="y"
        )
    )
    ours = {"SELECT state, count(*) FROM notify_delivery GROUP BY state", "UPDATE notify_work SET eligible_at = :past"}
    walked = [scan for scan in bench.scans if scan[1] not in ours]  # type: ignore[attr-defined]
    assert not walked, "\n".join(map(str, walked))


def test_no_statement_of_a_poll_walks_over_the_history(explained: Workbench) -> None:
    bench = explained
    bench.execute(
        "INSERT INTO notify_receipt (delivery_id, status) SELECT id, 'soft_failure' FROM notify_delivery "
        "WHERE event_id LIKE 'old%'"
    )
    bench.execute("UPDATE notify_delivery SET remote_id = 'm-' || id, wire_key = 'k-' || id, transport = 'relay', "
                  "fingerprint = 'f' WHERE event_id LIKE 'old%'")  # fmt: skip
    bench.deliveries(40)
    bench.execute("UPDATE notify_delivery SET state = 'accepted', accepted_at = :now, transport = 'relay', "
                  "remote_id = 'm-' || id, wire_key = 'k-' || id, fingerprint = 'f' WHERE lane = 'email' AND "
                  "event_id NOT LIKE 'old%'")  # fmt: skip
    bench.execute("UPDATE notify_work SET step = 'check' WHERE lane = 'email'")
    bench.execute("ANALYZE")
    bench.scans.clear()  # type: ignore[attr-defined]
    ledger = bench.ledger
    checks = []
    for only in (None, ["relay"]):
        some, _ = receipts.claim_checks(
            ledger, run="run-1", lane="email", region="", limit=20, lease=60, after=claiming.Cursor(), only=only,
            but=["broken"],
        )  # fmt: skip
        checks += some
    assert len(checks) == 40
    said = [
        Receipt(ReceiptStatus.SOFT_FAILURE, f"m-{one.id}", key=f"k-{one.id}" if one.id % 2 else "") for one in checks
    ]

    def turn(tx: Tx) -> None:
        assert receipts.match(tx, "relay", said) == [one.id for one in checks]
        known = receipts.known(
            tx, [one.id for one in checks], run="run-1", tokens={one.id: one.token for one in checks}
        )
        assert all(one.facts.owned for one in known.values())
        receipts.keep(tx, [(check.id, one) for check, one in zip(checks, said, strict=True)])
        assert set(receipts.soft_runs(tx, known).values()) == {1}
        receipts.attempts_accepted(tx, [(one.id, 1, "m") for one in checks])
        receipts.due_feeds(tx, ["relay"])
        feeds = receipts.claim_feeds(tx, {"relay": 60.0}, run="run-1")
        receipts.advance(tx, [receipts.Advance(feeds[0], "1", 60.0, False)], run="run-1")

    ledger.transact(turn)
    assert not bench.scans, "\n".join(map(str, bench.scans))  # type: ignore[attr-defined]


def test_no_statement_of_a_reconcile_walks_over_the_history(explained: Workbench) -> None:
    bench = explained
    bench.execute("UPDATE notify_delivery SET remote_id = 'm-' || id, fingerprint = 'f', transport = 'relay', "
                  "reason = 'x' WHERE event_id LIKE 'old%'")  # fmt: skip
    bench.deliveries(40)
    bench.execute("UPDATE notify_attempt SET fingerprint = 'f', remote_id = 'm'")
    bench.execute("INSERT INTO notify_attempt (delivery_id, number, run, fencing_token, transport, started, finished, "
                  "outcome, fingerprint) SELECT id, 1, 'r', 1, 'relay', :now, :now, 'ambiguous', recipient_id "
                  "FROM notify_delivery WHERE lane = 'email' AND state = 'queued'")  # fmt: skip
    bench.execute("UPDATE notify_delivery SET transport = 'relay', fingerprint = recipient_id, doubt_since = :now, "
                  "state = 'ambiguous' WHERE lane = 'email' AND state = 'queued'")  # fmt: skip
    bench.execute("UPDATE notify_work SET step = 'resolve' WHERE lane = 'email'")
    bench.execute("ANALYZE")
    bench.scans.clear()  # type: ignore[attr-defined]
    ledger, pairs = bench.ledger, [("email", "")]
    doubts, _ = resolve.claim_doubt(
        ledger, run="run-1", lane="email", region="", limit=20, lease=60, after=claiming.Cursor(), but=["broken"]
    )
    assert len(doubts) == 20

    def turn(tx: Tx) -> None:
        resolve.doubtful_transports(tx, pairs)
        later = tx.now + timedelta(seconds=60)
        assert resolve.alike(tx, [(one.id, tx.now - timedelta(hours=1), later) for one in doubts]) == set()
        assert resolve.taken_ids(tx, [(one.id, "relay", f"n-{one.id}") for one in doubts]) == set()
        assert resolve.expired(tx, pairs=pairs, limit=10) == []
        resolve.due(tx, pairs)
        resolve.overdue_transports(tx, lane="email", region="", older_than=60.0)
        resolve.overdue(tx, lane="email", region="", transport="relay", older_than=60.0)

    ledger.transact(turn)
    resolve.claim_overdue(
        ledger, run="run-1", lane="email", region="", limit=10, lease=60.0, transports=["relay"], older_than=60.0
    )
    assert not bench.scans, "\n".join(map(str, bench.scans))  # type: ignore[attr-defined]
