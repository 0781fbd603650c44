"""Functions of the expression language, each usable in rules, shapes, rooflines and ``Binding.eval``.

Dims may be opaque integers (``torch.SymInt``): only arithmetic and comparison are used on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tileops_manifest import dtypes
from tileops_manifest.errors import ExpressionError

Shape = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A language function: number of arguments, whether they are tensors, whether it reads their values."""

    call: Callable[..., Any]
    least: int
    most: int | None
    tensors: bool = False
    data: bool = False

    @property
    def doc(self) -> str:
        return (self.call.__doc__ or "").strip().splitlines()[0]


def prod(values: Shape) -> Any:
    """Product of a shape or pack; 1 for the empty one."""
    result = 1
    for value in values:
        result = result * value
    return result


def total(values: Shape) -> Any:
    """Sum of a tuple; 0 for the empty one."""
    result = 0
    for value in values:
        result = result + value
    return result


def length(values: Shape) -> int:
    """Number of values of a shape, pack or other tuple."""
    return len(values)


def least(a: Any, b: Any, *others: Any) -> Any:
    """The least of the arguments."""
    return min(a, b, *others)


def greatest(a: Any, b: Any, *others: Any) -> Any:
    """The greatest of the arguments."""
    return max(a, b, *others)


def absolute(a: Any) -> Any:
    """Magnitude of a number."""
    return abs(a)


def ceil_div(a: Any, b: Any) -> Any:
    """a / b rounded up, for integers."""
    return -(-a // b)


def ilog2(n: Any) -> int:
    """Floor of the base-2 logarithm of a positive integer."""
    if n < 1:
        raise ExpressionError(f"ilog2 needs a positive integer, got {n}")
    log = 0
    while 2 << log <= n:
        log += 1
    return log


def is_power_of_two(n: Any) -> bool:
    """True for 1, 2, 4, 8 and so on."""
    return n >= 1 and n == 1 << ilog2(n)


def isqrt(n: Any) -> int:
    """Floor of the square root of an integer >= 0."""
    if n < 0:
        raise ExpressionError(f"isqrt needs an integer >= 0, got {n}")
    # By bits, with comparisons alone: math.isqrt would convert a symbolic size.
    root, bit = 0, 1
    while bit * bit <= n:
        bit *= 2
    while bit:
        if (root + bit) * (root + bit) <= n:
            root += bit
        bit //= 2
    return root


def expand(value: Any, n: int) -> Shape:
    """An int or 1-tuple repeated to n values; a tuple of n values as it is."""
    if not isinstance(value, tuple):
        return (value,) * n
    if len(value) not in (1, n):
        raise ExpressionError(f"expected an int or {n} values, got {value}")
    return value if len(value) == n else value * n


def windows(
    sizes: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil_mode: bool = False
) -> Shape:
    """Window positions along each padded axis; ceil_mode adds one that sticks out if it begins inside."""
    return tuple(
        _positions(*axis, ceil_mode) for axis in zip(sizes, kernel, stride, padding, dilation, strict=True)
    )


def _positions(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """Starts 0, stride, ... of the padded axis at which a window fits; not positive where none does."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    # A last window may reach past the end, but not begin there: it would hold no element.
    count = ceil_div(room, stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def broadcastable(*shapes: Shape) -> bool:
    """True when the shapes broadcast together."""
    return _broadcast(shapes) is not None


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these shapes broadcast to."""
    result = _broadcast(shapes)
    if result is None:
        raise ExpressionError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
    return result


def _broadcast(shapes: tuple[Shape, ...]) -> Shape | None:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if result[axis] == 1:
                result[axis] = size
            elif not (size == 1 or size == result[axis]):
                return None
    return tuple(result)


def axes(dim: int | tuple[int, ...] | None, rank: int, empty: str = "all") -> tuple[int, ...]:
    """Non-negative, sorted axes that `dim` names; None means all, () all or (with 'none') no axis."""
    if dim is None:
        return tuple(range(rank))
    given = dim if isinstance(dim, tuple) else (dim,)
    if not given:
        return tuple(range(rank)) if empty == "all" else ()
    if not (axes_in_range(dim, rank) and axes_distinct(dim, rank)):
        raise ExpressionError(f"dim {dim} does not name distinct axes of a tensor of rank {rank}")
    return tuple(sorted(axis + rank if axis < 0 else axis for axis in given)) if rank else ()


def axes_in_range(dim: int | tuple[int, ...] | None, rank: int) -> bool:
    """True when every axis lies in [-rank, rank); a tensor of rank 0 is indexed as if its rank were 1."""
    bound = max(rank, 1)
    return dim is None or all(-bound <= axis < bound for axis in (dim if isinstance(dim, tuple) else (dim,)))


def axes_distinct(dim: int | tuple[int, ...] | None, rank: int) -> bool:
    """True when no axis is named twice."""
    if not isinstance(dim, tuple):
        return True
    return len({axis % max(rank, 1) for axis in dim}) == len(dim)


def reduced(shape: Shape, dim: int | tuple[int, ...] | None, keepdim: bool, empty: str = "all") -> Shape:
    """The shape after reducing the axes in `dim`; dim=() reduces all, or with 'none' no axis."""
    gone = axes(dim, len(shape), empty)
    if keepdim:
        return tuple(1 if axis in gone else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


def reduced_sizes(shape: Shape, dim: int | tuple[int, ...] | None, empty: str = "all") -> Shape:
    """The sizes of the axes that `dim` reduces."""
    return tuple(shape[axis] for axis in axes(dim, len(shape), empty))


def is_int(value: Any) -> bool:
    """True for an integer param value (bool is not one)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_tuple(value: Any) -> bool:
    """True for a param value that is a sequence."""
    return isinstance(value, tuple)


def is_str(value: Any) -> bool:
    """True for a param value that is a string."""
    return isinstance(value, str)


def is_finite(value: Any) -> bool:
    """True for a number that is neither infinite nor NaN."""
    return math.isfinite(value)


def triangle(n: Any) -> Any:
    """1 + 2 + ... + n, and 0 for n <= 0."""
    n = max(n, 0)
    return n * (n + 1) // 2


def causal_scores(num_queries: Any, num_keys: Any) -> Any:
    """Scores a causal attention head computes: query i sees keys j <= i + num_keys - num_queries."""
    return windowed_scores(num_queries, num_keys, -1, 0)


def windowed_scores(num_queries: Any, num_keys: Any, left: Any, right: Any) -> Any:
    """Scores of a head whose query at position p sees keys in [p - left, p + right]; -1 is no bound.

    Query i stands at position p = i + num_keys - num_queries (the last query faces the last key).
    """
    before = 0 if left < 0 else _scores_up_to(num_queries, num_keys, -left - 1)
    upto = num_queries * num_keys if right < 0 else _scores_up_to(num_queries, num_keys, right)
    return upto - before


def _scores_up_to(num_queries: Any, num_keys: Any, right: Any) -> Any:
    # Row i holds clamp(i + num_keys - num_queries + right + 1, 0, num_keys) scores. With
    # F(x) = sum of clamp(k, 0, num_keys) over k <= x = triangle(x) - triangle(x - num_keys),
    # the sum over consecutive rows is a difference of two F.
    def clamped_sum(x: Any) -> Any:
        return triangle(x) - triangle(x - num_keys)

    return clamped_sum(num_keys + right) - clamped_sum(num_keys - num_queries + right)


def touched_experts(num_tokens: Any, top_k: Any, num_experts: Any) -> Any:
    """Experts whose weights a routed layer reads when routing is balanced: min(tokens * top_k, experts)."""
    return min(num_tokens * top_k, num_experts)


def present(tensor: Any) -> bool:
    """True when an optional input was given."""
    return tensor is not None


def rank(tensor: Any) -> int:
    """Number of axes of a tensor."""
    return len(tensor.shape)


def numel(tensor: Any) -> Any:
    """Number of elements of a tensor; 0 for an optional input that was not given."""
    return 0 if tensor is None else prod(tensor.shape)


def shape_of(tensor: Any) -> Shape:
    """Shape of a tensor."""
    return tensor.shape


def dtype_of(tensor: Any) -> str:
    """Dtype name of a tensor."""
    return tensor.dtype


def varlen_cached_scores(offsets: tuple[int, ...], cached: tuple[int, ...], causal: bool) -> int:
    """Scores of a head over packed requests: request i has cached[i] tokens before its new ones.

    Its new tokens are offsets[i] .. offsets[i + 1].
    """
    right = 0 if causal else -1
    requests = zip(pairwise(offsets), cached, strict=True)
    return sum(windowed_scores(b - a, b - a + before, -1, right) for (a, b), before in requests)


def varlen_windowed_scores(
    query_offsets: tuple[int, ...], key_offsets: tuple[int, ...], left: int, right: int
) -> int:
    """Scores of a head over packed requests, each with its own queries and keys, in windows as above.

    Request i has queries query_offsets[i] .. query_offsets[i + 1] and keys alike.
    """
    queries, keys = ([end - start for start, end in pairwise(o)] for o in (query_offsets, key_offsets))
    return sum(windowed_scores(q, k, left, right) for q, k in zip(queries, keys, strict=True))


def selected_scores(num_queries: Any, first: Any, stride: Any, num_selected: Any) -> Any:
    """Scores of a causal head with at most num_selected keys a query: query i sees (first + i + 1) // stride.

    Query i stands at position first + i, and each key stands for stride positions, all of which it must be
    at or behind.
    """

    def up_to(last: Any) -> Any:
        # The sum of min(p // stride, num_selected) over positions p in 0 .. last.
        whole = min(last + 1, num_selected * stride)
        full, rest = whole // stride, whole % stride
        return stride * triangle(full - 1) + full * rest + num_selected * (last + 1 - whole)

    return up_to(first + num_queries) - up_to(first)


def sum_of(name: str, data: Any) -> Any:
    """Sum of an integer input's values: a row's, else the greatest its domain allows (parts: their total)."""
    return data.sum(name)


def values_of(name: str, data: Any) -> tuple[Any, ...]:
    """An integer input's values: a row's, else the greatest its domain allows (offsets, parts: even)."""
    return data.values(name)


FUNCTIONS: dict[str, Function] = {
    "prod": Function(prod, 1, 1),
    "sum": Function(total, 1, 1),
    "len": Function(length, 1, 1),
    "min": Function(least, 2, None),
    "max": Function(greatest, 2, None),
    "abs": Function(absolute, 1, 1),
    "ceil_div": Function(ceil_div, 2, 2),
    "ilog2": Function(ilog2, 1, 1),
    "isqrt": Function(isqrt, 1, 1),
    "is_power_of_two": Function(is_power_of_two, 1, 1),
    "expand": Function(expand, 2, 2),
    "windows": Function(windows, 5, 6),
    "broadcast": Function(broadcast, 1, None),
    "broadcastable": Function(broadcastable, 1, None),
    "axes": Function(axes, 2, 3),
    "axes_in_range": Function(axes_in_range, 2, 2),
    "axes_distinct": Function(axes_distinct, 2, 2),
    "reduced": Function(reduced, 3, 4),
    "reduced_sizes": Function(reduced_sizes, 2, 3),
    "is_int": Function(is_int, 1, 1),
    "is_tuple": Function(is_tuple, 1, 1),
    "is_str": Function(is_str, 1, 1),
    "is_finite": Function(is_finite, 1, 1),
    "is_integral": Function(dtypes.is_integral, 1, 1),
    "is_floating": Function(dtypes.is_floating, 1, 1),
    "is_complex": Function(dtypes.is_complex, 1, 1),
    "itemsize": Function(dtypes.itemsize, 1, 1),
    "fits": Function(dtypes.fits, 2, 2),
    "promote": Function(dtypes.promote, 2, None),
    "int_to_float": Function(dtypes.int_to_float, 1, 1),
    "triangle": Function(triangle, 1, 1),
    "causal_scores": Function(causal_scores, 2, 2),
    "windowed_scores": Function(windowed_scores, 4, 4),
    "varlen_cached_scores": Function(varlen_cached_scores, 3, 3),
    "varlen_windowed_scores": Function(varlen_windowed_scores, 4, 4),
    "selected_scores": Function(selected_scores, 4, 4),
    "touched_experts": Function(touched_experts, 3, 3),
    "present": Function(present, 1, 1, tensors=True),
    "rank": Function(rank, 1, 1, tensors=True),
    "numel": Function(numel, 1, 1, tensors=True),
    "shape_of": Function(shape_of, 1, 1, tensors=True),
    "dtype_of": Function(dtype_of, 1, 1, tensors=True),
    "same_as": Function(dtype_of, 1, 1, tensors=True),
    "sum_of": Function(sum_of, 1, 1, tensors=True, data=True),
    "values_of": Function(values_of, 1, 1, tensors=True, data=True),
}
