"""The plan cache: closures by what they depend on, so that a repeated call pays for a look-up and nothing
else."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch

__all__ = ["PlanCache", "param_key", "tensor_key"]

T = TypeVar("T")

_ATOMS = frozenset({int, bool, str, type(None), torch.dtype})


class PlanCache(Generic[T]):
    """Bounded, thread-safe, least-recently-used mapping whose hits take no lock.

    Two generations: a hit in the young one is a single dict look-up; a hit in the old one moves the plan to
    the young one; when the young one is full it becomes the old one and what nobody asked for since is
    dropped. So at most `2 * capacity` plans are held, and the `capacity` most recently used ones always are.

    >>> cache = PlanCache(capacity=2)
    >>> for key in "abc": cache.put(key, key.upper())
    >>> cache.get("a"), len(cache)
    ('A', 3)
    """

    def __init__(self, capacity: int = 512) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, expected at least 1")
        self.capacity = capacity
        self._young: dict[Hashable, T] = {}
        self._old: dict[Hashable, T] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        plan = self._young.get(key)
        if plan is None:
            plan = self._old.get(key)
            if plan is not None:
                self.put(key, plan)
        return plan

    def put(self, key: Hashable, plan: T) -> None:
        with self._lock:
            if key not in self._young and len(self._young) >= self.capacity:
                self._old, self._young = self._young, {}
            self._young[key] = plan
            self._old.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._young, self._old = {}, {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._young) + len(self._old)


def tensor_key(tensors: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """Return everything about tensors that a plan may depend on, short of their addresses.

    >>> tensor_key([torch.empty(2, 3), None])
    ((torch.Size([2, 3]), (3, 1), torch.float32, device(type='cpu')), None)
    """
    return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def param_key(value: Any) -> Hashable:
    """Return a key that tells param values apart by type too: `1`, `1.0` and `True` are equal and not the
    same.

    >>> len({param_key(v) for v in (1, 1.0, True, [1], (1,), [1.0], 0.0, -0.0)})
    8
    """
    kind = type(value)
    if kind in _ATOMS:
        return (kind, value)
    if kind is float:
        return (kind, value.hex())
    if isinstance(value, list | tuple):
        return (kind, tuple([param_key(item) for item in value]))
    # What is left is refused by the checks, or a number of another library (numpy), whose repr has type and
    # value.
    return (kind, repr(value))
