"""``python -m tileops_manifest``."""

from __future__ import annotations

import sys

from tileops_manifest.cli import main

sys.exit(main())
