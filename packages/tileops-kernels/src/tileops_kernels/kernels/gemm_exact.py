"""The tile product in the operands' own precision: tensor cores for 16 bits, plain FMA for float32.

Tensor cores read float32 operands as tf32, which has 11 bits; where an op promises float32 the products must
be formed by ordinary fused multiply-adds.
"""

import tilelang.language as T

__all__ = ["tile_product"]


@T.macro
def _fma_product(a, b, acc, transpose_a, transpose_b):
    rows, columns = acc.shape
    for step in T.serial(a.shape[0] if transpose_a else a.shape[1]):
        for i, j in T.Parallel(rows, columns):
            if transpose_a and transpose_b:
                acc[i, j] += a[step, i] * b[j, step]
            elif transpose_a:
                acc[i, j] += a[step, i] * b[step, j]
            elif transpose_b:
                acc[i, j] += a[i, step] * b[j, step]
            else:
                acc[i, j] += a[i, step] * b[step, j]


@T.macro
def tile_product(a, b, acc, transpose_a, transpose_b, policy, fma):
    """Add `op(a) @ op(b)` to the fragment `acc`.

    `policy` says how warps share `acc`. With `fma` the products are formed one by one, and the operands must
    lie in shared memory: what a config for CUDA says for float32. The CPU has no tf32 and needs no such care.
    """
    if fma:
        _fma_product(a, b, acc, transpose_a, transpose_b)
    else:
        T.gemm(a, b, acc, transpose_A=transpose_a, transpose_B=transpose_b, policy=policy)
