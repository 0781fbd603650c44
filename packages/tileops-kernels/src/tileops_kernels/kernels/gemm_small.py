"""Products so small that what counts is how soon a block begins: no copy engine, no roles, small tiles.

The tile program is that of `gemm.py`. Threads read global memory themselves, which needs no descriptor and no
second group of warps, and reaches rows of any length.
"""

from functools import partial
from typing import ClassVar

from tileops_kernels.kernels.gemm import MatmulConfig, matmul_program
from tileops_kernels.kernels.gemm_hopper_parts import HopperProductKernel, only

__all__ = ["BmmSmallKernel", "GemmSmallKernel"]

# For rows of any length.
_ANY_ROWS = MatmulConfig(16, 32, 32, 64, 3)


class _SmallMatmulKernel(HopperProductKernel):
    """What the product of two matrices and of two stacks of them share."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    PASS_CONFIGS: ClassVar = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}
    Config = MatmulConfig
    CONFIGS = only(_ANY_ROWS)
    MAX_STEPS: ClassVar = {_ANY_ROWS: 8}  # of the loop over k, by config

    @classmethod
    def suits(cls, device, *, m, n, k, dtype, batch=1):
        """True if the kernel is written for the device and dtype, and the product is one short round."""
        config = cls.default_config(target="cuda", arch="sm_90a", n=n, k=k)
        tiles = batch * -(-m // config.block_m) * -(-n // config.block_n)
        small = tiles <= cls.UNITS and -(-k // config.block_k) <= cls.MAX_STEPS[config]
        return small and dtype in cls.SUPPORTED_DTYPES and cls.serves_device(device)


class GemmSmallKernel(_SmallMatmulKernel):
    """`d[m, n] = op(a) @ op(b)`; m is symbolic, n and k are static.

    In one round it is faster than to copy a transposed `a` whose rows the copy engine cannot address.
    """

    program = staticmethod(partial(matmul_program, batched=False))

    @classmethod
    def samples(cls):
        return (
            {"n": 131, "k": 77, "dtype": "bfloat16", "trans_a": True, "trans_b": False},
            {"n": 64, "k": 128, "dtype": "float16", "trans_a": True, "trans_b": True},
        )


class BmmSmallKernel(_SmallMatmulKernel):
    """`d[batch, m, n] = op(a) @ op(b)`; batch and m are symbolic, n and k are static."""

    # For rows of whole vectors.
    _VECTORS = MatmulConfig(64, 32, 128, 128, 1)
    MAX_STEPS: ClassVar = {**_SmallMatmulKernel.MAX_STEPS, _VECTORS: 1}

    @classmethod
    def default_config(cls, *, n, k, **sizes):
        """The tile for rows of `n` and `k` elements."""
        return cls._VECTORS if n % 8 == k % 8 == 0 else _ANY_ROWS

    program = staticmethod(partial(matmul_program, batched=True))

    @classmethod
    def samples(cls):
        nn = {"dtype": "bfloat16", "trans_a": False, "trans_b": False}
        return ({**nn, "n": 128, "k": 128}, {**nn, "n": 53, "k": 77})
