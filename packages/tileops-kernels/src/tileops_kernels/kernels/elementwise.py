"""Elementwise kernel: one tile program for all ops of the expression table, over flat contiguous tensors.

Inputs and outputs are passed as flat views. A block owns a run of `unroll * threads` vectors of `vec`
elements; loads, arithmetic and stores are separate phases, so that every load of the block is in flight
before the first result and all global accesses are `vec` elements (16 bytes at most) wide. Only the last
block checks bounds per element.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import EXPRESSIONS, math_for, select
from tileops_kernels.kernels.rowwise_tile import READ_ONCE_FLAGS
from tileops_kernels.kernels.signatures import prim_func

# Names of the programs, by inputs.
ARITY = {1: "unary", 2: "binary", 3: "ternary"}

_FLOATS = frozenset({"float16", "bfloat16", "float32"})
_ALL = _FLOATS | {"bool", "uint8", "int8", "int16", "int32", "int64"}


def storage_dtype(dtype: str) -> str:
    """Return how a dtype is passed to a tile program: bool tiles cannot be vectorised, bytes can.

    >>> storage_dtype("bool"), storage_dtype("bfloat16")
    ('uint8', 'bfloat16')
    """
    return "uint8" if dtype == "bool" else dtype


def _compute_dtype(dtype: str, compute: str) -> str:
    if compute == "float" or (compute == "arithmetic" and dtype in _FLOATS):
        return "float32"
    return storage_dtype(dtype)


def scalar_dtype(dtypes: tuple[str, ...]) -> str:
    """Return the dtype in which an op's run-time scalars are passed.

    >>> scalar_dtype(("bfloat16",)), scalar_dtype(("int8", "int8"))
    ('float32', 'int64')
    """
    return "float32" if dtypes[-1] in _FLOATS else "int64"


def evaluation(expression, dtypes, out_dtype):
    """Return `(stored inputs, scalars) -> result`, and the dtype the result is kept in until it is stored."""
    entry = EXPRESSIONS[expression]
    value = entry.on_bool if dtypes[0] == "bool" and entry.on_bool is not None else entry.value
    compute = [_compute_dtype(dtype, entry.compute) for dtype in dtypes]
    # Results stay in float32 up to the store, which then rounds two at a time.
    kept = "float32" if out_dtype in _FLOATS and entry.compute != "native" else storage_dtype(out_dtype)
    math = math_for(out_dtype)

    def apply(inputs, scalars):
        args = [T.cast(x, dtype) for x, dtype in zip(inputs, compute, strict=True)]
        scalars = [T.cast(p, compute[-1]) for p in scalars]
        result = value(math, args, scalars)
        if str(result.dtype) == "bool":
            # A select, not a cast: vectors of more than four bools have no type in CUDA C++.
            return select(result, tirx.const(1, "uint8"), tirx.const(0, "uint8"))
        return T.cast(result, kept)

    return apply, kept


@dataclass(frozen=True)
class ElementwiseConfig:
    """`unroll` vectors per thread and block."""

    threads: int
    unroll: int


# One config for every size: small blocks that come and go keep memory busier than larger ones with more in
# flight, and a tensor of a few thousand elements still takes one launch of a few blocks.
CONFIGS = ConfigTable(
    size=lambda sizes: 0,
    devices={
        "cpu": ((None, ElementwiseConfig(threads=64, unroll=1)),),
        "sm_80": ((None, ElementwiseConfig(threads=256, unroll=1)),),
    },
)


class ElementwiseKernel(Kernel):
    """`output[i] = expression(inputs[i]...)` over flat contiguous tensors of the same size.

    Program arguments: the inputs (flat), the output (flat), two scalars (`scalar_dtype`; unused ones are
    ignored).
    """

    SUPPORTED_DTYPES = _ALL
    ALIGNMENT = 16
    Config = ElementwiseConfig
    CONFIGS = CONFIGS

    @staticmethod
    def program(*, expression, dtypes, out_dtype, vec, config):
        """Return the tile program.

        Args:
            expression: a name of the table.
            dtypes: dtypes of the inputs.
            out_dtype: dtype of the output.
            vec: elements per access; every tensor must be aligned to `vec` elements.
            config: block geometry.
        """
        threads, unroll = config.threads, config.unroll
        block = threads * unroll * vec
        apply, kept = evaluation(expression, dtypes, out_dtype)
        stored = [storage_dtype(dtype) for dtype in dtypes]
        out_stored, p_dtype = storage_dtype(out_dtype), scalar_dtype(dtypes)
        scalar = T.float32 if p_dtype == "float32" else T.int64
        operands = tuple(range(len(dtypes)))
        n = T.dynamic("n")

        @T.macro
        def load(inputs, frags, index, block_start, in_bounds):
            for u, t, v in T.Parallel(unroll, threads, vec):
                if in_bounds(block_start + (u * threads + t) * vec + v):
                    frags[index][u, t, v] = inputs[index][block_start + (u * threads + t) * vec + v]

        @T.macro
        def tile(inputs, output, scalars, block_start, in_bounds):
            frags = [T.alloc_fragment((unroll, threads, vec), dtype) for dtype in stored]
            result = T.alloc_fragment((unroll, threads, vec), kept)

            for index in operands:
                load(inputs, frags, index, block_start, in_bounds)

            for u, t, v in T.Parallel(unroll, threads, vec):
                result[u, t, v] = apply([frag[u, t, v] for frag in frags], scalars)

            for u, t, v in T.Parallel(unroll, threads, vec):
                if in_bounds(block_start + (u * threads + t) * vec + v):
                    output[block_start + (u * threads + t) * vec + v] = T.cast(result[u, t, v], out_stored)

        @T.macro
        def launch(inputs, output, scalars):
            with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
                if (bx + 1) * block <= n:
                    tile(inputs, output, scalars, bx * block, lambda i: True)
                else:
                    tile(inputs, output, scalars, bx * block, lambda i: i < n)

        inputs = "abc"[: len(dtypes)]
        parameters = {name: T.Tensor((n,), dtype) for name, dtype in zip(inputs, stored, strict=True)}
        parameters |= {"y": T.Tensor((n,), out_stored), "p": scalar, "q": scalar}

        def body(y, p, q, **given):
            launch(list(given.values()), y, [p, q])

        return prim_func(ARITY[len(dtypes)], parameters, body)

    @classmethod
    def samples(cls):
        """Return one set of static arguments per kind of expression and storage."""
        return (
            {"expression": "silu", "dtypes": ("bfloat16",), "out_dtype": "bfloat16", "vec": 8},
            {"expression": "gelu", "dtypes": ("float32",), "out_dtype": "float32", "vec": 4},
            {"expression": "isnan", "dtypes": ("float16",), "out_dtype": "bool", "vec": 8},
            {"expression": "eq", "dtypes": ("uint8",) * 2, "out_dtype": "bool", "vec": 16},
            {"expression": "logical_not", "dtypes": ("bool",), "out_dtype": "bool", "vec": 16},
            {"expression": "add", "dtypes": ("bfloat16",) * 2, "out_dtype": "bfloat16", "vec": 8},
            {"expression": "add", "dtypes": ("int64",) * 2, "out_dtype": "int64", "vec": 2},
            {
                "expression": "where",
                "dtypes": ("bool", "float16", "float16"),
                "out_dtype": "float16",
                "vec": 8,
            },
        )


class ReadOnceElementwiseKernel(ElementwiseKernel):
    """The same program, for operands that leave the cache to the output: it is what the next kernel reads."""

    PASS_CONFIGS = READ_ONCE_FLAGS

    @classmethod
    def samples(cls):
        """Return the sum of two tensors."""
        return ({"expression": "add", "dtypes": ("bfloat16",) * 2, "out_dtype": "bfloat16", "vec": 8},)
