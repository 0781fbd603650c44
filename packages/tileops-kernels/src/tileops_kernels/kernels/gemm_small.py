"""Products so small that what counts is how soon a block begins: no copy engine, no roles, small tiles.

The tile program is that of `gemm.py`. Threads read global memory themselves, which needs no descriptor and no
second group of warps, and reaches rows of any length.
"""

from typing import ClassVar

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm import MatmulConfig, matmul_program

__all__ = ["BmmSmallKernel", "GemmSmallKernel"]


class _SmallMatmulKernel(Kernel):
    """What the product of two matrices and of two stacks of them share."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    ARCHS = frozenset({"sm_90a"})
    PASS_CONFIGS: ClassVar = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}
    Config = MatmulConfig
    UNITS = 132
    MAX_STEPS: ClassVar[int]  # of the loop over k

    @classmethod
    def suits(cls, device, *, m, n, k, dtype, batch=1):
        """True if the kernel is written for the device and dtype, and the product is one short round."""
        config = cls.CONFIGS.pick("cuda", "sm_90a", {})
        tiles = batch * -(-m // config.block_m) * -(-n // config.block_n)
        small = tiles <= cls.UNITS and -(-k // config.block_k) <= cls.MAX_STEPS
        return small and dtype in cls.SUPPORTED_DTYPES and cls.serves_device(device)

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        return cls.CONFIGS.pick(target, arch, sizes)


class GemmSmallKernel(_SmallMatmulKernel):
    """`d[m, n] = op(a) @ op(b)`; m is symbolic, n and k are static."""

    # Up to here it is faster than to copy a transposed `a` whose rows the copy engine cannot address.
    MAX_STEPS = 8
    CONFIGS = ConfigTable(
        size=lambda s: 0,
        devices={"sm_90a": ((None, MatmulConfig(16, 32, 32, 64, 3)),)},
        everywhere=False,
    )

    @staticmethod
    def program(*, n, k, dtype, trans_a, trans_b, config):
        return matmul_program(
            n=n, k=k, dtype=dtype, trans_a=trans_a, trans_b=trans_b, batched=False, config=config
        )

    @classmethod
    def samples(cls):
        return (
            {"n": 131, "k": 77, "dtype": "bfloat16", "trans_a": True, "trans_b": False},
            {"n": 64, "k": 128, "dtype": "float16", "trans_a": True, "trans_b": True},
        )


class BmmSmallKernel(_SmallMatmulKernel):
    """`d[batch, m, n] = op(a) @ op(b)`; batch and m are symbolic, n and k are static."""

    MAX_STEPS = 1
    CONFIGS = ConfigTable(
        size=lambda s: 0,
        devices={"sm_90a": ((None, MatmulConfig(64, 32, 128, 128, 1)),)},
        everywhere=False,
    )

    @classmethod
    def suits(cls, device, *, n, k, **sizes):
        """As for `GemmSmallKernel`, with rows of whole vectors."""
        return n % 8 == 0 and k % 8 == 0 and super().suits(device, n=n, k=k, **sizes)

    @staticmethod
    def program(*, n, k, dtype, trans_a, trans_b, config):
        return matmul_program(
            n=n, k=k, dtype=dtype, trans_a=trans_a, trans_b=trans_b, batched=True, config=config
        )

    @classmethod
    def samples(cls):
        return ({"n": 128, "k": 128, "dtype": "bfloat16", "trans_a": False, "trans_b": False},)
