"""What a case is judged by: the oracle in float64, in the specified precision, and one step below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tileops_manifest import Binding, TensorMeta
from tileops_tests.comparator import OutputReference, widen
from tileops_tests.precision import (
    FORMATS,
    PARTS,
    dtype_name,
    is_float,
    one_step_down,
    round_significand,
    torch_dtype,
)
from tileops_tests.tolerance import Constants, bound_of

# Ops that only add and multiply: on `exact` inputs every order of accumulation gives the same bits. That the
# oracle in the specified precision equals the oracle in float64 is checked on every such case, so a wrong row
# here cannot excuse.
RING_OPS = frozenset(
    {
        "AddFwdOp",
        "SubFwdOp",
        "MulFwdOp",
        "SumFwdOp",
        "CumsumFwdOp",
        "GemmFwdOp",
        "BmmFwdOp",
        "Conv1dFwdOp",
        "Conv2dFwdOp",
        "Conv3dFwdOp",
    }
)
EXACT_DISTRIBUTIONS = frozenset({"exact", "sparse-exact"})

# Distributions on which the values themselves are evidence; `adversarial` inputs test masks, `exact` ones
# test bits.
NUMERIC_DISTRIBUTIONS = frozenset({"normal", "structured"})


class OracleLike(Protocol):
    """The part of an oracle that a verdict needs."""

    def ref_program(
        self,
        inputs: dict[str, Tensor | None],
        params: dict[str, Any],
        compute_dtype: torch.dtype = ...,
        intermediates: Mapping[str, torch.dtype] | None = ...,
    ) -> tuple[Tensor, ...]: ...

    def wide_program(
        self, inputs: dict[str, Tensor | None], params: dict[str, Any]
    ) -> tuple[Tensor, ...]: ...

    def scale(
        self, inputs: dict[str, Tensor | None], params: dict[str, Any]
    ) -> tuple[Tensor | None, ...]: ...

    def canonical_form(
        self, inputs: dict[str, Tensor | None], params: dict[str, Any], outputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]: ...

    def reduction_length(self, inputs: dict[str, Tensor | None], params: dict[str, Any]) -> int: ...


def accumulation_dtype(binding: Binding) -> str:
    """The specified precision of arithmetic; entries that accumulate nothing compute in float32 at least."""
    accumulate = binding.entry.numerics.accumulate
    if accumulate == "output":
        accumulate = real_parts(next(iter(binding.outputs.values()))).dtype
    return "float64" if accumulate == "float64" else "float32"


def real_parts(meta: TensorMeta) -> TensorMeta:
    """What is compared of a tensor: of a complex one its real and imaginary parts, in a further axis."""
    part = PARTS.get(meta.dtype)
    return meta if part is None else TensorMeta((*meta.shape, 2), part)


def build_references(
    binding: Binding,
    oracle: OracleLike,
    inputs: dict[str, Tensor | None],
    constants: Constants,
    *,
    distribution: str = "normal",
    with_low: bool = True,
) -> list[OutputReference]:
    """One reference per result: outputs, then mutated inputs that no output is. `with_low` also computes
    e_low, which only the refusal of a case needs.
    """
    references = _references(binding, oracle, inputs, constants, distribution, with_low)
    return [replace(r, complex=binding.results[r.name].dtype in PARTS) for r in references]


def _references(
    binding: Binding,
    oracle: OracleLike,
    inputs: dict[str, Tensor | None],
    constants: Constants,
    distribution: str,
    with_low: bool,
) -> list[OutputReference]:
    params, numerics = binding.params, binding.entry.numerics
    acc = accumulation_dtype(binding)
    if acc == "float64":
        precise = oracle.wide_program(inputs, params)
    else:
        precise = oracle.ref_program(inputs, params, torch.float64)
    metas = [(name, real_parts(meta)) for name, meta in binding.results.items()]
    _check_arity(binding, metas, precise)
    if numerics.exact or not any(is_float(meta.dtype) for _, meta in metas):
        signed = numerics.negative_zero in ("ieee", "copied", "zero")
        rounded = tuple(rounded_to(ref, meta.dtype) for (_, meta), ref in zip(metas, precise, strict=True))
        canonical = oracle.canonical_form(inputs, params, rounded)
        return [
            OutputReference(name, dtype_name(expected.dtype), expected.contiguous(), signed_zero=signed)
            for (name, _), expected in zip(metas, canonical, strict=True)
        ]
    stored = {name: torch_dtype(dtype) for name, dtype in binding.intermediates.items()}
    base = oracle.ref_program(inputs, params, torch_dtype(acc), stored)
    if distribution in EXACT_DISTRIBUTIONS and binding.entry.name in RING_OPS and _agree(base, precise):
        return [
            _exact(name, meta.dtype, ref, False) for (name, meta), ref in zip(metas, precise, strict=True)
        ]
    low = precise
    if with_low and any(_is_rounded(tensor) for tensor in inputs.values()):
        low = oracle.ref_program(_lowered(binding, inputs), params, torch_dtype(acc), stored)
    elif with_low:
        low = _lowered_outputs(binding, metas, precise)
    scales = oracle.scale(inputs, params)
    length = oracle.reduction_length(inputs, params)
    references = []
    for (name, meta), ref, base_out, low_out, scale in zip(metas, precise, base, low, scales, strict=True):
        if not is_float(meta.dtype):
            references.append(_exact(name, meta.dtype, ref, False))
            continue
        ref64, base64 = ref.to(torch.float64), widen(base_out.to(torch_dtype(meta.dtype)))
        e_base = (base64 - ref64).abs()
        bound = bound_of(
            ref64, e_base, scale, length, out_dtype=meta.dtype, acc_dtype=acc, constants=constants
        )
        e_low = (widen(low_out.to(torch_dtype(meta.dtype))) - ref64).abs() if with_low else None
        resolution = _coarsest(meta.dtype, *binding.intermediates.values())
        expected = rounded_to(ref64, meta.dtype)
        references.append(
            OutputReference(
                name, meta.dtype, expected, ref64, base64, e_base, e_low, bound, resolution=resolution
            )
        )
    return references


def sees_lower_precision(references: Sequence[OutputReference]) -> bool:
    """Whether e_low exceeds twice the bound somewhere: else a result one step down the ladder would pass.

    Outputs that are compared exactly see everything.
    """
    bounded = [r for r in references if r.bound is not None and r.bound.numel()]
    return not bounded or any(bool((r.e_low > 2 * r.bound).any()) for r in bounded)


def _check_arity(
    binding: Binding, metas: Sequence[tuple[str, TensorMeta]], outputs: Sequence[Tensor]
) -> None:
    if len(outputs) != len(metas):
        raise ValueError(
            f"{binding.entry.name}: the oracle gave {len(outputs)} results, expected {len(metas)}"
        )
    for (name, meta), output in zip(metas, outputs, strict=True):
        if tuple(output.shape) != tuple(meta.shape):
            raise ValueError(
                f"{binding.entry.name}: oracle: {name}.shape is {tuple(output.shape)}, expected {meta.shape}"
            )


def _coarsest(*dtypes: str) -> str:
    return min(dtypes, key=lambda dtype: FORMATS[dtype].bits)


def _exact(name: str, dtype: str, ref: Tensor, signed_zero: bool) -> OutputReference:
    return OutputReference(name, dtype, rounded_to(ref, dtype), signed_zero=signed_zero)


def rounded_to(ref: Tensor, dtype: str) -> Tensor:
    """To the output dtype with one rounding: torch converts float64 to 16 bits through float32, rounding
    twice.
    """
    if ref.dtype is torch.float64 and is_float(dtype):
        ref = round_significand(ref, FORMATS[dtype].bits)
    return ref.to(torch_dtype(dtype)).contiguous()


def _agree(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(bool((x.to(torch.float64) == y.to(torch.float64)).all()) for x, y in zip(a, b, strict=True))


def _is_rounded(tensor: Tensor | None) -> bool:
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def _lowered_outputs(
    binding: Binding, metas: Sequence[tuple[str, TensorMeta]], outputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """What an op without floating inputs gives one step down the ladder: its outputs, rounded."""
    allowed = binding.entry.numerics.tf32

    def lower(output: Tensor, dtype: str) -> Tensor:
        if not is_float(dtype):
            return output
        return round_significand(
            output.to(torch.float64), FORMATS[one_step_down(dtype, tf32_allowed=allowed)].bits
        )

    return tuple(lower(output, meta.dtype) for output, (_, meta) in zip(outputs, metas, strict=True))


def _lowered(binding: Binding, inputs: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Floating inputs one step down the ladder, in their own dtype (fewer bits always fit)."""
    allowed = binding.entry.numerics.tf32

    def lower(tensor: Tensor | None) -> Tensor | None:
        if tensor is not None and tensor.is_complex():
            return torch.view_as_complex(lower(torch.view_as_real(tensor)))
        if tensor is None or not tensor.dtype.is_floating_point:
            return tensor
        name = str(tensor.dtype).removeprefix("torch.")
        bits = FORMATS[one_step_down(name, tf32_allowed=allowed)].bits
        return round_significand(widen(tensor), bits).to(tensor.dtype)

    return {name: lower(tensor) for name, tensor in inputs.items()}
