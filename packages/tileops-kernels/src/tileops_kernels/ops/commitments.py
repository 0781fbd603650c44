"""Dims given at construction: `GemmFwdOp(N=4096)` promises that every call has that N, and the op holds
callers to it.

A commitment is checked against the shapes it can be read off directly, in plain Python, so that it holds
under `torch.compile` as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tileops_kernels.errors import InputTypeError, ParamError, ShapeError

if TYPE_CHECKING:
    from tileops_manifest import Entry

__all__ = ["Commitment", "commitments_of"]


@dataclass(frozen=True)
class Commitment:
    """One dim or pack and the sizes promised for it.

    Attributes:
        op: class name of the op.
        name: the dim or pack, as the entry names it.
        sizes: the promised sizes; one for a dim.
        places: where it stands: (input, its position, start and stop of the axes).
    """

    op: str
    name: str
    sizes: tuple[int, ...]
    places: tuple[tuple[str, int, int, int | None], ...]

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise ShapeError if a given input has other sizes."""
        for argument, position, start, stop in self.places:
            tensor = inputs[position]
            if tensor is None:
                continue
            if tuple(tensor.shape[start:stop]) != self.sizes:
                raise ShapeError(
                    self.op,
                    f"{argument}.shape is {tuple(tensor.shape)}, expected {self.name} = {self.sizes} "
                    f"(given at construction) at [{start}:{'' if stop is None else stop}]",
                    argument=argument,
                    got=tuple(tensor.shape),
                    expected=self.sizes,
                    rule="dims given at construction hold for every call",
                )


def commitments_of(
    entry: Entry, given: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[Commitment, ...]:
    """Return the commitments of an instance, from dims given by name and the instance's params.

    Raises:
        ParamError: a value is not a size (or sizes, for a pack).
        InputTypeError: the dim stands in no input on its own.
    """
    return tuple(_commitment(entry, name, value, params) for name, value in given.items())


def _commitment(entry: Entry, name: str, value: Any, params: Mapping[str, Any]) -> Commitment:
    pack = entry.dims[name].pack
    sizes = tuple(value) if pack and isinstance(value, list | tuple) else (value,)
    if (pack and not isinstance(value, list | tuple)) or not all(type(n) is int and n >= 0 for n in sizes):
        expected = "a list of sizes" if pack else "a size"
        raise ParamError(
            entry.name,
            f"{name} is {value!r}, expected {expected}",
            argument=name,
            got=value,
            expected=expected,
            rule="commitment",
        )
    places = tuple(_places(entry, name, params))
    if not places:
        raise InputTypeError(
            entry.name,
            argument=name,
            message=f"{name} cannot be given at construction: no input has it as a dim of its own",
        )
    return Commitment(entry.name, name, sizes, places)


def _places(entry: Entry, name: str, params: Mapping[str, Any]) -> Any:
    for position, (argument, spec) in enumerate(entry.inputs.items()):
        items = spec.shape.select(params).items
        packs = [i for i, item in enumerate(items) if item.pack]
        for i, item in enumerate(items):
            # Axes can be told from the left before the only pack, from the right behind it.
            if item.name != name or item.expression is not None or len(packs) > 1:
                continue
            behind = len(items) - i - 1
            if item.pack:
                yield argument, position, i, -behind if behind else None
            elif packs and packs[0] < i:
                yield argument, position, -behind - 1, -behind if behind else None
            else:
                yield argument, position, i, i + 1
