"""Imports TileLang with its own files below our cache directory; whatever needs TVM comes after this module.

TileLang creates its cache directory when imported, in the home directory unless ``$TILELANG_CACHE_DIR``
says otherwise, and cannot be imported where that fails. Where ours cannot be written it gets a temporary one,
so that importing works and the first compilation can say what is wrong.
"""

from __future__ import annotations

import os
import tempfile

from . import cache
from .errors import CacheError

_VARIABLE = "TILELANG_CACHE_DIR"
_stand_in: tempfile.TemporaryDirectory[str] | None = None  # removed when the interpreter exits

if _VARIABLE not in os.environ:
    try:
        os.environ[_VARIABLE] = str(cache.ensure_directory("tilelang"))
    except CacheError:
        _stand_in = tempfile.TemporaryDirectory(prefix="tileops-tilelang-")
        os.environ[_VARIABLE] = _stand_in.name

import tilelang  # noqa: E402, F401  (it also makes `tvm` importable)
