"""Things made once: different keys are made side by side, one key by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any


class Memo:
    """A thread-safe memo.

    >>> memo = Memo()
    >>> memo.get("a", lambda: 1), memo.get("a", lambda: 2), len(memo), "a" in memo, "b" in memo
    (1, 1, 1, True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[Hashable, tuple[threading.Lock, list[Any]]] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value under `key`; made on first use. A `make` that raises leaves nothing behind."""
        with self._lock:
            lock, cell = self._slots.setdefault(key, (threading.Lock(), []))
        if not cell:
            with lock:
                if not cell:
                    cell.append(make())
        return cell[0]

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return bool(self._slots.get(key, (None, []))[1])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._slots.clear()

    def __len__(self) -> int:
        with self._lock:
            return sum(1 for _, cell in self._slots.values() if cell)
