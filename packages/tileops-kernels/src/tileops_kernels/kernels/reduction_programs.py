"""The two programs of the reductions: along rows, and along columns of (outer, length, inner).

Neither length is compiled in: rows, columns and the reduced length are run-time sizes, so one program serves
every shape of a dtype. Long reductions are split between blocks; each split writes its states, and a later
launch finishes: no atomics, the same bits every time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T

from tileops_kernels.kernels.accumulators import Accumulator, constant, walk_along
from tileops_kernels.kernels.column_tile import ColumnTile
from tileops_kernels.kernels.rowwise_tile import RowTile
from tileops_kernels.kernels.signatures import prim_func


@dataclass(frozen=True)
class ReduceConfig:
    """Block geometry.

    Attributes:
        rows: rows of a block (for columns: threads that share a column).
        lanes: threads along the contiguous axis.
        unroll: vectors a thread has in flight.
        target_blocks: long reductions are split until the grid has about this many blocks.
    """

    rows: int
    lanes: int
    unroll: int
    target_blocks: int


# `(output, totals, number) -> value`, the output by its position.
Finish = Callable[[int, list, Any], Any]


def _written(totals: list, i: Any, k: int, finish: Finish | None, number: Any) -> Any:
    """Return what output `k` gets of the totals at `i`: the finished result, or the k-th state."""
    return totals[k][i] if finish is None else finish(k, [total[i] for total in totals], number)


# What the programs take after their tensors, before the number for `finish`.
_ROW_NUMBERS = ("num_rows", "x_step", "vectors", "parts", "part_vectors")
_COLUMN_NUMBERS = ("outer", "length", "inner", "outer_step", "row_step", "splits", "split_length")


def _program_to(name, nx, x_dtype, ny, outputs: tuple[str, ...], numbers: tuple[str, ...], body: Any) -> Any:
    """Return the program of one or two outputs whose body is a macro `(x, [outputs], *numbers, number)`."""
    targets = ("output", "second")[: len(outputs)]
    parameters = {"x": T.Tensor((nx,), x_dtype)}
    for target, dtype in zip(targets, outputs, strict=True):
        parameters[target] = T.Tensor((ny,), dtype)
    parameters |= {**dict.fromkeys(numbers, T.int32), "number": T.float32}

    def run(x, **given):
        body(x, [given.pop(target) for target in targets], *given.values())

    return prim_func(name + "_to_states" * (len(outputs) - 1), parameters, run)


def row_program(
    tile: RowTile,
    accumulator: Accumulator,
    x_dtype: str,
    outputs: tuple[str, ...],
    finish: Finish | None,
    joined: bool = False,
    whole: bool = False,
):
    """Return the program that reduces rows.

    Program arguments: x (flat), one or two outputs (flat, rows by splits), number of rows, row step of x and
    length of a row in vectors, splits, vectors per split (a multiple of the tile), a number for `finish`.

    Joined rows are those of the second and fourth axis of contiguous (outer, runs, rows, run): every row is
    gathered from `runs` places. The arguments are then x, the outputs (flat, outer by rows), rows, vectors of
    a run and of a whole row, outer, vectors of an outer block, the number.

    Args:
        tile: block geometry.
        accumulator: what to keep; built for the same tile.
        x_dtype: dtype of x.
        outputs: dtypes of the outputs.
        finish: values of the outputs; None writes the states.
        joined: rows are joined from several runs.
        whole: one chunk of the tile covers every row, and there are no splits.
    """
    positions = tuple(range(len(outputs)))
    neutral = constant(accumulator.neutral, x_dtype)
    nx, ny = T.dynamic("nx"), T.dynamic("ny")

    @T.macro
    def load(x, values, walk, chunk, start, x_step, num_rows):
        for u, i, l, v in T.Parallel(*tile.shape):
            if walk.exists(chunk, u, i, l):
                values[u, i, l, v] = x[(start + i * x_step + tile.vector(chunk, u, l)) * tile.vec + v]
            else:
                values[u, i, l, v] = neutral

    @T.macro
    def load_joined(x, values, walk, chunk, start, x_step, num_rows):
        # Between the runs of a row lie those of all other rows. In a local of its own, the division is done
        # once per access and in 32 bits.
        place = T.alloc_fragment(tile.shape[:3], "int32")
        T.annotate_layout({place: tile.place_layout()})
        for u, i, l in T.Parallel(*tile.shape[:3]):
            place[u, i, l] = tile.vector(chunk, u, l)
        for u, i, l in T.Parallel(*tile.shape[:3]):
            place[u, i, l] = place[u, i, l] + T.truncdiv(place[u, i, l], x_step) * (num_rows - 1) * x_step
        for u, i, l, v in T.Parallel(*tile.shape):
            if walk.exists(chunk, u, i, l):
                values[u, i, l, v] = x[(start + i * x_step + place[u, i, l]) * tile.vec + v]
            else:
                values[u, i, l, v] = neutral

    gather = load_joined if joined else load

    @T.macro
    def body(x, targets, num_rows, x_step, vectors, parts, part_vectors, number):
        with T.Kernel(T.ceildiv(num_rows, tile.rows), parts, threads=tile.threads) as (block, part):
            values = T.alloc_fragment(tile.shape, x_dtype)
            T.annotate_layout({values: tile.layout()})
            states, totals = accumulator.allocate(), accumulator.allocate_totals()
            first = 0 if joined or whole else part * part_vectors
            last = vectors if joined or whole else T.min(first + part_vectors, vectors)
            walk = walk_along(
                tile,
                lambda i, l: T.truncdiv(T.max(last - first - l + tile.lanes - 1, 0), tile.lanes),
                tile.vec,
                exists=lambda chunk, u, i, l: tile.in_bounds(
                    block * tile.rows + i, num_rows, first + tile.vector(chunk, u, l), last
                ),
                index=lambda chunk, u, i, l, v: (first + tile.vector(chunk, u, l)) * tile.vec + v,
                size=(last - first) * tile.vec,
            )
            start = block * tile.rows * x_step + part * part_vectors
            accumulator.start(states)
            if whole:
                gather(x, values, walk, 0, start, x_step, num_rows)
                accumulator.update(states, values, 0, walk)
            else:
                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.lanes)):
                    gather(x, values, walk, chunk, start, x_step, num_rows)
                    accumulator.update(states, values, chunk, walk)
            accumulator.fold(states, totals, walk)
            for i in T.Parallel(tile.rows):
                if block * tile.rows + i < num_rows:
                    for k in positions:
                        targets[k][
                            part * num_rows + block * tile.rows + i
                            if joined
                            else (block * tile.rows + i) * parts + part
                        ] = T.cast(_written(totals, i, k, finish, number), outputs[k])

    return _program_to("reduce_rows", nx, x_dtype, ny, outputs, _ROW_NUMBERS, body)


def column_program(
    tile: ColumnTile,
    accumulator: Accumulator,
    x_dtype: str,
    outputs: tuple[str, ...],
    finish: Finish | None,
    apply: Callable[[Any, list], Any] | None = None,
    whole: bool = False,
):
    """Return the program that reduces the middle axis.

    Program arguments: x (flat), one or two outputs (flat, outer by splits by inner), outer, reduced length,
    vectors of an inner row, step of x along outer and along the reduced axis in vectors, splits, reduced
    elements per split, a number for `finish`.

    Args:
        tile: block geometry.
        accumulator: what to keep; built for the same tile.
        x_dtype: dtype of x.
        outputs: dtypes of the outputs.
        finish: values of the outputs; None writes the states.
        apply: `(element, totals) -> value`: the output is not one value per column but has the shape of x,
            which is contiguous and not split; the columns are read a second time, unless a chunk is whole.
        whole: one chunk of the tile covers the reduced axis, which is not split.
    """
    positions = tuple(range(len(outputs)))
    find_place = tile.place()
    neutral = constant(accumulator.neutral, x_dtype)
    nx, ny = T.dynamic("nx"), T.dynamic("ny")

    @T.macro
    def load(x, values, walk, chunk, start, row_step):
        for u, r, l, v in T.Parallel(*tile.shape):
            if walk.exists(chunk, u, r, l):
                values[u, r, l, v] = x[(start + tile.step(chunk, u, r) * row_step + l) * tile.vec + v]
            else:
                values[u, r, l, v] = neutral

    @T.macro
    def write_elements(target, values, totals, walk, chunk, start, row_step):
        for u, r, l, v in T.Parallel(*tile.shape):
            if walk.exists(chunk, u, r, l):
                target[(start + tile.step(chunk, u, r) * row_step + l) * tile.vec + v] = T.cast(
                    apply(values[u, r, l, v], [t[l * tile.vec + v] for t in totals]), outputs[0]
                )

    @T.macro
    def body(x, targets, outer, length, inner, outer_step, row_step, splits, split_length, number):
        with T.Kernel(tile.blocks(outer, inner), splits, threads=tile.threads) as (block, split):
            values = T.alloc_fragment(tile.shape, x_dtype)
            T.annotate_layout({values: tile.layout()})
            states, totals = accumulator.allocate(), accumulator.allocate_totals()
            place = T.alloc_local((2,), "int32")
            find_place(block, inner, place)
            outer_index, column = place[0], place[1]
            first = 0 if whole else split * split_length
            last = length if whole else T.min(first + split_length, length)
            walk = walk_along(
                tile,
                lambda r, l: T.truncdiv(T.max(last - first - r + tile.rows - 1, 0), tile.rows),
                1,
                exists=lambda chunk, u, r, l: tile.in_bounds(
                    first + tile.step(chunk, u, r), last, column + l, inner
                ),
                index=lambda chunk, u, r, l, v: first + tile.step(chunk, u, r),
                size=last - first,
            )
            start = outer_index * outer_step + first * row_step + column
            accumulator.start(states)
            if whole:
                load(x, values, walk, 0, start, row_step)
                accumulator.update(states, values, 0, walk)
            else:
                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.rows)):
                    load(x, values, walk, chunk, start, row_step)
                    accumulator.update(states, values, chunk, walk)
            accumulator.fold(states, totals, walk)
            if apply is None:
                for c in T.Parallel(tile.columns):
                    if column * tile.vec + c < inner * tile.vec:
                        for k in positions:
                            targets[k][((outer_index * splits + split) * inner + column) * tile.vec + c] = (
                                T.cast(_written(totals, c, k, finish, number), outputs[k])
                            )
            elif whole:
                write_elements(targets[0], values, totals, walk, 0, start, row_step)
            else:
                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.rows)):
                    load(x, values, walk, chunk, start, row_step)
                    write_elements(targets[0], values, totals, walk, chunk, start, row_step)

    return _program_to("reduce_columns", nx, x_dtype, ny, outputs, _COLUMN_NUMBERS, body)
