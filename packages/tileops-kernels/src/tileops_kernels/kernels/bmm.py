"""Batched matrix product `d[b] = op(a[b]) @ op(b[b])`: the tile program of `gemm.py` with a batch axis."""

from functools import partial

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm import EXACT_CONFIGS, MatmulConfig, matmul_program

__all__ = ["BmmKernel"]


class BmmKernel(Kernel):
    """`d[batch, m, n] = op(a) @ op(b)`; batch and m are symbolic, n and k are static."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    Config = MatmulConfig
    # By n, so that a narrow product does not compute a half-empty tile.
    CONFIGS = ConfigTable(
        size=lambda s: s["n"],
        devices={
            "cpu": ((None, MatmulConfig(64, 64, 64, 128, 0)),),
            "sm_80": ((64, MatmulConfig(64, 64, 64, 128, 3)), (None, MatmulConfig(128, 128, 32, 128, 3))),
            "sm_90a": (
                (64, MatmulConfig(128, 64, 64, 128, 4)),
                (384, MatmulConfig(128, 128, 64, 256, 4)),
                (None, MatmulConfig(128, 256, 64, 256, 4)),
            ),
        },
    )

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        table = EXACT_CONFIGS if sizes["dtype"] == "float32" else cls.CONFIGS
        return table.pick(target, arch, sizes)

    program = staticmethod(partial(matmul_program, batched=True))

    @classmethod
    def samples(cls):
        nn = {"dtype": "bfloat16", "trans_a": False, "trans_b": False}
        return (
            {**nn, "n": 1024, "k": 1024},
            {**nn, "n": 128, "k": 128},
            {**nn, "n": 64, "k": 70},
            {**nn, "n": 96, "k": 96, "dtype": "float32"},
            {**nn, "n": 256, "k": 256, "trans_a": True, "trans_b": True},
        )
