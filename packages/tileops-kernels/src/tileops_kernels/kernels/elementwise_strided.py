"""Elementwise kernel for operands that broadcast or are not contiguous: nothing is materialised.

The output is contiguous over at most four dims (the flow merges dims first); every input is read in place
through its strides, 0 along a dim it is broadcast over. A vector of the output never crosses a row, so along
the last dim an input is one of four kinds:

* "flat": laid out as the output is: read at the output's own index, before anything is divided;
* "vector": unit stride, and every other stride a multiple of `vec`: one wide access per vector;
* "scalar": stride 0: one element serves the whole vector;
* "strided": any stride; `vec` is 1 then.
"""

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise import (
    ARITY,
    ElementwiseConfig,
    ElementwiseKernel,
    evaluation,
    scalar_dtype,
    storage_dtype,
)
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS
from tileops_kernels.kernels.signatures import prim_func

MAX_DIMS = 4
KINDS = ("flat", "vector", "scalar", "strided")


def _offset(kind, coordinates, strides):
    """Return the offset of one input: in vectors for "vector" (strides are given in vectors), else in
    elements."""
    leading = sum(c * s for c, s in zip(coordinates[:-1], strides[:-1], strict=True))
    if kind == "vector":
        return leading + coordinates[-1]
    if kind == "scalar":
        return leading
    return leading + coordinates[-1] * strides[-1]


def _coordinates(index, sizes):
    """Return the coordinates of a linear index; `sizes` are those of all dims but the first."""
    coordinates = []
    for size in reversed(sizes):
        coordinates.append(T.truncmod(index, size))
        index = T.truncdiv(index, size)
    return [index, *reversed(coordinates)]


class StridedElementwiseKernel(Kernel):
    """`output[i] = expression(inputs[i]...)`, inputs addressed through strides.

    Program arguments: the inputs (flat, covering all they address), the output (flat), two scalars, the sizes
    of the last three dims (the last in vectors), and four strides per input. Of these only the last `dims`
    are read.
    """

    SUPPORTED_DTYPES = ElementwiseKernel.SUPPORTED_DTYPES
    ALIGNMENT = 16
    Config = ElementwiseConfig
    # By elements of a vector: on a CPU a long one is a block of its own.
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes["vec"],
        devices={
            "cpu": (
                (16, ElementwiseConfig(threads=64, unroll=1)),
                (128, ElementwiseConfig(threads=8, unroll=1)),
                (None, ElementwiseConfig(threads=2, unroll=1)),
            ),
            "sm_80": ((None, ElementwiseConfig(threads=256, unroll=2)),),
        },
    )
    PASS_CONFIGS = PASS_CONFIGS

    @staticmethod
    def program(*, expression, dtypes, out_dtype, vec, kinds, dims, config):
        """Return the tile program.

        Args:
            expression: a name of the table.
            dtypes: dtypes of the inputs.
            out_dtype: dtype of the output.
            vec: elements per vector; divides the last dim.
            kinds: kind of each input along the last dim.
            dims: number of dims, 1 to 4.
            config: block geometry.
        """
        threads, unroll = config.threads, config.unroll
        block = threads * unroll
        apply, kept = evaluation(expression, dtypes, out_dtype)
        stored = [storage_dtype(dtype) for dtype in dtypes]
        out_stored, p_dtype = storage_dtype(out_dtype), scalar_dtype(dtypes)
        scalar = T.float32 if p_dtype == "float32" else T.int64
        operands = tuple(range(len(dtypes)))
        flat_first = sorted(operands, key=lambda index: kinds[index] != "flat")
        n = T.dynamic("n")

        @T.macro
        def load(inputs, frags, index, bx, total, sizes, strides):
            if kinds[index] == "flat":
                for u, t, v in T.Parallel(unroll, threads, vec):
                    if bx * block + u * threads + t < total:
                        frags[index][u, t, v] = inputs[index][(bx * block + u * threads + t) * vec + v]
            else:
                # Kept in a fragment of its own: inside a global index the divisions would be done in 64 bits.
                offset = T.alloc_fragment((unroll, threads), "int32")
                for u in T.unroll(unroll):
                    for t in T.Parallel(threads):
                        offset[u, t] = _offset(
                            kinds[index], _coordinates(bx * block + u * threads + t, sizes), strides[index]
                        )
                for u, t, v in T.Parallel(unroll, threads, vec):
                    if bx * block + u * threads + t < total:
                        if kinds[index] == "vector":
                            frags[index][u, t, v] = inputs[index][offset[u, t] * vec + v]
                        else:
                            frags[index][u, t, v] = inputs[index][offset[u, t]]

        @T.macro
        def launch(inputs, output, scalars, all_sizes, all_strides):
            with T.Kernel(T.ceildiv(n, block * vec), threads=threads) as bx:
                sizes = all_sizes[MAX_DIMS - dims :]
                strides = [
                    all_strides[MAX_DIMS * i : MAX_DIMS * (i + 1)][MAX_DIMS - dims :] for i in operands
                ]
                frags = [T.alloc_fragment((unroll, threads, vec), dtype) for dtype in stored]
                result = T.alloc_fragment((unroll, threads, vec), kept)

                for index in flat_first:
                    load(inputs, frags, index, bx, n // vec, sizes, strides)

                for u, t, v in T.Parallel(unroll, threads, vec):
                    result[u, t, v] = apply([frag[u, t, v] for frag in frags], scalars)

                for u, t, v in T.Parallel(unroll, threads, vec):
                    if bx * block + u * threads + t < n // vec:
                        output[(bx * block + u * threads + t) * vec + v] = T.cast(result[u, t, v], out_stored)

        inputs = "abc"[: len(dtypes)]
        lengths = (T.dynamic(f"n{name}") for name in inputs)
        parameters = {
            name: T.Tensor((length,), dtype)
            for name, length, dtype in zip(inputs, lengths, stored, strict=True)
        }
        parameters |= {"y": T.Tensor((n,), out_stored), "p": scalar, "q": scalar}
        sizes = [f"size{dim}" for dim in range(1, MAX_DIMS)]
        strides = [f"{name}{dim}" for name in inputs for dim in range(MAX_DIMS)]
        parameters |= dict.fromkeys([*sizes, *strides], T.int32)

        def body(y, p, q, **given):
            launch(
                [given[name] for name in inputs],
                y,
                [p, q],
                [given[name] for name in sizes],
                [given[name] for name in strides],
            )

        return prim_func(ARITY[len(dtypes)], parameters, body)

    @classmethod
    def samples(cls):
        """Return the layouts that matter: a row vector, a per-channel value, a transposed operand."""
        binary = {"expression": "add", "dtypes": ("bfloat16",) * 2, "out_dtype": "bfloat16"}
        return (
            {**binary, "vec": 8, "kinds": ("vector", "vector"), "dims": 2},
            {**binary, "vec": 8, "kinds": ("flat", "scalar"), "dims": 3},
            {**binary, "vec": 1, "kinds": ("vector", "strided"), "dims": 2},
            {
                "expression": "where",
                "dtypes": ("bool", "float32", "float32"),
                "out_dtype": "float32",
                "vec": 4,
                "kinds": ("scalar", "vector", "vector"),
                "dims": 4,
            },
        )
