"""Flows around the experts of a routed layer: copies of tokens to their experts, and results back.

Up to `CHUNK` copies take one launch to find their places, more take a launch for the ranks in their chunks
and one for the sums over chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.moe_align import (
    MoeAlignKernel,
    MoeAlignPlaceKernel,
    MoeAlignRankKernel,
    MoeAlignStartKernel,
)
from tileops_kernels.kernels.moe_permute import (
    MoePermuteKernel,
    MoePermuteRankKernel,
    MoePermuteRouteKernel,
    MoePermuteStartKernel,
)
from tileops_kernels.kernels.moe_routing import CHUNK, MAX_EXPERTS
from tileops_kernels.kernels.moe_unpermute import MoeUnpermuteKernel
from tileops_kernels.ops.flows._launch import Launch, Part, bind
from tileops_kernels.ops.flows._layout import MAX_ELEMENTS, vector_width
from tileops_kernels.ops.flows._rows import row_layout
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "MoeAlign", "MoePermute", "MoeUnpermute"]

_INDEX = torch.int32


def _bind_whole(
    program: Any,
    device: torch.device,
    operands: Sequence[tuple[torch.Tensor | torch.dtype, int]],
    *numbers: int,
) -> Launch:
    """Return one launch over tensors of fixed lengths, given as (example or dtype, length)."""
    part = Part(tuple((0, length) for _, length in operands), numbers)
    return bind(program, [example for example, _ in operands], device, [part])


def _check_sizes(binding: Binding, experts: str) -> None:
    """Check that the programs can number the experts and all places, before any of it is allocated.

    Raises:
        NotImplementedOpError: names the param of so many experts, or the output of so many elements.
    """
    op = binding.entry.name
    if binding.params[experts] > MAX_EXPERTS:
        raise NotImplementedOpError(
            op, argument=experts, got=binding.params[experts], expected=f"at most {MAX_EXPERTS}"
        )
    for name, output in binding.outputs.items():
        if output.dtype == "int32" and prod(output.shape) > MAX_ELEMENTS:
            raise NotImplementedOpError(
                op,
                argument=f"{name}.shape",
                got=tuple(output.shape),
                expected=f"at most {MAX_ELEMENTS} elements",
                rule="places are numbered with 32 bits",
            )


def _index(tensor: torch.Tensor) -> tuple[torch.Tensor | torch.dtype, int]:
    """An index input: read as it is if it is contiguous, else from a copy."""
    return (tensor if tensor.is_contiguous() else tensor.dtype), tensor.numel()


class MoePermute(Flow):
    """Rows of tokens gathered by local expert, and where each copy went."""

    kernels = (MoePermuteKernel, MoePermuteRankKernel, MoePermuteStartKernel, MoePermuteRouteKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        _check_sizes(binding, "num_experts_local")
        x, ids, mapped = inputs
        device, dtype = x.device, x.dtype
        (tokens, hidden), top_k = x.shape, ids.shape[1]
        copies, local = ids.numel(), binding.params["num_experts_local"]
        if copies == 0:

            def run_empty(*inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
                sizes = [torch.zeros(local, dtype=_INDEX, device=device) for _ in range(2)]
                first = torch.zeros(local + 1, dtype=torch.int64, device=device)
                return torch.empty(0, hidden, dtype=dtype, device=device), *sizes, first, ids.new_empty(0)

            return run_empty

        rows = row_layout(x, 1)
        fresh = torch.empty(0, dtype=dtype, device=device)
        example = fresh if rows.step is None else x
        vec = vector_width([example, fresh], hidden, rows.pitch)
        chunks = -(-copies // CHUNK)
        share = {"local": local, "mapped": mapped is not None}
        # Without a map the program takes the ids in its place.
        read = [_index(ids), _index(ids if mapped is None else mapped)]
        starts = [(_INDEX, local), (_INDEX, local), (torch.int64, local + 1)]
        counts = chunks * (local + 1) if chunks > 1 else 1
        move = _bind_whole(
            MoePermuteKernel.compiled(
                device, **share, top_k=top_k, alone=chunks == 1, dtype=dtype_name(dtype), vec=vec
            ),
            device,
            [
                (dtype if rows.step is None else x, rows.span(0, tokens)[1]),
                *read,
                (_INDEX, copies),
                (_INDEX, counts),
                starts[2],
                (dtype, copies * hidden),
                (_INDEX, copies),
            ],
            tokens,
            rows.pitch // vec,
            hidden // vec,
        )
        if chunks == 1:
            route = _bind_whole(
                MoePermuteRouteKernel.compiled(device, **share), device, [*read, (_INDEX, copies), *starts]
            )
        else:
            rank_chunks = _bind_whole(
                MoePermuteRankKernel.compiled(device, **share),
                device,
                [*read, (_INDEX, copies), (_INDEX, counts)],
            )
            sum_chunks = _bind_whole(
                MoePermuteStartKernel.compiled(device, local=local),
                device,
                [(_INDEX, counts), *starts],
                chunks,
            )

        def run(
            x: torch.Tensor, ids: torch.Tensor, expert_map: torch.Tensor | None
        ) -> tuple[torch.Tensor, ...]:
            ids = ids.contiguous()
            expert_map = ids if expert_map is None else expert_map.contiguous()
            rank, places, base = (
                torch.empty(length, dtype=_INDEX, device=device) for length in (copies, copies, counts)
            )
            offsets, sizes = (torch.empty(local, dtype=_INDEX, device=device) for _ in range(2))
            first = torch.empty(local + 1, dtype=torch.int64, device=device)
            output = torch.empty((copies, hidden), dtype=dtype, device=device)
            if chunks == 1:
                route(ids, expert_map, rank, offsets, sizes, first)
            else:
                rank_chunks(ids, expert_map, rank, base)
                sum_chunks(base, offsets, sizes, first)
            move(rows.source(x), ids, expert_map, rank, base, first, output, places)
            return output, offsets, sizes, first, places

        return run


class MoeAlign(Flow):
    """Copies listed by expert in whole blocks."""

    kernels = (MoeAlignKernel, MoeAlignRankKernel, MoeAlignStartKernel, MoeAlignPlaceKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        _check_sizes(binding, "num_experts")
        (ids,) = inputs
        device, copies = ids.device, ids.numel()
        experts, block_size = binding.params["num_experts"], binding.params["block_size"]
        lengths = [prod(output.shape) for output in binding.outputs.values()]
        if copies == 0:
            return lambda ids: tuple(
                torch.full((length,), value, dtype=_INDEX, device=device)
                for length, value in zip(lengths, (0, -1, 0), strict=True)
            )

        static = {"experts": experts, "block_size": block_size}
        listed, owners, total = ((_INDEX, length) for length in lengths)
        chunks, read, rank = -(-copies // CHUNK), _index(ids), (_INDEX, copies)
        if chunks == 1:
            align = _bind_whole(
                MoeAlignKernel.compiled(device, **static), device, [read, listed, owners, total]
            )

            def run_alone(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
                outputs = [torch.empty(length, dtype=_INDEX, device=device) for length in lengths]
                align(ids.contiguous(), *outputs)
                return tuple(outputs)

            return run_alone

        counts, starts = (_INDEX, chunks * experts), (_INDEX, experts)
        rank_chunks = _bind_whole(
            MoeAlignRankKernel.compiled(device, experts=experts), device, [read, rank, counts, listed, owners]
        )
        sum_chunks = _bind_whole(
            MoeAlignStartKernel.compiled(device, **static), device, [counts, starts, total], chunks
        )
        place = _bind_whole(
            MoeAlignPlaceKernel.compiled(device, **static),
            device,
            [read, rank, counts, starts, listed, owners],
        )

        def run(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ids = ids.contiguous()
            listed, owners, total = (torch.empty(length, dtype=_INDEX, device=device) for length in lengths)
            rank, base, starts = (
                torch.empty(length, dtype=_INDEX, device=device)
                for length in (copies, chunks * experts, experts)
            )
            rank_chunks(ids, rank, base, listed, owners)
            sum_chunks(base, starts, total)
            place(ids, rank, base, starts, listed, owners)
            return listed, owners, total

        return run


class MoeUnpermute(Flow):
    """Weighted sums of the rows of a token's copies."""

    kernels = (MoeUnpermuteKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, index, weights = inputs
        device, dtype = x.device, x.dtype
        (tokens, copies), hidden = weights.shape, x.shape[1]
        if tokens == 0:
            return lambda x, index, weights: torch.empty(0, hidden, dtype=dtype, device=device)
        rows = row_layout(x, 1)
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([fresh if rows.step is None else x, fresh], hidden, rows.pitch)
        program = MoeUnpermuteKernel.compiled(device, copies=copies, dtype=dtype_name(dtype), vec=vec)
        launch = _bind_whole(
            program,
            device,
            [
                (dtype if rows.step is None else x, rows.span(0, rows.count)[1]),
                _index(index),
                _index(weights),
                (dtype, tokens * hidden),
            ],
            tokens,
            rows.pitch // vec,
            hidden // vec,
        )

        def run(x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            output = torch.empty((tokens, hidden), dtype=dtype, device=device)
            launch(rows.source(x), index.contiguous(), weights.contiguous(), output)
            return output

        return run


OPS: dict[str, Flow] = {
    "MoePermuteNopadFwdOp": MoePermute(),
    "MoePermuteAlignFwdOp": MoeAlign(),
    "MoeUnpermuteFwdOp": MoeUnpermute(),
}
