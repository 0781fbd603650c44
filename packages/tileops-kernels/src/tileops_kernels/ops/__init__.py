"""L2: the operators a caller sees, derived from the manifest at run time."""

from __future__ import annotations
