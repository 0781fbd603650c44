"""TileLang kernels and the operators built on them."""

from __future__ import annotations

__version__ = "0.1.0"
