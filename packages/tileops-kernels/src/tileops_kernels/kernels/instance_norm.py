"""InstanceNorm: LayerNorm of each channel of each instance, scaled and shifted per channel.

A row is one channel of one instance: its adjacent elements.

Source: arXiv:1607.08022.
"""

import tilelang.language as T

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.rowwise_norm import CONFIGS, DTYPES, NormConfig, norm_body, scaled_and_shifted
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS


class InstanceNormKernel(Kernel):
    """Normalisation of channels of instances by their own statistics.

    Program arguments: x, (weight, bias,) output, (means, variances,) number of rows (instances times
    channels), eps. Tensors are flat and contiguous; variances are biased.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    Config = NormConfig
    CONFIGS = CONFIGS
    PASS_CONFIGS = PASS_CONFIGS

    @staticmethod
    def program(*, vectors, vec, dtype, channels, affine, statistics, config):
        """Return the tile program.

        Args:
            vectors: vectors of a row.
            vec: elements of a vector; tensors are aligned to it.
            dtype: dtype of x, weight, bias and output.
            channels: channels of an instance.
            affine: there are a weight and a bias.
            statistics: write means and variances of the rows, float32.
            config: block geometry.
        """

        def per_channel(value, row, column, operands):
            if not operands:
                return value
            return scaled_and_shifted(value, row, row % channels, operands)

        body = norm_body(
            statistic="layer", vectors=vectors, vec=vec, dtype=dtype, config=config, apply=per_channel
        )
        nx, rows = T.dynamic("nx"), T.dynamic("rows")

        @T.macro
        def normalise(x, affine_operands, output, moments, num_rows, eps):
            body(x, None, affine_operands, output, None, moments, num_rows, vectors, 0, eps)

        if affine and statistics:

            @T.prim_func
            def instance_norm_affine_statistics(
                x: T.Tensor((nx,), dtype),
                weight: T.Tensor((channels,), dtype),
                bias: T.Tensor((channels,), dtype),
                output: T.Tensor((nx,), dtype),
                means: T.Tensor((rows,), "float32"),
                variances: T.Tensor((rows,), "float32"),
                num_rows: T.int32,
                eps: T.float32,
            ):
                normalise(x, [weight, bias], output, [means, variances], num_rows, eps)

            return instance_norm_affine_statistics

        if affine:

            @T.prim_func
            def instance_norm_affine(
                x: T.Tensor((nx,), dtype),
                weight: T.Tensor((channels,), dtype),
                bias: T.Tensor((channels,), dtype),
                output: T.Tensor((nx,), dtype),
                num_rows: T.int32,
                eps: T.float32,
            ):
                normalise(x, [weight, bias], output, None, num_rows, eps)

            return instance_norm_affine

        if statistics:

            @T.prim_func
            def instance_norm_statistics(
                x: T.Tensor((nx,), dtype),
                output: T.Tensor((nx,), dtype),
                means: T.Tensor((rows,), "float32"),
                variances: T.Tensor((rows,), "float32"),
                num_rows: T.int32,
                eps: T.float32,
            ):
                normalise(x, [], output, [means, variances], num_rows, eps)

            return instance_norm_statistics

        @T.prim_func
        def instance_norm(
            x: T.Tensor((nx,), dtype), output: T.Tensor((nx,), dtype), num_rows: T.int32, eps: T.float32
        ):
            normalise(x, [], output, None, num_rows, eps)

        return instance_norm

    @classmethod
    def samples(cls):
        """Return aligned, ragged and chunked channels, with and without weights and statistics."""
        image = {"vectors": 128, "vec": 8, "dtype": "float16", "channels": 128}
        image = {**image, "affine": True, "statistics": False}
        return (
            image,
            {**image, "affine": False, "statistics": True},
            {**image, "vectors": 133, "vec": 1, "dtype": "float32", "statistics": True},
            {**image, "vectors": 131072, "affine": False},
        )
