"""Begin sends to nobody's former address: what was composed for one goes back untouched and is composed anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from notifyctl.ledger.begin import Begun, Held
from tests.ledger.workbench import Workbench, workbench


@pytest.fixture
def bench(migrated_url: str) -> Iterator[Workbench]:
    """One owner."""
    with workbench(migrated_url) as opened:
        yield opened


def set_address(bench: Workbench, address: str) -> None:
    bench.execute(
        "INSERT INTO notify_endpoint (recipient_id, channel, address) VALUES ('e0', 'email', :address)", address=address
    )


@pytest.mark.parametrize("change", ["none", "other", "back", "erased", "another channel", "named"])
def test_an_address_that_is_not_current_any_more_does_not_begin(bench: Workbench, change: str) -> None:
    set_address(bench, "a@example.com")
    bench.deliveries(1, **({"destination": "'c@example.com'"} if change == "named" else {}))
    (delivery,) = bench.claim()
    if change in ("other", "back", "named"):
        set_address(bench, "b@example.com")
    if change == "back":  # a new row is a new endpoint: composing it once more is cheaper than to be wrong
        set_address(bench, "a@example.com")
    if change == "erased":
        bench.execute("UPDATE notify_endpoint SET address = ''")
    if change == "another channel":
        bench.execute(
            "INSERT INTO notify_endpoint (recipient_id, channel, address) VALUES ('e0', 'sms', '+12025550123')"
        )
    endpoint = None if change == "named" else delivery.current_endpoint_id
    result = bench.begin([delivery], endpoint_id=endpoint)[delivery.id]
    if change in ("none", "another channel", "named"):
        assert isinstance(result, Begun)
    else:
        assert result == Held("moved")
        assert bench.execute("SELECT count(*) FROM notify_attempt") == [(0,)]
        assert bench.state(delivery.id) == "queued"
    bench.sound()
