"""`python -m notifyctl`."""

import sys

from notifyctl.cli import main

if __name__ == "__main__":
    sys.exit(main())
