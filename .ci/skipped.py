"""Fails when a test was skipped that must run here: `python .ci/skipped.py JUNIT.xml`.

With the test material beside the checkout (../shared) only the reasons below may stand; without it, its tests may be
skipped too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ALLOWED = (
    r"root may write anywhere",  # a test of file modes
    r"this machine has a configuration in /etc",
    r"postfix is started by root only",
    r"mounting a small disk is not permitted here",
    r"network namespaces are not permitted here",
)
MATERIAL = r"is not beside this checkout"


def main(junit: str) -> int:
    """Print every skipped test with its reason; 1 if one of them is not allowed to be skipped."""
    beside = (Path(__file__).parents[1] / "../shared").is_dir()
    allowed = ALLOWED if beside else (*ALLOWED, MATERIAL)
    wrong = tests = 0
    for case in ElementTree.parse(junit).iter("testcase"):
        tests += 1
        for skipped in case.iter("skipped"):
            reason = f"{skipped.get('message', '')} {skipped.text or ''}".strip()
            fine = any(re.search(pattern, reason) for pattern in allowed)
            wrong += not fine
            name = f"{case.get('classname')}.{case.get('name')}"
            print(f"{'may be' if fine else 'MUST NOT BE'} skipped: {name}: {reason}")
    print(f"{tests} tests, {wrong} skipped that must not be")
    return 1 if wrong or not tests else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
