"""What reductions keep of the elements they have seen, independent of the axis they walk.

An accumulator takes chunks of values held in registers. Its states are fragments of shape (rows, lanes,
width): `width` is 1 for rows, whose vectors lie along the reduced axis, and a vector for columns. Values of a
chunk are first reduced within a thread, then merged into its state: once per chunk, not per element.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.column_tile import ColumnTile, column_fold
from tileops_kernels.kernels.elementwise_expressions import math_for
from tileops_kernels.kernels.reduce_table import COMBINE, REDUCTIONS, lifted
from tileops_kernels.kernels.rowwise_tile import RowTile, Tile, row_fold


@dataclass(frozen=True)
class Walk:
    """Where a block is along the reduced axis.

    Attributes:
        exists: `(chunk, u, row, lane)` -> condition under which that vector is part of the block.
        index: `(chunk, u, row, lane, v)` -> index of an element along the reduced axis.
        held: `(chunk, row, lane)` -> elements of a chunk that a thread combines into one state.
        counted: `(row, lane)` -> the same over all chunks.
        size: elements that the block reduces to one.
    """

    exists: Callable[..., Any]
    index: Callable[..., Any]
    held: Callable[..., Any]
    counted: Callable[..., Any]
    size: Any


def constant(value: float | int, dtype: str) -> Any:
    """Return a number as an element of any dtype; infinities have no literal of their own."""
    if math.isinf(value):
        return -T.infinity(dtype) if value < 0 else T.infinity(dtype)
    return tirx.const(value, dtype)


def walk_along(
    tile: Tile, steps: Callable, per_step: int, *, exists: Callable, index: Callable, size: Any
) -> Walk:
    """Return the walk of a tile that takes `steps(row, lane)` steps in all, of `per_step` elements each."""
    return Walk(
        exists=exists,
        index=index,
        held=lambda chunk, i, l: T.min(T.max(steps(i, l) - chunk * tile.unroll, 0), tile.unroll) * per_step,
        counted=lambda i, l: steps(i, l) * per_step,
        size=size,
    )


@dataclass(frozen=True)
class Accumulator:
    """One kind of state.

    Attributes:
        states: dtypes of the states, in the order they are written.
        neutral: the element that changes no state.
        allocate: `() -> fragments`.
        start: macro `(fragments)`.
        update: macro `(fragments, values, chunk, walk)`; values that do not exist are `neutral`.
        fold: macro `(fragments, totals, walk)`: one total per state and output.
        allocate_totals: `() -> totals`, to be indexed by row, or by column.
    """

    states: tuple[str, ...]
    neutral: float | int
    allocate: Callable[[], list]
    start: Any
    update: Any
    fold: Any
    allocate_totals: Callable[[], list]


def _fold(tile: Tile, combine: str, dtype: str, identity: float, width: int):
    if isinstance(tile, ColumnTile):
        return column_fold(tile, combine, dtype, identity)
    return row_fold(tile, combine, dtype, identity, width)


def _totals(tile: Tile, *dtypes: str) -> Callable[[], list]:
    if isinstance(tile, ColumnTile) and tile.rows == 1:

        def of_threads() -> list:
            totals = [T.alloc_fragment((tile.columns,), dtype) for dtype in dtypes]
            T.annotate_layout({total: tile.column_layout() for total in totals})
            return totals

        return of_threads
    if isinstance(tile, ColumnTile):
        return lambda: [T.alloc_shared((tile.columns,), dtype) for dtype in dtypes]
    return lambda: [T.alloc_fragment((tile.rows,), dtype) for dtype in dtypes]


def single(tile: Tile, op: str, dtype: str) -> Accumulator:
    """One reduction of the table; `dtype` as `lifted` takes it."""
    reduction = REDUCTIONS[op]
    if reduction.elements and dtype in ("float16", "bfloat16"):
        return narrow_extreme(tile, op, dtype)
    combine = COMBINE[reduction.combine]
    fold_state = _fold(tile, reduction.combine, reduction.state, reduction.identity, tile.vec)

    def allocate() -> list:
        return [T.alloc_fragment(tile.lane_shape, reduction.state)]

    @T.macro
    def start(states):
        T.annotate_layout({states[0]: tile.lane_layout(tile.vec)})
        T.fill(states[0], tirx.const(reduction.identity, reduction.state))

    @T.macro
    def update(states, values, chunk, walk):
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                states[0][i, l, v] = combine(
                    states[0][i, l, v],
                    lifted(op, dtype, values[u, i, l, v], walk.index(chunk, u, i, l, v)),
                )

    @T.macro
    def fold(states, totals, walk):
        fold_state(states[0], totals[0])

    neutral = reduction.identity if dtype == "state" else reduction.neutral
    return Accumulator(
        (reduction.state,), neutral, allocate, start, update, fold, _totals(tile, reduction.state)
    )


@dataclass(frozen=True)
class _Pair:
    """What accumulators of two float32 states share: shapes, and the reduction of a chunk within threads."""

    tile: Tile

    @property
    def width(self) -> int:
        return 1 if isinstance(self.tile, RowTile) else self.tile.vec

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.tile.rows, self.tile.lanes, self.width)

    @property
    def per_step(self) -> int:
        """Elements that one step adds to a state."""
        return self.tile.vec // self.width

    def at(self, v):
        """Return where the state of element `v` of a vector is."""
        return 0 if self.width == 1 else v

    def total(self, i, l, v):
        """Return where the total of a state is."""
        return i if isinstance(self.tile, RowTile) else l * self.tile.vec + v

    def allocate(self) -> list:
        return [T.alloc_fragment(self.shape, "float32") for _ in range(2)]

    def combined(self, combine: str):
        """Return a macro `(partial[rows, lanes, vec], state)` over the elements that share a state."""
        op = COMBINE[combine]

        @T.macro
        def macro(partial, state):
            for i, l, v in T.Parallel(*self.shape):
                state[i, l, v] = partial[i, l, v]
            if self.per_step > 1:
                for k in T.unroll(1, self.per_step):
                    for i, l, v in T.Parallel(*self.shape):
                        state[i, l, v] = op(state[i, l, v], partial[i, l, k])

        return macro


def narrow_extreme(tile: Tile, op: str, dtype: str) -> Accumulator:
    """Maximum or minimum of 16-bit floats, two in an instruction: the elements of a chunk that share a state
    are combined as they are, and one of them is lifted."""
    reduction, pair = REDUCTIONS[op], _Pair(tile)
    combine, extreme = COMBINE[reduction.combine], COMBINE[reduction.elements]
    within = pair.combined(reduction.elements)
    fold_state = _fold(tile, reduction.combine, reduction.state, reduction.identity, pair.width)

    def allocate() -> list:
        return [T.alloc_fragment(pair.shape, reduction.state)]

    @T.macro
    def start(states):
        T.annotate_layout({states[0]: tile.lane_layout(pair.width)})
        T.fill(states[0], tirx.const(reduction.identity, reduction.state))

    @T.macro
    def update(states, values, chunk, walk):
        partial = T.alloc_fragment(tile.lane_shape, dtype)
        of_chunk = T.alloc_fragment(pair.shape, dtype)
        T.annotate_layout({partial: tile.lane_layout(tile.vec)})
        T.fill(partial, constant(reduction.neutral, dtype))
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                partial[i, l, v] = extreme(partial[i, l, v], reduction.before(values[u, i, l, v]))
        within(partial, of_chunk)
        for i, l, v in T.Parallel(*pair.shape):
            states[0][i, l, v] = combine(states[0][i, l, v], lifted(op, dtype, of_chunk[i, l, v], 0))

    @T.macro
    def fold(states, totals, walk):
        fold_state(states[0], totals[0])

    return Accumulator(
        (reduction.state,),
        reduction.neutral,
        allocate,
        start,
        update,
        fold,
        _totals(tile, reduction.state),
    )


def mean_of(before: Any, values: Any, share: Any) -> Any:
    """Return the mean of two groups by their means and the share of the second one; infinite means add up."""
    infinity = T.infinity("float32")
    infinite = tirx.any(T.abs(before) == infinity, T.abs(values) == infinity)
    return tirx.Select(infinite, before + values, before + (values - before) * share)


def between(before: Any, values: Any, weight: Any) -> Any:
    """Return what two groups add to their squared deviations by lying apart, from their means. Weighed before
    it is squared: a square out of range times a weight of 0 would be no number."""
    return (values - before) * weight * (values - before)


def moments(tile: Tile) -> Accumulator:
    """Sum of squared deviations, and mean.

    Each chunk's deviations are taken about its own finished mean and merged by the rule of Chan, Golub and
    LeVeque: nothing cancels, however large the mean, at about four operations per element.
    """
    pair = _Pair(tile)
    sum_within, sum_of = pair.combined("sum"), _fold(tile, "sum", "float32", 0.0, pair.width)

    def held(chunk, walk, i, l):
        return T.cast(walk.held(chunk, i, l), "float32")

    def counted(walk, i, l):
        return T.cast(walk.counted(i, l), "float32")

    @T.macro
    def start(states):
        T.annotate_layout({state: tile.lane_layout(pair.width) for state in states})
        T.clear(states[0])
        T.clear(states[1])

    @T.macro
    def update(states, values, chunk, walk):
        deviation, mean = states
        partial = T.alloc_fragment(tile.lane_shape, "float32")
        chunk_mean = T.alloc_fragment(pair.shape, "float32")
        chunk_deviation = T.alloc_fragment(pair.shape, "float32")
        T.annotate_layout({partial: tile.lane_layout(tile.vec)})
        T.clear(partial)
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                partial[i, l, v] += T.cast(values[u, i, l, v], "float32")
        sum_within(partial, chunk_mean)
        for i, l, v in T.Parallel(*pair.shape):
            chunk_mean[i, l, v] *= T.float32(1) / T.max(held(chunk, walk, i, l), T.float32(1))
        T.clear(partial)
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                if walk.exists(chunk, u, i, l):
                    partial[i, l, v] += (
                        T.cast(values[u, i, l, v], "float32") - chunk_mean[i, l, pair.at(v)]
                    ) * (T.cast(values[u, i, l, v], "float32") - chunk_mean[i, l, pair.at(v)])
        sum_within(partial, chunk_deviation)
        for i, l, v in T.Parallel(*pair.shape):
            before = T.cast(chunk * (tile.unroll * pair.per_step), "float32")
            share = held(chunk, walk, i, l) / T.max(before + held(chunk, walk, i, l), T.float32(1))
            deviation[i, l, v] += chunk_deviation[i, l, v] + between(
                mean[i, l, v], chunk_mean[i, l, v], before * share
            )
            mean[i, l, v] = mean_of(mean[i, l, v], chunk_mean[i, l, v], share)

    @T.macro
    def fold(states, totals, walk):
        deviation, mean = states
        weighted = T.alloc_fragment(pair.shape, "float32")
        for i, l, v in T.Parallel(*pair.shape):
            weighted[i, l, v] = mean[i, l, v] * (counted(walk, i, l) / T.cast(walk.size, "float32"))
        sum_of(weighted, totals[1])
        for i, l, v in T.Parallel(*pair.shape):
            weighted[i, l, v] = deviation[i, l, v] + (
                mean[i, l, v] - totals[1][pair.total(i, l, v)]
            ) * counted(walk, i, l) * (mean[i, l, v] - totals[1][pair.total(i, l, v)])
        sum_of(weighted, totals[0])

    return Accumulator(
        ("float32",) * 2, 0.0, pair.allocate, start, update, fold, _totals(tile, "float32", "float32")
    )


def whole_moments(tile: Tile) -> Accumulator:
    """Sum of squared deviations, and mean, of what one chunk holds: deviations are taken about the finished
    mean, and nothing is merged."""
    pair = _Pair(tile)
    sum_within, sum_of = pair.combined("sum"), _fold(tile, "sum", "float32", 0.0, pair.width)
    allocate_totals = _totals(tile, "float32", "float32")

    def allocate() -> list:
        return [T.alloc_fragment(pair.shape, "float32"), *_totals(tile, "float32")()]

    @T.macro
    def start(states):
        T.annotate_layout({states[0]: tile.lane_layout(pair.width)})

    @T.macro
    def update(states, values, chunk, walk):
        deviation, mean = states
        partial = T.alloc_fragment(tile.lane_shape, "float32")
        T.annotate_layout({partial: tile.lane_layout(tile.vec)})
        T.clear(partial)
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                partial[i, l, v] += T.cast(values[u, i, l, v], "float32")
        sum_within(partial, deviation)
        for i, l, v in T.Parallel(*pair.shape):
            # Scaled first: the sum of all may be out of range where the mean is not.
            deviation[i, l, v] *= T.float32(1) / T.cast(walk.size, "float32")
        sum_of(deviation, mean)
        T.clear(partial)
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                if walk.exists(chunk, u, i, l):
                    partial[i, l, v] += (
                        T.cast(values[u, i, l, v], "float32") - mean[pair.total(i, l, v)]
                    ) * (T.cast(values[u, i, l, v], "float32") - mean[pair.total(i, l, v)])
        sum_within(partial, deviation)

    @T.macro
    def fold(states, totals, walk):
        T.copy(states[1], totals[1])
        sum_of(states[0], totals[0])

    return Accumulator(("float32",) * 2, 0.0, allocate, start, update, fold, allocate_totals)


def finite_or_zero(maximum):
    """Return the value exponents are taken relative to: the maximum, or 0 where it is infinite."""
    return tirx.Select(T.abs(maximum) == T.infinity("float32"), T.float32(0), maximum)


def log_sum(tile: Tile, dtype: str, *, whole: bool = False) -> Accumulator:
    """Maximum, and sum of exponentials relative to it; the sum is rescaled once per chunk, and not at all if
    one chunk is the `whole`."""
    pair = _Pair(tile)
    exp = math_for(dtype).exp
    max_within, sum_within = pair.combined("max"), pair.combined("sum")
    max_of = _fold(tile, "max", "float32", -math.inf, pair.width)
    sum_of = _fold(tile, "sum", "float32", 0.0, pair.width)

    @T.macro
    def start(states):
        T.annotate_layout({state: tile.lane_layout(pair.width) for state in states})
        T.fill(states[0], -T.infinity("float32"))
        T.clear(states[1])

    @T.macro
    def update(states, values, chunk, walk):
        maximum, total = states
        partial = T.alloc_fragment(tile.lane_shape, "float32")
        of_chunk = T.alloc_fragment(pair.shape, "float32")
        shift = T.alloc_fragment(pair.shape, "float32")
        T.annotate_layout({partial: tile.lane_layout(tile.vec)})
        T.fill(partial, -T.infinity("float32"))
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                partial[i, l, v] = T.max(partial[i, l, v], T.cast(values[u, i, l, v], "float32"))
        max_within(partial, of_chunk)
        for i, l, v in T.Parallel(*pair.shape):
            if not whole:
                of_chunk[i, l, v] = T.max(of_chunk[i, l, v], maximum[i, l, v])
            shift[i, l, v] = finite_or_zero(of_chunk[i, l, v])
            if not whole:
                # A state that has seen nothing has total 0 and factor exp(-inf) = 0.
                total[i, l, v] *= exp(maximum[i, l, v] - shift[i, l, v])
            maximum[i, l, v] = of_chunk[i, l, v]
        T.clear(partial)
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                partial[i, l, v] += exp(T.cast(values[u, i, l, v], "float32") - shift[i, l, pair.at(v)])
        sum_within(partial, of_chunk)
        for i, l, v in T.Parallel(*pair.shape):
            total[i, l, v] += of_chunk[i, l, v]

    @T.macro
    def fold(states, totals, walk):
        maximum, total = states
        max_of(maximum, totals[0])
        for i, l, v in T.Parallel(*pair.shape):
            total[i, l, v] *= exp(maximum[i, l, v] - finite_or_zero(totals[0][pair.total(i, l, v)]))
        sum_of(total, totals[1])

    return Accumulator(
        ("float32",) * 2, -math.inf, pair.allocate, start, update, fold, _totals(tile, "float32", "float32")
    )
