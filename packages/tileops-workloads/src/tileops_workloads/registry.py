"""Which workload class serves which op, and `make_workload`, which picks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tileops_manifest import Entry, Row

from .base import WorkloadBase
from .shapes import Shape, freeze_dims

_CLASSES: dict[str, type[WorkloadBase]] = {}


def register(*ops: str) -> Callable[[type[WorkloadBase]], type[WorkloadBase]]:
    """Class decorator: this class makes the inputs of the named ops.

    Raises:
        ValueError: an op already has a class.
    """

    def record(cls: type[WorkloadBase]) -> type[WorkloadBase]:
        for op in ops:
            if op in _CLASSES:
                raise ValueError(f"{op} already has the workload class {_CLASSES[op].__name__}")
            _CLASSES[op] = cls
        return cls

    return record


def workload_class(op: str) -> type[WorkloadBase]:
    """The class registered for an op, else `WorkloadBase`.

    >>> workload_class("AddFwdOp").__name__
    'WorkloadBase'
    """
    return _CLASSES.get(op, WorkloadBase)


def make_workload(
    entry: Entry,
    row: Row | str | None,
    dtypes: Mapping[str, str] | str,
    *,
    dims: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    with_: Iterable[str] | None = None,
    distribution: str = "normal",
    layout: str = "contiguous",
    seed: int = 0,
    device: torch.device | str = "cpu",
    scale: str | None = None,
) -> WorkloadBase:
    """The workload of an entry at a row (given itself or by label) or at a free shape (`row=None` with
    `dims`).

    `dims`, `params` and `with_` given beside a row replace the row's. The class is the one registered for
    the op, else
    `WorkloadBase`. `scale="cpu"` shrinks the row by a rule that keeps its branches.

    Raises:
        UnknownNameError: distribution, layout or scale.
        UnknownRowError: (manifest) a label that the entry does not have.
        SpecError: (manifest) a shape, dtype or param that the entry does not allow.
        LayoutError: no input can take the layout.
        ScaleError: a scale without a row.
    """
    if isinstance(row, str):
        row = entry.row(row)
    shape = Shape(
        dims={**(freeze_dims(row.dims) if row else {}), **freeze_dims(dims or {})},
        params={**(row.params if row else {}), **(params or {})},
        dtypes=dtypes,
        with_=tuple(with_ if with_ is not None else row.with_ if row else ()),
    )
    return workload_class(entry.name)(
        entry, shape, row=row, distribution=distribution, layout=layout, seed=seed, device=device, scale=scale
    )
