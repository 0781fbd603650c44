"""`python -m tileops_bench`."""

from __future__ import annotations

import sys

from tileops_bench.cli import main

sys.exit(main())
