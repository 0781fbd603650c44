"""Imports TileLang with its own files below our cache directory; every module of the targets that needs TVM
comes after this one.

TileLang creates its cache directory as it is imported, in the home directory unless ``$TILELANG_CACHE_DIR``
says otherwise.
"""

from __future__ import annotations

import os

from . import cache

os.environ.setdefault("TILELANG_CACHE_DIR", str(cache.root() / "tilelang"))
try:
    import tilelang  # noqa: F401  (it also makes `tvm` importable)
except OSError as error:
    raise cache.unusable(cache.root() / "tilelang", error) from error
