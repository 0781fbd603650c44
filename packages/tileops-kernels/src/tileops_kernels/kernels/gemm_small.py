"""Products so small that what counts is how soon a block begins: no copy engine, no roles, small tiles.

The tile program is that of `gemm.py`. Threads read global memory themselves, which needs no descriptor and no
second group of warps, and reaches rows of any length.
"""

from functools import partial
from typing import ClassVar

from tileops_kernels.kernels.gemm import MatmulConfig, matmul_program
from tileops_kernels.kernels.gemm_hopper_parts import HopperProductKernel, only

__all__ = ["BmmSmallKernel", "GemmSmallKernel"]


class _SmallMatmulKernel(HopperProductKernel):
    """What the product of two matrices and of two stacks of them share."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    PASS_CONFIGS: ClassVar = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}
    Config = MatmulConfig
    MAX_STEPS: ClassVar[int]  # of the loop over k

    @classmethod
    def suits(cls, device, *, m, n, k, dtype, batch=1):
        """True if the kernel is written for the device and dtype, and the product is one short round."""
        config = cls.CONFIGS.pick("cuda", "sm_90a", {})
        tiles = batch * -(-m // config.block_m) * -(-n // config.block_n)
        small = tiles <= cls.UNITS and -(-k // config.block_k) <= cls.MAX_STEPS
        return small and dtype in cls.SUPPORTED_DTYPES and cls.serves_device(device)


class GemmSmallKernel(_SmallMatmulKernel):
    """`d[m, n] = op(a) @ op(b)`; m is symbolic, n and k are static."""

    # Up to here it is faster than to copy a transposed `a` whose rows the copy engine cannot address.
    MAX_STEPS = 8
    CONFIGS = only(MatmulConfig(16, 32, 32, 64, 3))

    program = staticmethod(partial(matmul_program, batched=False))

    @classmethod
    def samples(cls):
        return (
            {"n": 131, "k": 77, "dtype": "bfloat16", "trans_a": True, "trans_b": False},
            {"n": 64, "k": 128, "dtype": "float16", "trans_a": True, "trans_b": True},
        )


class BmmSmallKernel(_SmallMatmulKernel):
    """`d[batch, m, n] = op(a) @ op(b)`; batch and m are symbolic, n and k are static."""

    MAX_STEPS = 1
    CONFIGS = only(MatmulConfig(64, 32, 128, 128, 1))

    @classmethod
    def suits(cls, device, *, n, k, **sizes):
        """As for `GemmSmallKernel`, with rows of whole vectors."""
        return n % 8 == 0 and k % 8 == 0 and super().suits(device, n=n, k=k, **sizes)

    program = staticmethod(partial(matmul_program, batched=True))

    @classmethod
    def samples(cls):
        return ({"n": 128, "k": 128, "dtype": "bfloat16", "trans_a": False, "trans_b": False},)
