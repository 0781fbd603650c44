"""GroupNorm: LayerNorm of each group of channels, scaled and shifted per channel.

A row is one group of one sample: `channels * spatial` adjacent elements; the channel of an element is its
column divided by `spatial`.
"""

import tilelang.language as T

from tileops_kernels.kernels.rowwise_norm import NormKernel, Operands, norm_body, scaled_and_shifted
from tileops_kernels.kernels.signatures import flat_tensors, prim_func


class GroupNormKernel(NormKernel):
    """Normalisation of groups of channels.

    Program arguments: x, (weight, bias,) output, number of rows (samples times groups), eps. Tensors are flat
    and contiguous.
    """

    @staticmethod
    def program(*, vectors, vec, dtype, groups, channels, affine, config):
        """Return the tile program.

        Args:
            vectors: vectors of a row.
            vec: elements of a vector; tensors are aligned to it.
            dtype: dtype of all tensors.
            groups: groups of a sample.
            channels: channels of a group.
            affine: there are a weight and a bias.
            config: block geometry.
        """
        spatial = vectors * vec // channels

        def of_channel(operand, row, column):
            return operand[(row % groups) * channels + column // spatial]

        norm = norm_body(
            statistic="layer",
            vectors=vectors,
            vec=vec,
            dtype=dtype,
            config=config,
            operands=Operands(scaled_and_shifted, of_channel) if affine else Operands(),
        )
        nx = T.dynamic("nx")
        weights = ("weight", "bias") if affine else ()
        parameters = {
            **flat_tensors(dtype, x=nx),
            **flat_tensors(dtype, **dict.fromkeys(weights, groups * channels)),
            **flat_tensors(dtype, output=nx),
            "num_rows": T.int32,
            "eps": T.float32,
        }

        def body(x, output, num_rows, eps, **given):
            operands = [given[name] for name in weights]
            norm(x, None, operands, output, None, None, num_rows, vectors, 0, eps)

        return prim_func("group_norm" + "_affine" * affine, parameters, body)

    @classmethod
    def samples(cls):
        """Return an aligned, a ragged and a chunked group, with and without weights."""
        return (
            {"vectors": 512, "vec": 8, "dtype": "bfloat16", "groups": 32, "channels": 4, "affine": False},
            {"vectors": 512, "vec": 8, "dtype": "bfloat16", "groups": 32, "channels": 4, "affine": True},
            {"vectors": 931, "vec": 1, "dtype": "float32", "groups": 5, "channels": 7, "affine": True},
            {"vectors": 65536, "vec": 8, "dtype": "float16", "groups": 8, "channels": 8, "affine": True},
        )
