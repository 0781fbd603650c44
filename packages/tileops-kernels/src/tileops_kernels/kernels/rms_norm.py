"""RMSNorm: `x / sqrt(mean(x^2) + eps) * weight` per row, optionally of `x + residual`."""

import tilelang.language as T

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.rowwise_norm import CONFIGS, DTYPES, NormConfig, norm_body, scaled
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS


class RMSNormKernel(Kernel):
    """Root-mean-square normalisation of rows.

    Program arguments: x, (residual,) weight, output, (residual_out,) number of rows, row step of x (and of
    residual) in vectors, eps. Tensors are flat.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    Config = NormConfig
    CONFIGS = CONFIGS
    PASS_CONFIGS = PASS_CONFIGS

    @staticmethod
    def program(*, vectors, vec, dtype, residual, config):
        """Return the tile program.

        Args:
            vectors: vectors of a row.
            vec: elements of a vector; tensors and row steps are aligned to it.
            dtype: dtype of all tensors.
            residual: normalise the sum with a residual, and write the sum.
            config: block geometry.
        """
        body = norm_body(
            statistic="rms",
            vectors=vectors,
            vec=vec,
            dtype=dtype,
            config=config,
            residual=residual,
            apply=scaled,
        )
        hidden = vectors * vec
        nx, nr, ny = T.dynamic("nx"), T.dynamic("nr"), T.dynamic("ny")

        if residual:

            @T.prim_func
            def fused_add_rms_norm(
                x: T.Tensor((nx,), dtype),
                residual_in: T.Tensor((nr,), dtype),
                weight: T.Tensor((hidden,), dtype),
                output: T.Tensor((ny,), dtype),
                residual_out: T.Tensor((ny,), dtype),
                num_rows: T.int32,
                x_step: T.int32,
                residual_step: T.int32,
                eps: T.float32,
            ):
                body(
                    x,
                    residual_in,
                    [weight],
                    output,
                    residual_out,
                    None,
                    num_rows,
                    x_step,
                    residual_step,
                    eps,
                )

            return fused_add_rms_norm

        @T.prim_func
        def rms_norm(
            x: T.Tensor((nx,), dtype),
            weight: T.Tensor((hidden,), dtype),
            output: T.Tensor((ny,), dtype),
            num_rows: T.int32,
            x_step: T.int32,
            eps: T.float32,
        ):
            body(x, None, [weight], output, None, None, num_rows, x_step, 0, eps)

        return rms_norm

    @classmethod
    def samples(cls):
        """Return aligned, ragged, narrow and chunked rows, with and without a residual."""
        return (
            {"vectors": 512, "vec": 8, "dtype": "bfloat16", "residual": False},
            {"vectors": 4095, "vec": 1, "dtype": "bfloat16", "residual": False},
            {"vectors": 25, "vec": 4, "dtype": "float32", "residual": False},
            {"vectors": 16384, "vec": 8, "dtype": "float16", "residual": False},
            {"vectors": 1024, "vec": 8, "dtype": "bfloat16", "residual": True},
        )
