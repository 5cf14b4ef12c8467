"""Times at the edges of the calendar: what the ledger can hold is taken, anything else refused row by row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.site import Site, intent


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00"])
def test_a_time_that_the_ledger_cannot_hold_is_refused_and_the_other_rows_are_enqueued(
    tmp_path: Path, migrated_url: str, time: str
) -> None:
    with Site(tmp_path, migrated_url) as site:
        site.publish()
        rows = [intent(1, at=time), intent(2, at="1970-01-01T00:00:00Z"), intent(3, at="9999-12-31T23:59:59Z")]
        (tmp_path / "rows.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = site.run("enqueue", "--from", "rows.ndjson", "--json")
        assert (done.code, done.json["enqueued"], done.json["rejected"]) == (65, 2, 1), done
        assert done.json["errors"] == [{"row": 1, "reason": "time", "field": "at"}]
        done = site.run("enqueue", "--event", "e9", "--recipient", "r-9", "--channel", "email", "--template", "note",
                        "--var", "name=x", "--expires-at", time)  # fmt: skip
        assert done.code == 65, done
        assert "1970 to 9999" in done.err
