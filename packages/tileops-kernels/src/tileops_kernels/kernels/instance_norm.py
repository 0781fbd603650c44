"""InstanceNorm: LayerNorm of each channel of each instance, scaled and shifted per channel.

A row is one channel of one instance: its adjacent elements.

Source: arXiv:1607.08022.
"""

import tilelang.language as T

from tileops_kernels.kernels.rowwise_norm import NormKernel, Operands, norm_body, scaled_and_shifted
from tileops_kernels.kernels.signatures import flat_tensors, prim_func


class InstanceNormKernel(NormKernel):
    """Normalisation of channels of instances by their own statistics.

    Program arguments: x, (weight, bias,) output, (means, variances,) number of rows (instances times
    channels), eps. Tensors are flat and contiguous; variances are biased.
    """

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

        def of_channel(operand, row, column):
            return operand[row % channels]

        norm = norm_body(
            statistic="layer",
            vectors=vectors,
            vec=vec,
            dtype=dtype,
            config=config,
            operands=Operands(scaled_and_shifted, of_channel) if affine else Operands(),
        )
        nx, rows = T.dynamic("nx"), T.dynamic("rows")
        weights = ("weight", "bias") if affine else ()
        written = ("means", "variances") if statistics else ()
        parameters = {
            **flat_tensors(dtype, x=nx),
            **flat_tensors(dtype, **dict.fromkeys(weights, channels)),
            **flat_tensors(dtype, output=nx),
            **flat_tensors("float32", **dict.fromkeys(written, rows)),
            "num_rows": T.int32,
            "eps": T.float32,
        }

        def body(x, output, num_rows, eps, **given):
            operands, of_rows = [given[name] for name in weights], [given[name] for name in written]
            norm(x, None, operands, output, None, of_rows or None, num_rows, vectors, 0, eps)

        return prim_func("instance_norm" + "_affine" * affine + "_statistics" * statistics, parameters, body)

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
