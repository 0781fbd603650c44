"""Oracles of products of matrices in groups of rows, and of the gather after them (arXiv:2211.15841).

Group g has sizes[g] consecutive rows from the sum of the sizes before it on; rows past the last group give 0.

* GroupedGemm: output[rows of g] = a[rows of g] b[g], b [G, N, K] if transposed, else [G, K, N]; with
  transpose_a output[g] = a[rows of g]^T b[rows of g], b [batch_sum, N], or [N, batch_sum] if transposed.
* MoeGroupedGemmNopad: c[rows of e] = a[rows of e] b[e]^T; b [E, n, k].
* MoeGateUp: c[rows of e] = activation(a b[e, :ffn]^T) * (a b[e, ffn:]^T).
* MoeUnpermute: output[t] = sum over j of topk_weights[t, j] * mm2_pad[fwd_idx[t * top_k + j]], -1 adding
  nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, contract_as_step
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.elementwise import gelu, silu
from tileops_tests.oracles.properties import Run, close, doubled

_ACTIVATIONS = {"silu_and_mul": silu, "gelu_and_mul": gelu}
# F.gelu is 0 far below zero, where the complementary error function still is not.
_PUBLIC = {"silu_and_mul": F.silu, "gelu_and_mul": lambda x: x * torch.special.erfc(-x / 2**0.5) / 2}

# How far an activation's slope goes: a roundoff of its argument is worth so much of it.
_SLOPE = 1.2


def _groups(sizes: Tensor) -> Iterator[tuple[int, slice]]:
    start = 0
    for group, size in enumerate(sizes.tolist()):
        yield group, slice(start, start + size)
        start += size


def _grouped(call: Call, product: Callable[[Tensor, Tensor], Tensor] = contract_as_step) -> Outputs:
    a, b, sizes = call["a"], call["b"], call["batch_sizes"]
    transposed = call.param("transpose_b")
    if call.param("transpose_a"):
        rows_of_b = b.mT if transposed else b
        out = torch.zeros((sizes.numel(), a.shape[1], rows_of_b.shape[1]), dtype=a.dtype, device=a.device)
        for g, rows in _groups(sizes):
            out[g] = product(a[rows].mT, rows_of_b[rows])
        return (out,)
    matrices = b.mT if transposed else b
    out = torch.zeros((a.shape[0], matrices.shape[2]), dtype=a.dtype, device=a.device)
    for g, rows in _groups(sizes):
        out[rows] = product(a[rows], matrices[g])
    return (out,)


def _grouped_by_masks(call: Call) -> Outputs:
    """Every group over all rows, those of other groups left out."""
    a, b, sizes = call["a"], call["b"], call["batch_sizes"].to(torch.int64)
    group = torch.repeat_interleave(torch.arange(sizes.numel()), sizes)
    group = F.pad(group, (0, a.shape[0] - group.numel()), value=-1)
    mine = group == torch.arange(sizes.numel())[:, None]
    if call.param("transpose_a"):
        rows_of_b = b.mT if call.param("transpose_b") else b
        selected = (torch.where(m[:, None], a, torch.zeros_like(a)) for m in mine)
        others = (torch.where(m[:, None], rows_of_b, torch.zeros_like(rows_of_b)) for m in mine)
        parts = [x.mT @ y for x, y in zip(selected, others, strict=True)]
        empty = a.new_zeros((0, a.shape[1], rows_of_b.shape[1]))
        return (torch.stack(parts) if parts else empty,)
    matrices = b.mT if call.param("transpose_b") else b
    out = a.new_zeros((a.shape[0], matrices.shape[2]))
    for m, matrix in zip(mine, matrices, strict=True):
        out = torch.where(m[:, None], a @ matrix, out)
    return (out,)


def absolute(call: Call, *names: str) -> Call:
    """The call with the magnitudes of some inputs."""
    return Call({**call.given, **{name: call[name].abs() for name in names}}, call.params, call.dtype)


def _experts(call: Call, of_rows: Callable[[Tensor, Tensor], Tensor], width: int) -> Tensor:
    """`of_rows(rows of a, matrix)` for every expert, 0 past the last."""
    a, b = call["a"], call["b"]
    out = torch.zeros((a.shape[0], width), dtype=a.dtype, device=a.device)
    for e, rows in _groups(call["true_sizes"]):
        out[rows] = of_rows(a[rows], b[e])
    return out


def _expert_products(call: Call) -> Outputs:
    return (_experts(call, lambda x, matrix: contract_as_step(x, matrix.mT), call["b"].shape[1]),)


def _row_by_row(call: Call, of_row: Callable[[Tensor, Tensor], Tensor], width: int) -> Tensor:
    """Each row with its expert's matrix."""
    a, b, sizes = call["a"], call["b"], call["true_sizes"].to(torch.int64)
    out = a.new_zeros((a.shape[0], width))
    owner = torch.repeat_interleave(torch.arange(sizes.numel()), sizes)
    for row, expert in enumerate(owner.tolist()):
        out[row] = of_row(a[row], b[expert])
    return out


def gate_up(call: Call, x: Tensor, matrix: Tensor) -> Tensor:
    half = matrix.shape[0] // 2
    gate, up = contract_as_step(x, matrix[:half].mT), contract_as_step(x, matrix[half:].mT)
    return _ACTIVATIONS[call.param("activation")](gate) * up


def gate_up_public(call: Call, x: Tensor, matrix: Tensor) -> Tensor:
    gate, up = (matrix @ x).chunk(2)
    return _PUBLIC[call.param("activation")](gate) * up


def gate_up_size(x: Tensor, matrix: Tensor) -> Tensor:
    """What roundoffs of the sums are worth in the product, from magnitudes."""
    gate, up = torch.matmul(x, matrix.mT).chunk(2, dim=-1)
    return 2 * _SLOPE * gate * up


def _gate_ups(call: Call) -> Outputs:
    half = call["b"].shape[1] // 2
    return (_experts(call, lambda x, matrix: gate_up(call, x, matrix), half),)


def _gate_up_magnitude(call: Call) -> Magnitudes:
    half = call["b"].shape[1] // 2
    return (_experts(absolute(call, "a", "b"), gate_up_size, half),)


def _unpermute(call: Call) -> Outputs:
    """Copy after copy of each token; a copy that is nowhere contributes nothing, not even 0 * NaN."""
    rows, weights = call["mm2_pad"], call["topk_weights"]
    place = call["fwd_idx"].to(torch.int64).reshape(weights.shape)
    copies = rows[place.clamp(min=0)] * weights[..., None]
    copies = copies.masked_fill((place < 0)[..., None], 0)
    return (accumulate(copies.transpose(0, 1)),)


def _unpermute_by_scatter(call: Call) -> Outputs:
    """Rows added to the tokens that they belong to."""
    rows, weights = call["mm2_pad"], call["topk_weights"]
    place = call["fwd_idx"].to(torch.int64)
    used = torch.nonzero(place >= 0).reshape(-1)
    out = rows.new_zeros((weights.shape[0], rows.shape[1]))
    contribution = rows[place[used]] * weights.reshape(-1)[used][:, None]
    return (out.index_add(0, used // weights.shape[1], contribution),)


def rows_of_other_groups_do_not_matter(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling a doubles the product, and rows past the last group are 0."""
    (product,) = run(inputs, params)
    (twice,) = run({**inputs, "a": doubled(inputs["a"])}, params)
    if params.get("transpose_a"):
        return close(twice, product * 2)
    used = int(inputs["batch_sizes" if "batch_sizes" in inputs else "true_sizes"].sum())
    return close(twice, product * 2) and bool((product[used:] == 0).all())


def rows_past_the_last_expert_are_zero(run: Run, inputs: Inputs, params: Params) -> bool:
    """And an expert whose matrix is 0 gives 0."""
    (out,) = run({**inputs, "b": torch.zeros_like(inputs["b"])}, params)
    (full,) = run(inputs, params)
    used = int(inputs["true_sizes"].sum())
    finite = inputs["a"].isfinite().all(dim=-1)
    return bool((out[finite] == 0).all()) and bool((full[used:] == 0).all())


def equal_rows_give_the_sum_of_weights(run: Run, inputs: Inputs, params: Params) -> bool:
    """With every row 1 the output is the sum of the weights of the copies that are somewhere."""
    (out,) = run({**inputs, "mm2_pad": torch.ones_like(inputs["mm2_pad"])}, params)
    weights = inputs["topk_weights"].to(torch.float64)
    there = (inputs["fwd_idx"] >= 0).reshape(weights.shape)
    size = weights.abs().nan_to_num(0, 0, 0).sum(dim=-1, keepdim=True)
    return close(out, torch.where(there, weights, 0.0).sum(dim=-1, keepdim=True).expand_as(out), size)


ORACLES = (
    Oracle(
        "GroupedGemmFwdOp",
        _grouped,
        _grouped_by_masks,
        magnitudes=lambda call: _grouped(absolute(call, "a", "b"), torch.matmul),
        length=lambda call: max(call["a"].shape),
        properties=(rows_of_other_groups_do_not_matter,),
    ),
    Oracle(
        "MoeGroupedGemmNopadFwdOp",
        _expert_products,
        lambda call: (_row_by_row(call, lambda x, matrix: matrix @ x, call["b"].shape[1]),),
        magnitudes=lambda call: _expert_products(absolute(call, "a", "b")),
        length=lambda call: call["a"].shape[1],
        properties=(rows_of_other_groups_do_not_matter, rows_past_the_last_expert_are_zero),
    ),
    Oracle(
        "MoeGateUpFwdOp",
        _gate_ups,
        lambda call: (
            _row_by_row(call, lambda x, matrix: gate_up_public(call, x, matrix), call["b"].shape[1] // 2),
        ),
        magnitudes=_gate_up_magnitude,
        length=lambda call: call["a"].shape[1],
        properties=(rows_past_the_last_expert_are_zero,),
    ),
    Oracle(
        "MoeUnpermuteFwdOp",
        _unpermute,
        _unpermute_by_scatter,
        magnitudes=lambda call: _unpermute(absolute(call, "mm2_pad", "topk_weights")),
        length=lambda call: call["topk_weights"].shape[1],
        properties=(equal_rows_give_the_sum_of_weights,),
    ),
)
