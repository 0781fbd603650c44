"""LayerNorm: `(x - mean) / sqrt(var + eps) * weight + bias` per row, optionally of `x + residual`."""

from tileops_kernels.kernels.rowwise_norm import (
    NormKernel,
    scaled_and_shifted,
    weighted_norm,
    weighted_samples,
)

_program = weighted_norm("layer_norm", "layer", ("weight", "bias"), scaled_and_shifted)


class LayerNormKernel(NormKernel):
    """Normalisation of rows to mean 0 and (biased) variance 1.

    Program arguments: x, (residual,) weight, bias, output, (residual_out,) number of rows, row step of x (and
    of residual) in vectors, eps. Tensors are flat.
    """

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
        return _program(vectors, vec, dtype, residual, config)

    @classmethod
    def samples(cls):
        """Return aligned, ragged, narrow and chunked rows, with and without a residual."""
        return weighted_samples()
