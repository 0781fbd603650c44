"""The body of the norm programs: statistics of a row, then one write.

A row that fits in registers is read once, and the variance is the mean of squared deviations from the
finished mean. A longer row is read in chunks, twice: one pass for the statistics, one to write.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.accumulators import moments, walk_along
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, RowTile, row_sum
from tileops_kernels.kernels.signatures import flat_tensors, prim_func

DTYPES = frozenset({"float16", "bfloat16", "float32"})


@dataclass(frozen=True)
class NormConfig:
    """`rows` rows per block, `lanes` threads per row; a thread keeps at most `resident` elements in
    registers."""

    rows: int
    lanes: int
    resident: int


def _row_bytes(sizes):
    """Return the bytes of a row. Where a row is more than one warp's, an access counts as 8 bytes at least: a
    thread makes 16 of them at most, however narrow."""
    size = sizes["vectors"] * sizes["vec"] * (4 if sizes["dtype"] == "float32" else 2)
    return max(size, 8 * sizes["vectors"]) if size > 2048 else size


# By bytes of a row: few threads with many vectors each, since threads that wait for others load nothing. 64
# float32 registers per thread is what a block of 512 threads can hold without spilling.
CONFIGS = ConfigTable(
    size=_row_bytes,
    devices={
        "cpu": ((None, NormConfig(rows=1, lanes=8, resident=1 << 14)),),
        "sm_80": (
            (128, NormConfig(rows=16, lanes=8, resident=64)),
            (512, NormConfig(rows=8, lanes=16, resident=64)),
            (2048, NormConfig(rows=4, lanes=32, resident=64)),
            (16384, NormConfig(rows=1, lanes=128, resident=64)),
            (32768, NormConfig(rows=1, lanes=256, resident=64)),
            (None, NormConfig(rows=1, lanes=512, resident=64)),
        ),
    },
)


# A multiprocessor holds so many threads of up to 128 registers: with more registers, blocks of wide rows
# would stand alone on it, and nothing would be read while they write.
_RESIDENT_THREADS = 512
# Registers of a thread that operands may take beside a row, and beside a row and its residual.
_AHEAD = 64


def tile_for(vectors: int, vec: int, config: NormConfig) -> tuple[RowTile, int]:
    """Return the tile of a row and the number of chunks it is read in; 1 means that it stays in registers.

    >>> tile_for(512, 8, NormConfig(rows=1, lanes=256, resident=64))
    (RowTile(rows=1, lanes=256, unroll=2, vec=8), 1)
    >>> tile_for(100_000, 8, NormConfig(rows=1, lanes=512, resident=64))[1]
    49
    """
    steps = -(-vectors // config.lanes)
    most = max(1, config.resident // vec)
    if steps <= most:
        return RowTile(config.rows, config.lanes, steps, vec), 1
    # Half the registers, so that the next chunk's loads overlap this one's arithmetic.
    unroll = max(1, most // 2)
    return RowTile(config.rows, config.lanes, unroll, vec), -(-steps // unroll)


class NormKernel(Kernel):
    """What the kernels share that normalise rows: dtypes, alignment, block geometry."""

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    Config = NormConfig
    CONFIGS = CONFIGS
    PASS_CONFIGS = PASS_CONFIGS


def scaled(value, weight):
    """By a weight."""
    return value * T.cast(weight, "float32")


def scaled_and_shifted(value, weight, bias):
    """By a weight and a bias."""
    return value * T.cast(weight, "float32") + T.cast(bias, "float32")


@dataclass(frozen=True)
class Operands:
    """What normalised elements are combined with.

    Attributes:
        apply: `(normalised, *elements) -> result`, such as `scaled`, `scaled_and_shifted`.
        element: `(operand, row, column) -> element`.
        count: operands whose elements depend on the column alone. Where a row stays in registers, and so do
            they, they are read ahead of the statistics: one trip to memory instead of two.
    """

    apply: Callable = lambda value: value
    element: Callable = lambda operand, row, column: operand[column]
    count: int = 0

    def ahead(self, tile: RowTile, dtype: str, chunks: int, residual: bool) -> bool:
        """True if the operands are read ahead of the statistics."""
        registers = self.count * tile.unroll * max(1, tile.vec * (4 if dtype == "float32" else 2) // 4)
        return chunks == 1 and 0 < registers <= _AHEAD // (2 if residual else 1)


def norm_body(
    *,
    statistic: str,
    vectors: int,
    vec: int,
    dtype: str,
    config: NormConfig,
    residual: bool = False,
    operands: Operands = Operands(),
):
    """Return a macro `(x, residual, given, output, residual_out, statistics, num_rows, x_step,
    residual_step, eps)`.

    Tensors are flat; those that an op lacks are None; `given` are the operands. Row r of `x` starts at vector
    r * x_step, so that rows need not be adjacent; outputs are contiguous. `statistics` are two outputs for
    the means and the biased variances of the rows, float32.

    Args:
        statistic: "rms" (no mean is taken off) or "layer".
        vectors: vectors of a row.
        vec: elements of a vector.
        dtype: dtype of all tensors.
        config: block geometry.
        residual: normalise `round(x + residual)` and write it out too.
        operands: what normalised elements are combined with.
    """
    tile, chunks = tile_for(vectors, vec, config)
    elements = vectors * vec
    # With a residual beside them, the operands of a shift spill.
    compact = statistic == "layer" and chunks == 1 and not residual
    given_ahead = tuple(range(operands.count)) if operands.ahead(tile, dtype, chunks, residual) else ()
    total, deviations = row_sum(tile), moments(tile)
    walk = walk_along(
        tile,
        lambda i, l: T.truncdiv(vectors - l + tile.lanes - 1, tile.lanes),
        vec,
        exists=lambda chunk, u, i, l: tile.in_bounds(0, 1, tile.vector(chunk, u, l), vectors),
        index=lambda chunk, u, i, l, v: tile.vector(chunk, u, l) * vec + v,
        size=elements,
    )

    @T.macro
    def load(block, chunk, x, residual_in, x_frag, num_rows, x_step, residual_step):
        narrow = T.alloc_fragment(tile.shape, dtype)
        for u, i, l, v in T.Parallel(*tile.shape):
            if tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(chunk, u, l), vectors):
                narrow[u, i, l, v] = x[
                    ((block * tile.rows + i) * x_step + tile.vector(chunk, u, l)) * vec + v
                ]
            else:
                narrow[u, i, l, v] = T.cast(0, dtype)
        if residual:
            addend = T.alloc_fragment(tile.shape, dtype)
            for u, i, l, v in T.Parallel(*tile.shape):
                if tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(chunk, u, l), vectors):
                    addend[u, i, l, v] = residual_in[
                        ((block * tile.rows + i) * residual_step + tile.vector(chunk, u, l)) * vec + v
                    ]
                else:
                    addend[u, i, l, v] = T.cast(0, dtype)
            for u, i, l, v in T.Parallel(*tile.shape):
                narrow[u, i, l, v] = T.cast(
                    T.cast(narrow[u, i, l, v], "float32") + T.cast(addend[u, i, l, v], "float32"), dtype
                )
        for u, i, l, v in T.Parallel(*tile.shape):
            x_frag[u, i, l, v] = T.cast(narrow[u, i, l, v], "float32")

    def elements_at(given, ahead, block, chunk, u, i, l, v):
        if given_ahead:
            return [elements[u, i, l, v] for elements in ahead]
        row, column = block * tile.rows + i, tile.vector(chunk, u, l) * vec + v
        return [operands.element(operand, row, column) for operand in given]

    @T.macro
    def read_ahead(given, ahead):
        for k in given_ahead:
            for u, i, l, v in T.Parallel(*tile.shape):
                if tile.in_bounds(0, 1, tile.vector(0, u, l), vectors):
                    ahead[k][u, i, l, v] = operands.element(given[k], 0, tile.vector(0, u, l) * vec + v)

    @T.macro
    def accumulate(x_frag, mean, partial, chunk):
        """partial += (x - mean)^2, over the elements that exist (the others are 0 and so is their mean)."""
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                if tile.in_bounds(0, 1, tile.vector(chunk, u, l), vectors):
                    partial[i, l, v] += (x_frag[u, i, l, v] - mean[i]) * (x_frag[u, i, l, v] - mean[i])

    @T.macro
    def write(block, chunk, x_frag, mean, scale, given, ahead, output, residual_out, num_rows):
        if residual:
            for u, i, l, v in T.Parallel(*tile.shape):
                if tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(chunk, u, l), vectors):
                    residual_out[((block * tile.rows + i) * vectors + tile.vector(chunk, u, l)) * vec + v] = (
                        T.cast(x_frag[u, i, l, v], dtype)
                    )
        for u, i, l, v in T.Parallel(*tile.shape):
            if tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(chunk, u, l), vectors):
                output[((block * tile.rows + i) * vectors + tile.vector(chunk, u, l)) * vec + v] = T.cast(
                    operands.apply(
                        (x_frag[u, i, l, v] - mean[i]) * scale[i],
                        *elements_at(given, ahead, block, chunk, u, i, l, v),
                    ),
                    dtype,
                )

    @T.macro
    def body(x, residual_in, given, output, residual_out, statistics, num_rows, x_step, residual_step, eps):
        with T.Kernel(T.ceildiv(num_rows, tile.rows), threads=tile.threads) as block:
            if compact:
                T.annotate_min_blocks_per_sm(max(1, _RESIDENT_THREADS // tile.threads))
            x_frag = T.alloc_fragment(tile.shape, "float32")
            partial = T.alloc_fragment(tile.lane_shape, "float32")
            mean = T.alloc_fragment((tile.rows,), "float32")
            scale = T.alloc_fragment((tile.rows,), "float32")

            ahead = [T.alloc_fragment(tile.shape, dtype) for _ in given_ahead]

            if chunks == 1:
                load(block, 0, x, residual_in, x_frag, num_rows, x_step, residual_step)
                read_ahead(given, ahead)
                T.clear(mean)
                if statistic == "layer":
                    T.clear(partial)
                    for u in T.unroll(tile.unroll):
                        for i, l, v in T.Parallel(*tile.lane_shape):
                            partial[i, l, v] += x_frag[u, i, l, v]
                    total(partial, mean)
                    for i in T.Parallel(tile.rows):
                        mean[i] = mean[i] / T.float32(elements)
                T.clear(partial)
                accumulate(x_frag, mean, partial, 0)
                total(partial, scale)
            elif statistic == "rms":
                T.clear(mean)
                T.clear(partial)
                for chunk in T.serial(chunks):
                    load(block, chunk, x, residual_in, x_frag, num_rows, x_step, residual_step)
                    accumulate(x_frag, mean, partial, chunk)
                total(partial, scale)
            else:
                states = deviations.allocate()
                deviations.start(states)
                for chunk in T.serial(chunks):
                    load(block, chunk, x, residual_in, x_frag, num_rows, x_step, residual_step)
                    deviations.update(states, x_frag, chunk, walk)
                deviations.fold(states, [scale, mean], walk)

            if statistics is not None:
                for i in T.Parallel(tile.rows):
                    if block * tile.rows + i < num_rows:
                        statistics[0][block * tile.rows + i] = mean[i]
                        statistics[1][block * tile.rows + i] = scale[i] / T.float32(elements)
            for i in T.Parallel(tile.rows):
                # By the reciprocal: a rounding more, but no division.
                scale[i] = T.rsqrt(scale[i] * T.float32(1 / elements) + eps)

            if chunks == 1:
                write(block, 0, x_frag, mean, scale, given, ahead, output, residual_out, num_rows)
            else:
                for chunk in T.serial(chunks):
                    load(block, chunk, x, residual_in, x_frag, num_rows, x_step, residual_step)
                    write(block, chunk, x_frag, mean, scale, given, ahead, output, residual_out, num_rows)

    return body


def weighted_norm(name: str, statistic: str, weights: tuple[str, ...], apply: Callable):
    """Return `(vectors, vec, dtype, residual, config) -> program` of rows that share their weights.

    Program arguments: x, (residual,) the weights, output, (residual_out,) number of rows, row step of x (and
    of residual) in vectors, eps. Tensors are flat.

    Args:
        name: of the program; with a residual, "fused_add_" comes before it.
        statistic: as `norm_body` takes it.
        weights: names of tensors with one element per column.
        apply: how `Operands` apply them.
    """

    def program(vectors, vec, dtype, residual, config):
        norm = norm_body(
            statistic=statistic,
            vectors=vectors,
            vec=vec,
            dtype=dtype,
            config=config,
            residual=residual,
            operands=Operands(apply, count=len(weights)),
        )
        nx, nr, ny = T.dynamic("nx"), T.dynamic("nr"), T.dynamic("ny")
        parameters = {
            **flat_tensors(dtype, x=nx, **({"residual_in": nr} if residual else {})),
            **flat_tensors(dtype, **dict.fromkeys(weights, vectors * vec)),
            **flat_tensors(dtype, output=ny, **({"residual_out": ny} if residual else {})),
            "num_rows": T.int32,
            "x_step": T.int32,
            **({"residual_step": T.int32} if residual else {}),
            "eps": T.float32,
        }

        def body(
            x, output, num_rows, x_step, eps, residual_in=None, residual_out=None, residual_step=0, **operands
        ):
            operands = list(operands.values())
            norm(x, residual_in, operands, output, residual_out, None, num_rows, x_step, residual_step, eps)

        return prim_func("fused_add_" * residual + name, parameters, body)

    return program


def weighted_samples():
    """Return aligned, ragged, narrow and chunked rows, with and without a residual."""
    return (
        {"vectors": 512, "vec": 8, "dtype": "bfloat16", "residual": False},
        {"vectors": 4095, "vec": 1, "dtype": "float16", "residual": False},
        {"vectors": 25, "vec": 4, "dtype": "float32", "residual": False},
        {"vectors": 16384, "vec": 8, "dtype": "bfloat16", "residual": False},
        {"vectors": 1024, "vec": 8, "dtype": "bfloat16", "residual": True},
    )
