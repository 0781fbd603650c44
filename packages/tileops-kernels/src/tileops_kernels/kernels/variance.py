"""Variance, alone or with the mean: the reduction whose state is a pair, squared deviations and mean.

States of splits and of further reduced axes are merged with weights, as chunks are: the result does not
suffer from a large mean.
"""

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.accumulators import Walk, between, mean_of, moments, whole_moments
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.column_tile import ColumnTile
from tileops_kernels.kernels.reduce import COLUMN_CONFIGS, ROW_CONFIGS, lanes_wanted
from tileops_kernels.kernels.reduce_table import FLOATS
from tileops_kernels.kernels.reduction_programs import ReduceConfig, column_program, row_program
from tileops_kernels.kernels.rowwise_tile import READ_ONCE, RowTile


def _result(deviation, divisor, root):
    variance = deviation / divisor
    return T.sqrt(variance) if root else variance


def _moments_program(build, tile_type, dtype, out_dtype, root, mean, vec, config, **form):
    tile = tile_type(config.rows, config.lanes, config.unroll, vec)
    accumulator = whole_moments(tile) if form.get("whole") else moments(tile)
    if out_dtype == "state":
        return build(tile, accumulator, dtype, accumulator.states, None, **form)
    return build(
        tile,
        accumulator,
        dtype,
        (out_dtype,) * (2 if mean else 1),
        lambda k, totals, divisor: totals[1] if k else _result(totals[0], divisor, root),
        **form,
    )


def _samples():
    finished = {"dtype": "bfloat16", "out_dtype": "bfloat16", "root": False, "mean": False, "vec": 8}
    return (
        finished,
        {**finished, "mean": True},
        {"dtype": "float32", "out_dtype": "state", "root": True, "mean": False, "vec": 4},
    )


# A block of 512 threads that hold 8 vectors each needs 90 registers per thread and stands alone on a
# multiprocessor: worth it for rows that it finishes, not for parts of longer ones.
_WHOLE, _SPLIT = 4096, 256


class VarianceKernel(Kernel):
    """Variance of the last axis; program arguments are those of `row_program`, the number is the divisor.

    States are squared deviations and means.
    """

    SUPPORTED_DTYPES = FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = READ_ONCE
    Config = ReduceConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: _SPLIT if sizes.get("vectors", 1 << 20) > _WHOLE else lanes_wanted(sizes),
        devices=ROW_CONFIGS.devices,
    )

    @staticmethod
    def program(*, dtype, out_dtype, root, mean, vec, joined=False, whole=False, config):
        """Return the tile program.

        Args:
            dtype: dtype of x.
            out_dtype: dtype of the outputs, or "state".
            root: return the standard deviation.
            mean: return the mean as a second output.
            vec: elements of a vector.
            joined: rows are joined from several runs.
            whole: one chunk covers a row.
            config: block geometry.
        """
        return _moments_program(
            row_program, RowTile, dtype, out_dtype, root, mean, vec, config, joined=joined, whole=whole
        )

    @classmethod
    def samples(cls):
        """Return a finished variance, one with its mean, and a partial standard deviation."""
        return _samples()


class ColumnVarianceKernel(Kernel):
    """Variance of the middle axis of (outer, reduced, inner); program arguments are those of
    `column_program`, the number is the divisor. States are squared deviations and means."""

    SUPPORTED_DTYPES = FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = READ_ONCE
    Config = ReduceConfig
    CONFIGS = COLUMN_CONFIGS

    @staticmethod
    def program(*, dtype, out_dtype, root, mean, vec, whole=False, config):
        """Return the tile program; arguments as those of `VarianceKernel.program`."""
        return _moments_program(
            column_program, ColumnTile, dtype, out_dtype, root, mean, vec, config, whole=whole
        )

    @classmethod
    def samples(cls):
        """Return a finished variance, one with its mean, and a partial standard deviation."""
        return _samples()


class VarianceMergeKernel(Kernel):
    """Merges states of (outer, length, inner) along the middle axis.

    Program arguments: deviations, means (flat float32), output, output means (flat), outer, length, inner,
    elements per state (but for the last), elements in all, divisor.
    """

    SUPPORTED_DTYPES = FLOATS
    PASS_CONFIGS = READ_ONCE
    Config = ReduceConfig
    # By columns.
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("inner", 1),
        devices={
            "cpu": ((None, ReduceConfig(rows=1, lanes=64, unroll=1, target_blocks=1)),),
            "sm_80": (
                (1, ReduceConfig(rows=128, lanes=1, unroll=1, target_blocks=1)),
                (None, ReduceConfig(rows=16, lanes=16, unroll=1, target_blocks=1)),
            ),
        },
    )

    @staticmethod
    def program(*, out_dtype, root, mean, config):
        """Return the tile program.

        Args:
            out_dtype: dtype of the outputs, or "state".
            root: return the standard deviation.
            mean: write the means, as states always do.
            config: block geometry; `rows` threads share an output.
        """
        tile = ColumnTile(config.rows, config.lanes, 1, 1)
        accumulator, find_place = moments(tile), tile.place()
        y_dtype = "float32" if out_dtype == "state" else out_dtype
        with_means = mean or out_dtype == "state"
        nd, ny, nm = T.dynamic("nd"), T.dynamic("ny"), T.dynamic("nm")

        @T.prim_func
        def merge_variances(
            deviations: T.Tensor((nd,), "float32"),
            means: T.Tensor((nd,), "float32"),
            output: T.Tensor((ny,), y_dtype),
            output_means: T.Tensor((nm,), y_dtype),
            outer: T.int32,
            length: T.int32,
            inner: T.int32,
            chunk: T.int32,
            total: T.int32,
            divisor: T.float32,
        ):
            with T.Kernel(tile.blocks(outer, inner), threads=tile.threads) as block:
                place = T.alloc_local((2,), "int32")
                states, totals = accumulator.allocate(), accumulator.allocate_totals()
                deviation, average = states
                find_place(block, inner, place)
                outer_index, column = place[0], place[1]

                accumulator.start(states)
                for step in T.serial(T.ceildiv(length, tile.rows)):
                    for r, l, v in T.Parallel(*tile.lane_shape):
                        if tile.in_bounds(tile.step(step, 0, r), length, column + l, inner):
                            at = (outer_index * length + tile.step(step, 0, r)) * inner + column + l
                            size = T.cast(T.min(chunk, total - tile.step(step, 0, r) * chunk), "float32")
                            before = T.cast(step, "float32") * T.cast(chunk, "float32")
                            deviation[r, l, v] += deviations[at] + between(
                                average[r, l, v], means[at], before * size / (before + size)
                            )
                            average[r, l, v] = mean_of(average[r, l, v], means[at], size / (before + size))
                accumulator.fold(states, totals, _states_walk(tile, length, chunk, total))

                for c in T.Parallel(tile.columns):
                    if column + c < inner:
                        if with_means:
                            output_means[outer_index * inner + column + c] = T.cast(totals[1][c], y_dtype)
                        if out_dtype == "state":
                            output[outer_index * inner + column + c] = totals[0][c]
                        else:
                            output[outer_index * inner + column + c] = T.cast(
                                _result(totals[0][c], divisor, root), y_dtype
                            )

        return merge_variances

    @classmethod
    def samples(cls):
        """Return a finished merge, one with its means, and an intermediate one."""
        finished = {"out_dtype": "bfloat16", "root": False, "mean": False}
        return (finished, {**finished, "mean": True}, {**finished, "out_dtype": "state"})


def _states_walk(tile, length, chunk, total):
    """Return the walk over states that stand for `chunk` elements each, but the last, and `total` in all."""

    def counted(r, l):
        states = T.truncdiv(T.max(length - r + tile.rows - 1, 0), tile.rows)
        has_last = T.truncmod(length - 1, tile.rows) == r
        return states * chunk - tirx.Select(has_last, length * chunk - total, 0)

    return Walk(exists=None, index=None, held=None, counted=counted, size=total)
