"""How a long reduction is shared between blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.reduce import ReduceConfig
from tileops_kernels.ops.flows._axes import Joined, Stage, joined
from tileops_kernels.ops.flows._launch import Part
from tileops_kernels.ops.flows._layout import MAX_ELEMENTS, vector_width
from tileops_kernels.ops.flows._rows import row_pieces

__all__ = [
    "Geometry",
    "Split",
    "form_of",
    "geometry_of",
    "parts_of",
    "size_hint",
    "split_of",
    "stage_width",
    "with_joined",
]

# A split of fewer elements costs more in its second launch than it gains.
_LEAST_ELEMENTS = 4096
# Runs shorter than a cache line would be read several times, by the rows that share it.
_LEAST_RUN_BYTES = 128
# A launch has at most so many blocks along its second axis.
_MOST_OUTER = (1 << 16) - 1


@dataclass(frozen=True)
class Split:
    """How many blocks share one reduction, and how much of it each takes."""

    count: int
    length: int


def split_of(length: int, tile: int, unit: int, blocks: int, config: ReduceConfig) -> Split:
    """Split `length` so that about `config.target_blocks` blocks run; every split is a whole number of tiles.

    Args:
        length: steps along the reduced axis.
        tile: steps of one tile.
        unit: elements a block reads in one step.
        blocks: blocks without splitting.
        config: of the kernel.
    """
    tiles = -(-length // tile)
    # Where there is a second launch, shorter splits cost it nothing.
    worth = length * unit >= 2 * _LEAST_ELEMENTS
    wanted = max(1, min(config.target_blocks // max(blocks, 1), tiles)) if worth else 1
    size = -(-tiles // wanted) * tile
    return Split(-(-length // size), size)


@dataclass(frozen=True)
class Geometry:
    """How one launch walks a stage.

    Attributes:
        split: how the reduced axis is shared.
        whole: a block takes its share in one chunk, and the axis is not split.
        numbers: the launch arguments between the tensors and the count.
    """

    split: Split
    whole: bool
    numbers: tuple[int, ...]


def geometry_of(stage: Stage | Joined, vec: int, config: ReduceConfig) -> Geometry:
    """Return how a stage is walked by blocks of `config`."""
    if isinstance(stage, Joined):
        vectors, run = stage.length // vec, stage.run // vec
        rows = stage.outer * -(-stage.rows // config.rows)
        split = split_of(vectors, config.lanes * config.unroll, vec * config.rows, rows, config)
        numbers = (stage.rows, run, vectors, stage.outer, vectors * stage.rows)
        return Geometry(split, vectors <= config.lanes * config.unroll, numbers)
    if stage.inner == 1:
        vectors, tile = stage.length // vec, config.lanes * config.unroll
        split = split_of(vectors, tile, vec * config.rows, -(-stage.outer // config.rows), config)
        numbers = (stage.outer, vectors, vectors, split.count, split.length)
        return Geometry(split, vectors <= tile, numbers)
    inner, tile = stage.inner // vec, config.rows * config.unroll
    blocks = stage.outer * -(-inner // config.lanes)
    split = split_of(stage.length, tile, min(config.lanes, inner) * vec, blocks, config)
    steps = (stage.length * inner, inner)
    numbers = (stage.outer, stage.length, inner, *steps, split.count, split.length)
    return Geometry(split, stage.length <= tile, numbers)


def form_of(stage: Stage | Joined, geometry: Geometry) -> dict[str, bool]:
    """Return what a program is told of its stage, besides its size: rows may be joined, columns never are."""
    rows = {"joined": isinstance(stage, Joined)} if stage.inner == 1 else {}
    return {"whole": geometry.whole, **rows}


def parts_of(
    stage: Stage | Joined, geometry: Geometry, numbers: tuple[float, ...], outputs: int = 1
) -> list[Part]:
    """Return the launches over all of `outer`, in parts that 32-bit indexing can reach, for a program with
    `outputs` outputs of one size that takes `numbers` last."""
    if isinstance(stage, Joined):
        spans = ((0, stage.elements), *((0, stage.outputs),) * outputs)
        return [Part(spans, (*geometry.numbers, *numbers))]
    pitch, out_pitch = stage.length * stage.inner, geometry.split.count * stage.inner
    return [
        Part(
            ((start * pitch, outer * pitch), *((start * out_pitch, outer * out_pitch),) * outputs),
            (outer, *geometry.numbers[1:], *numbers),
        )
        for start, outer in row_pieces(stage.outer, pitch)
    ]


def size_hint(stage: Stage | Joined, vec: int) -> dict[str, int]:
    if stage.inner == 1:
        return {"vectors": stage.length // vec, "rows": stage.outputs}
    return {"inner": stage.inner // vec, "outer": stage.outer, "length": stage.length}


def stage_width(source: torch.Tensor, stage: Stage | Joined, target: torch.Tensor) -> int:
    """Columns are written as they are read, rows write one element each."""
    if isinstance(stage, Joined):
        return vector_width([source], stage.run)
    return (
        vector_width([source], stage.length)
        if stage.inner == 1
        else vector_width([source, target], stage.inner)
    )


def with_joined(plan: Sequence[Stage], kernel: type[Kernel], x: torch.Tensor) -> list[Stage | Joined]:
    """Return the plan with its first two stages in one launch of `kernel`, where enough rows come out of them
    that none is split."""
    first = joined(plan)
    if (
        first is None
        or first.elements > MAX_ELEMENTS
        or first.outer > _MOST_OUTER
        or first.run * x.element_size() < _LEAST_RUN_BYTES
    ):
        return list(plan)
    vec = stage_width(x, first, x)
    split = geometry_of(first, vec, kernel.config_for(x.device, **size_hint(first, vec))).split
    return [first, *plan[2:]] if split.count == 1 else list(plan)
