"""The next release of the tool, with one more file of the schema: for what a migration does to a ledger in use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cli.rig import ROOT

# The second statement asks for the one lock that a mere reader denies on Postgres.
FILES = {
    "postgresql": """-- min_reader: 1
CREATE INDEX notify_delivery_template ON notify_delivery (template, id);
ALTER TABLE notify_delivery ADD COLUMN next_note TEXT;
""",
    "sqlite": """-- min_reader: 1
CREATE INDEX notify_delivery_template ON notify_delivery (template, id);
ALTER TABLE notify_delivery ADD COLUMN next_note TEXT;
""",
}


def next_release(folder: Path) -> dict[str, str]:
    """Make it in `folder`; returns the environment in which its command runs."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "notifyctl", folder / "notifyctl", ignore=ignore)
    shutil.copytree(ROOT / "schema", folder / "schema", ignore=ignore)
    for dialect, sql in FILES.items():
        (folder / "schema" / dialect / "0002_next.sql").write_text(sql, encoding="utf-8")
    for name in ("schema", "front"):
        module = folder / "notifyctl" / "ledger" / f"{name}.py"
        text = module.read_text(encoding="utf-8")
        assert "SCHEMA_VERSION = 1" in text
        module.write_text(text.replace("SCHEMA_VERSION = 1", "SCHEMA_VERSION = 2"), encoding="utf-8")
    return {"PATH": os.defpath, "PYTHONPATH": str(folder)}
