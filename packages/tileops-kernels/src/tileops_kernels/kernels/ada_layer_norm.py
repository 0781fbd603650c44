"""Adaptive LayerNorm: `scale * layer_norm(x) + shift`, all of one shape, optionally times a gate.

Source: arXiv:2212.09748.
"""

import tilelang.language as T

from tileops_kernels.kernels.rowwise_norm import NormKernel, Operands, norm_body, scaled_and_shifted
from tileops_kernels.kernels.signatures import flat_tensors, prim_func


class AdaLayerNormKernel(NormKernel):
    """Normalisation of rows to mean 0 and (biased) variance 1, each element then scaled and shifted.

    Program arguments: x, scale, shift, (gate,) output, number of rows, row steps of all but the output in
    vectors, eps. Tensors are flat.
    """

    @staticmethod
    def program(*, vectors, vec, dtype, gated, config):
        """Return the tile program.

        Args:
            vectors: vectors of a row.
            vec: elements of a vector; tensors and row steps are aligned to it.
            dtype: dtype of all tensors.
            gated: there is a gate.
            config: block geometry.
        """

        def modulated(value, scale, shift, *gate):
            moved = scaled_and_shifted(value, scale, shift)
            return moved * T.cast(gate[0], "float32") if gate else moved

        def element(operand, row, column):
            tensor, step = operand
            return tensor[row * step * vec + column]

        norm = norm_body(
            statistic="layer",
            vectors=vectors,
            vec=vec,
            dtype=dtype,
            config=config,
            operands=Operands(modulated, element),
        )
        nx, ny = T.dynamic("nx"), T.dynamic("ny")
        modulation = ("scale", "shift", "gate") if gated else ("scale", "shift")
        parameters = {
            **flat_tensors(dtype, x=nx),
            **flat_tensors(dtype, **{name: T.dynamic(f"n{k}") for k, name in enumerate(modulation)}),
            **flat_tensors(dtype, output=ny),
            "num_rows": T.int32,
            "x_step": T.int32,
            **{f"{name}_step": T.int32 for name in modulation},
            "eps": T.float32,
        }

        def body(x, output, num_rows, x_step, eps, **given):
            operands = [(given[name], given[f"{name}_step"]) for name in modulation]
            norm(x, None, operands, output, None, None, num_rows, x_step, 0, eps)

        return prim_func("ada_layer_norm" + "_zero" * gated, parameters, body)

    @classmethod
    def samples(cls):
        """Return gated and plain rows: aligned, ragged, chunked."""
        return (
            {"vectors": 512, "vec": 8, "dtype": "bfloat16", "gated": True},
            {"vectors": 144, "vec": 8, "dtype": "float16", "gated": False},
            {"vectors": 331, "vec": 1, "dtype": "float32", "gated": True},
            {"vectors": 16384, "vec": 8, "dtype": "bfloat16", "gated": False},
        )
