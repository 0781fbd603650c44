"""How a long reduction is shared between blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tileops_kernels.kernels.reduce import ReduceConfig
from tileops_kernels.ops.flows._axes import Stage
from tileops_kernels.ops.flows._layout import vector_width

__all__ = ["Split", "geometry_of", "size_hint", "split_of", "stage_width"]

# A split of fewer elements costs more in its second launch than it gains.
_LEAST_ELEMENTS = 4096


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
    wanted = max(1, min(config.target_blocks // max(blocks, 1), length * unit // _LEAST_ELEMENTS, tiles))
    size = -(-tiles // wanted) * tile
    return Split(-(-length // size), size)


def geometry_of(stage: Stage, vec: int, config: ReduceConfig) -> tuple[Split, tuple[int, ...]]:
    """Return the split of a stage and the launch arguments between the tensors and the count."""
    if stage.inner == 1:
        vectors = stage.length // vec
        split = split_of(
            vectors, config.lanes * config.unroll, vec * config.rows, -(-stage.outer // config.rows), config
        )
        return split, (stage.outer, vectors, vectors, split.count, split.length)
    inner = stage.inner // vec
    blocks = stage.outer * -(-inner // config.lanes)
    unit = min(config.lanes, inner) * vec
    split = split_of(stage.length, config.rows * config.unroll, unit, blocks, config)
    steps = (stage.length * inner, inner)
    return split, (stage.outer, stage.length, inner, *steps, split.count, split.length)


def size_hint(stage: Stage, vec: int) -> dict[str, int]:
    if stage.inner == 1:
        return {"vectors": stage.length // vec, "rows": stage.outer}
    return {"inner": stage.inner // vec, "outer": stage.outer}


def stage_width(source: torch.Tensor, stage: Stage, target: torch.Tensor) -> int:
    """Columns are written as they are read, rows write one element each."""
    return (
        vector_width([source], stage.length)
        if stage.inner == 1
        else vector_width([source, target], stage.inner)
    )
