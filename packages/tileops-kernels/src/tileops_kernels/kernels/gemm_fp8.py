"""Product of 8-bit matrices `d = (scale_a a) (scale_b b)^T + bias`, formed in float16 with fp32 accumulation.

Every e4m3 number is a float16 number, and a product of two of them is exact in float32, so the program runs
wherever float16 products do: the CPU verifies it, and GPUs without 8-bit tensor cores run it.

Source: arXiv:2412.19437, section 3.3.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["BLOCK", "FP8", "SAMPLES", "GemmFp8Kernel", "fp8_program", "scale_shapes"]

FP8 = "float8_e4m3fn"
BLOCK = 128  # columns of a and b that share a factor
_ACC = "float32"
_WIDE = "float16"
# Static arguments of a square product, with factors per block and with one per matrix.
SAMPLES = tuple(
    {"n": 4096, "k": 4096, "out_dtype": "bfloat16", "per_block": per_block, "biased": False}
    for per_block in (True, False)
)


def scale_shapes(m, n, k, per_block):
    """Return the shapes of both tensors of factors: one each, or one per row and block of columns."""
    if not per_block:
        return (1, 1), (1, 1)
    return (m, -(-k // BLOCK)), (n, -(-k // BLOCK))


def fp8_program(
    name, product, *, m, n, k, out_dtype, per_block=False, biased=False, batch=None, trans_b=True
):
    """Return the tile program of a macro `product(a, b, scale_a, scale_b, bias, d)`, whose bias may be None.

    Args:
        name: of the program; that with a bias ends in `_bias`.
        product: the macro.
        m: rows of a and d, symbolic.
        n, k, out_dtype, per_block, biased: static arguments of the kernel.
        batch: leading dim of a, b and d, symbolic; None if they have none.
        trans_b: b is stored `[n, k]`, else `[k, n]`.
    """
    a_scales, b_scales = scale_shapes(m, n, k, per_block)
    lead = () if batch is None else (batch,)
    a_shape, d_shape = (*lead, m, k), (*lead, m, n)
    b_shape = (*lead, n, k) if trans_b else (*lead, k, n)
    if biased:

        @T.prim_func
        def gemm_fp8(
            a: T.Tensor(a_shape, FP8),
            b: T.Tensor(b_shape, FP8),
            scale_a: T.Tensor(a_scales, _ACC),
            scale_b: T.Tensor(b_scales, _ACC),
            bias: T.Tensor((n,), "bfloat16"),
            d: T.Tensor(d_shape, out_dtype),
        ):
            product(a, b, scale_a, scale_b, bias, d)

        return gemm_fp8.with_attr("global_symbol", f"{name}_bias")

    @T.prim_func
    def gemm_fp8(
        a: T.Tensor(a_shape, FP8),
        b: T.Tensor(b_shape, FP8),
        scale_a: T.Tensor(a_scales, _ACC),
        scale_b: T.Tensor(b_scales, _ACC),
        d: T.Tensor(d_shape, out_dtype),
    ):
        product(a, b, scale_a, scale_b, None, d)

    return gemm_fp8.with_attr("global_symbol", name)


class GemmFp8Kernel(Kernel):
    """`d[m, n] = (scale_a a)[m, k] @ (scale_b b)[n, k]^T + bias[n]`; m is symbolic, n and k are static.

    `per_block`: the factors are one per row and block of 128 columns, not one per matrix.
    """

    SUPPORTED_DTYPES = frozenset({FP8})
    ALIGNMENT = 16

    @dataclass(frozen=True)
    class Config:
        """`block_m`, `block_n`: tile of the output; a step is one block of columns."""

        block_m: int
        block_n: int
        threads: int

    CONFIGS = ConfigTable(
        size=lambda s: s.get("m", 4096),
        devices={
            "cpu": ((None, Config(64, 64, 128)),),
            "sm_80": ((32, Config(32, 64, 128)), (64, Config(64, 64, 128)), (None, Config(128, 64, 256))),
        },
    )

    @staticmethod
    def program(*, n, k, out_dtype, per_block, biased, config):
        m = T.dynamic("m")
        bm, bn = config.block_m, config.block_n

        @T.macro
        def product(a, b, scale_a, scale_b, bias, d):
            with T.Kernel(T.ceildiv(m, bm), T.ceildiv(n, bn), threads=config.threads) as (bm_id, bn_id):
                a_shared = T.alloc_shared((bm, BLOCK), _WIDE)
                b_shared = T.alloc_shared((bn, BLOCK), _WIDE)
                d_shared = T.alloc_shared((bm, bn), out_dtype)
                total = T.alloc_fragment((bm, bn), _ACC)
                part = T.alloc_fragment((bm, bn), _ACC)
                row_scale = T.alloc_fragment((bm,), _ACC)
                col_scale = T.alloc_fragment((bn,), _ACC)
                shift = T.alloc_fragment((bn,), _ACC)
                row0, col0 = bm_id * bm, bn_id * bn

                T.clear(total)
                for step in T.serial(-(-k // BLOCK)):
                    T.copy(a[row0 : row0 + bm, step * BLOCK : (step + 1) * BLOCK], a_shared)
                    T.copy(b[col0 : col0 + bn, step * BLOCK : (step + 1) * BLOCK], b_shared)
                    if per_block:
                        T.clear(part)
                        T.gemm(a_shared, b_shared, part, transpose_B=True)
                        for i in T.Parallel(bm):
                            row_scale[i] = T.if_then_else(row0 + i < m, scale_a[row0 + i, step], 0.0)
                        for j in T.Parallel(bn):
                            col_scale[j] = T.if_then_else(col0 + j < n, scale_b[col0 + j, step], 0.0)
                        for i, j in T.Parallel(bm, bn):
                            total[i, j] += part[i, j] * row_scale[i] * col_scale[j]
                    else:
                        T.gemm(a_shared, b_shared, total, transpose_B=True)
                if not per_block:
                    for i, j in T.Parallel(bm, bn):
                        total[i, j] *= scale_a[0, 0] * scale_b[0, 0]
                if biased:
                    for j in T.Parallel(bn):
                        shift[j] = T.if_then_else(col0 + j < n, T.cast(bias[col0 + j], _ACC), 0.0)
                    for i, j in T.Parallel(bm, bn):
                        total[i, j] += shift[j]
                T.copy(total, d_shared)
                T.copy(d_shared, d[row0 : row0 + bm, col0 : col0 + bn])

        return fp8_program(
            "gemm_fp8", product, m=m, n=n, k=k, out_dtype=out_dtype, per_block=per_block, biased=biased
        )

    @classmethod
    def samples(cls):
        return (
            *SAMPLES,
            {**SAMPLES[1], "biased": True},
            {**SAMPLES[1], "n": 131, "k": 333, "out_dtype": "float16", "per_block": True, "biased": True},
        )
