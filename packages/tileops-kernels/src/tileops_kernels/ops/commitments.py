"""Dims given at construction: `GemmFwdOp(N=4096)` promises that every call has that N, and the op holds
callers to it.

A commitment is checked against the shapes it can be read off directly, in plain Python, so that it holds
under `torch.compile` as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        argument, message = self._mismatch(inputs)
        if message is not None:
            raise ShapeError(
                self.op,
                message,
                argument=argument,
                expected=self.sizes,
                rule="dims given at construction hold for every call",
            )

    def check_traced(self, inputs: Sequence[Any]) -> None:
        """Do the same under `torch.compile`, which can trace the raising of built-in errors only."""
        _, message = self._mismatch(inputs)
        if message is not None:
            raise ValueError(f"{self.op}: {message}")

    def _mismatch(self, inputs: Sequence[Any]) -> tuple[str | None, str | None]:
        for argument, position, start, stop in self.places:
            tensor = inputs[position]
            if tensor is not None and tuple(tensor.shape[start:stop]) != self.sizes:
                shape = tuple(tensor.shape)
                return (
                    argument,
                    f"{argument}.shape is {shape}, expected {self.name} = {self.sizes} as constructed",
                )
        return None, None


def commitments_of(
    entry: Entry, given: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[Commitment, ...]:
    """Return the commitments of an instance, from dims given by name and the instance's params.

    Raises:
        ParamError: a value is not a size (or sizes, for a pack).
        InputTypeError: no input shows where the dim stands.
    """
    sizes = {name: _sizes(entry, name, value) for name, value in given.items()}
    lengths = {name: len(value) for name, value in sizes.items() if entry.dims[name].pack}
    for spec in entry.params.values():
        if spec.binds is not None and isinstance(params[spec.name], list | tuple):
            lengths.setdefault(spec.binds, len(params[spec.name]))
    return tuple(_commitment(entry, name, value, params, lengths) for name, value in sizes.items())


def _sizes(entry: Entry, name: str, value: Any) -> tuple[int, ...]:
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
            rule="dims given at construction are sizes",
        )
    return sizes


def _commitment(
    entry: Entry, name: str, sizes: tuple[int, ...], params: Mapping[str, Any], lengths: Mapping[str, int]
) -> Commitment:
    places = tuple(_places(entry, name, params, lengths))
    if not places:
        raise InputTypeError(
            entry.name,
            argument=name,
            message=f"{name} cannot be given at construction: no input shows where it stands",
        )
    return Commitment(entry.name, name, sizes, places)


def _places(
    entry: Entry, name: str, params: Mapping[str, Any], lengths: Mapping[str, int]
) -> Iterator[tuple[str, int, int, int | None]]:
    for position, (argument, spec) in enumerate(entry.inputs.items()):
        items = spec.shape.select(params).items
        widths = [lengths.get(item.name) if item.pack else 1 for item in items]
        for i, item in enumerate(items):
            if item.name != name or item.expression is not None:
                continue
            before, behind = _total(widths[:i]), _total(widths[i + 1 :])
            if before is not None and widths[i] is not None:
                yield argument, position, before, before + widths[i]
            elif behind is not None and widths[i] is not None:
                yield argument, position, -behind - widths[i], -behind or None
            elif before is not None and behind is not None:
                yield argument, position, before, -behind or None


def _total(widths: Sequence[int | None]) -> int | None:
    """Return the number of axes that items take, None if one is a pack of unknown length."""
    return None if None in widths else sum(widths)
