"""`python -m tileops_kernels`."""

from __future__ import annotations

import sys

from tileops_kernels.cli import main

sys.exit(main())
