"""LayerNorm: `(x - mean) / sqrt(var + eps) * weight + bias` per row, optionally of `x + residual`."""

import tilelang.language as T

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.rowwise_norm import CONFIGS, DTYPES, NormConfig, norm_body, scaled_and_shifted
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS


class LayerNormKernel(Kernel):
    """Normalisation of rows to mean 0 and (biased) variance 1.

    Program arguments: x, (residual,) weight, bias, output, (residual_out,) number of rows, row step of x (and
    of residual) in vectors, eps. Tensors are flat.
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
            statistic="layer",
            vectors=vectors,
            vec=vec,
            dtype=dtype,
            config=config,
            residual=residual,
            apply=scaled_and_shifted,
        )
        hidden = vectors * vec
        nx, nr, ny = T.dynamic("nx"), T.dynamic("nr"), T.dynamic("ny")

        if residual:

            @T.prim_func
            def fused_add_layer_norm(
                x: T.Tensor((nx,), dtype),
                residual_in: T.Tensor((nr,), dtype),
                weight: T.Tensor((hidden,), dtype),
                bias: T.Tensor((hidden,), dtype),
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
                    [weight, bias],
                    output,
                    residual_out,
                    None,
                    num_rows,
                    x_step,
                    residual_step,
                    eps,
                )

            return fused_add_layer_norm

        @T.prim_func
        def layer_norm(
            x: T.Tensor((nx,), dtype),
            weight: T.Tensor((hidden,), dtype),
            bias: T.Tensor((hidden,), dtype),
            output: T.Tensor((ny,), dtype),
            num_rows: T.int32,
            x_step: T.int32,
            eps: T.float32,
        ):
            body(x, None, [weight, bias], output, None, None, num_rows, x_step, 0, eps)

        return layer_norm

    @classmethod
    def samples(cls):
        """Return aligned, ragged, narrow and chunked rows, with and without a residual."""
        return (
            {"vectors": 512, "vec": 8, "dtype": "bfloat16", "residual": False},
            {"vectors": 4095, "vec": 1, "dtype": "float16", "residual": False},
            {"vectors": 25, "vec": 4, "dtype": "float32", "residual": False},
            {"vectors": 16384, "vec": 8, "dtype": "bfloat16", "residual": False},
            {"vectors": 1024, "vec": 8, "dtype": "bfloat16", "residual": True},
        )
