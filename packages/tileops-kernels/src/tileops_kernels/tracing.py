"""One thread at a time has TileLang read Python.

TileLang parses the source of every `T.prim_func` and `T.macro` that it meets: of ours while a program is
traced, of its own while a matrix product is lowered. `ast.parse` before Python 3.11.9 confuses threads that
do so at once ("AST constructor recursion depth mismatch"). Compilers run outside the lock, side by side.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["TRACING"]

# Reentrant: reading one program may mean to read another.
TRACING: Final = threading.RLock()
