"""The plan cache: closures by what they depend on, so that a repeated call pays for a look-up and nothing
else."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.autograd import forward_ad

__all__ = ["PlanCache", "eager_key", "is_intercepted", "param_key", "tensor_key"]

T = TypeVar("T")

# Exact types only: a subclass may override what any operation on it does.
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_jit_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled

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


def tensor_key(
    params_key: Hashable, tensors: Sequence[torch.Tensor | None], alignment: int = 1
) -> tuple[Any, ...]:
    """Return the plan key of a call: its params and all that a plan may depend on of its tensors.

    Of addresses that is what is left modulo `alignment`, and None for a tensor without memory.

    >>> tensor_key((), [torch.empty(2, 3), None])
    ((), torch.Size([2, 3]), (3, 1), torch.float32, device(type='cpu'), 0, None)
    """
    key: list[Any] = [params_key]
    for tensor in tensors:
        if tensor is None:
            key.append(None)
        else:
            address = tensor.data_ptr()
            place = address % alignment if address else None
            key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, place)
    return tuple(key)


def eager_key(params_key: Hashable, inputs: Sequence[Any], alignment: int = 1) -> tuple[Any, ...] | None:
    """Return the plan key, or None where more than the kernel has to see the call.

    That is: a mode, a transform or a tracer is active, or an input is no plain tensor, needs a gradient, is
    a lazily negated or conjugated view, or has elements and no memory of its own (one that stands for zeros,
    a wrapper, one whose storage was freed). The loop of `tensor_key` is repeated here: this is every eager
    call's path.
    """
    if (
        _dispatch_modes()
        or _function_modes()
        or _functorch_level() is not None
        or _jit_tracing() is not None
        or forward_ad._current_level >= 0
    ):
        return None
    grad = _grad_enabled()
    key: list[Any] = [params_key]
    for tensor in inputs:
        if tensor is None:
            key.append(None)
        elif type(tensor) not in _PLAIN_TYPES or (grad and tensor.requires_grad) or tensor.is_neg():
            return None
        else:
            dtype, address = tensor.dtype, tensor.data_ptr()
            if dtype.is_complex and tensor.is_conj():
                return None
            if not address and tensor.numel():
                return None
            place = address % alignment if address else None
            key += (tensor.shape, tensor.stride(), dtype, tensor.device, place)
    return tuple(key)


def is_intercepted() -> bool:
    """True while a dispatch mode, a function transform or a tracer has to see every call, whatever its
    inputs."""
    return bool(_dispatch_modes()) or _functorch_level() is not None or _jit_tracing() is not None


def param_key(value: Any) -> Hashable:
    """Return a key that tells values apart by type too: `1`, `1.0` and `True` are equal and not the same.

    >>> len({param_key(v) for v in (1, 1.0, True, [1], (1,), [1.0], [True], 0.0, -0.0)})
    9
    """
    kind = type(value)
    if kind in _ATOMS:
        return (kind, value)
    if kind is float:
        # Zeros of either sign are equal, and a NaN equals nothing: those go by their text.
        return (kind, value) if value and value == value else (kind, repr(value))
    if isinstance(value, list | tuple):
        kinds = tuple(map(type, value))
        if _ATOMS.issuperset(kinds):
            return (kind, tuple(value), kinds)
        return (kind, tuple([param_key(item) for item in value]))
    # What is left is refused by the checks, or a number of another library, whose repr has type and value.
    return (kind, repr(value))
