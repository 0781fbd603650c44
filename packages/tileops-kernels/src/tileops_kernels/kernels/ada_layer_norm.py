"""Adaptive LayerNorm: `scale * layer_norm(x) + shift`, all of one shape, optionally times a gate.

Source: arXiv:2212.09748.
"""

import tilelang.language as T

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.rowwise_norm import CONFIGS, DTYPES, NormConfig, norm_body
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS


class AdaLayerNormKernel(Kernel):
    """Normalisation of rows to mean 0 and (biased) variance 1, each element then scaled and shifted.

    Program arguments: x, scale, shift, (gate,) output, number of rows, row steps of all but the output in
    vectors, eps. Tensors are flat.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    Config = NormConfig
    CONFIGS = CONFIGS
    PASS_CONFIGS = PASS_CONFIGS

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

        def modulated(value, row, column, operands):
            scale, shift, *gate = (
                T.cast(tensor[row * step * vec + column], "float32") for tensor, step in operands
            )
            moved = value * scale + shift
            return moved * gate[0] if gate else moved

        body = norm_body(
            statistic="layer", vectors=vectors, vec=vec, dtype=dtype, config=config, apply=modulated
        )
        nx, n0, n1, n2, ny = (T.dynamic(name) for name in ("nx", "n0", "n1", "n2", "ny"))

        if gated:

            @T.prim_func
            def ada_layer_norm_zero(
                x: T.Tensor((nx,), dtype),
                scale: T.Tensor((n0,), dtype),
                shift: T.Tensor((n1,), dtype),
                gate: T.Tensor((n2,), dtype),
                output: T.Tensor((ny,), dtype),
                num_rows: T.int32,
                x_step: T.int32,
                scale_step: T.int32,
                shift_step: T.int32,
                gate_step: T.int32,
                eps: T.float32,
            ):
                operands = [(scale, scale_step), (shift, shift_step), (gate, gate_step)]
                body(x, None, operands, output, None, None, num_rows, x_step, 0, eps)

            return ada_layer_norm_zero

        @T.prim_func
        def ada_layer_norm(
            x: T.Tensor((nx,), dtype),
            scale: T.Tensor((n0,), dtype),
            shift: T.Tensor((n1,), dtype),
            output: T.Tensor((ny,), dtype),
            num_rows: T.int32,
            x_step: T.int32,
            scale_step: T.int32,
            shift_step: T.int32,
            eps: T.float32,
        ):
            operands = [(scale, scale_step), (shift, shift_step)]
            body(x, None, operands, output, None, None, num_rows, x_step, 0, eps)

        return ada_layer_norm

    @classmethod
    def samples(cls):
        """Return gated and plain rows: aligned, ragged, chunked."""
        return (
            {"vectors": 512, "vec": 8, "dtype": "bfloat16", "gated": True},
            {"vectors": 144, "vec": 8, "dtype": "float16", "gated": False},
            {"vectors": 331, "vec": 1, "dtype": "float32", "gated": True},
            {"vectors": 16384, "vec": 8, "dtype": "bfloat16", "gated": False},
        )
