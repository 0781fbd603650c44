"""`python -m tileops_tests`."""

from __future__ import annotations

import sys

from tileops_tests.cli import main

if __name__ == "__main__":
    sys.exit(main())
