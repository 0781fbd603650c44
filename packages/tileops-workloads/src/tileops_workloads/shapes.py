"""Free shapes: dims as a mapping, tried against an entry's own rules.

A shape is `{dim: int, pack: tuple of ints}`. Nothing here knows any op: whether a shape is legal is always
the entry's answer (`entry.bind_dims`), and relations between dims (a head count that must divide another)
are found by asking it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tileops_manifest import Binding, Entry, SpecError

from .errors import LayoutError

Dims = Mapping[str, int | tuple[int, ...]]
Position = tuple[str, int | None]


@dataclass(frozen=True)
class Shape:
    """Everything that fixes the shapes of a call: dims, params, dtypes and which optional inputs are
    given.
    """

    dims: Dims
    params: Mapping[str, Any]
    dtypes: Mapping[str, str] | str
    with_: tuple[str, ...] = ()

    def bind(self, entry: Entry) -> Binding:
        """The entry's binding of this shape. Raises the entry's SpecError when it is not legal."""
        return entry.bind_dims(dict(self.dims), dict(self.params), self.dtypes, self.with_)

    def legal(self, entry: Entry) -> Binding | None:
        """The binding, or None where a rule of the entry forbids the shape, or where a param makes a size
        negative.
        """
        try:
            binding = self.bind(entry)
        except SpecError:
            return None
        metas = (meta for meta in binding.inputs.values() if meta is not None)
        return binding if all(size >= 0 for meta in metas for size in meta.shape) else None

    def positions(self) -> Iterator[tuple[Position, int]]:
        """Every size in the shape, each with where it stands: a dim, or one element of a pack."""
        for name, size in self.dims.items():
            if isinstance(size, int):
                yield (name, None), size
            else:
                yield from (((name, axis), element) for axis, element in enumerate(size))

    def at(self, position: Position) -> int:
        """The size at a position."""
        name, axis = position
        return self.dims[name] if axis is None else self.dims[name][axis]

    def put(self, position: Position, size: int) -> Shape:
        """The same shape with another size at one position."""
        name, axis = position
        if axis is None:
            return self.with_dim(name, size)
        pack = self.dims[name]
        return self.with_dim(name, (*pack[:axis], size, *pack[axis + 1 :]))

    def with_dim(self, name: str, value: int | tuple[int, ...]) -> Shape:
        """The same shape with one dim or pack replaced."""
        return replace(self, dims={**self.dims, name: value})

    def with_param(self, name: str, value: Any) -> Shape:
        """The same shape with one param replaced."""
        return replace(self, params={**self.params, name: value})


def freeze_dims(dims: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Packs as tuples, dims as they are."""
    return {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in dims.items()}


def zero_dim(entry: Entry, shape: Shape) -> Shape:
    """`shape` with every pack empty, so that its tensors have as few dims as the entry allows.

    Raises:
        LayoutError: the entry needs at least one dim there.
    """
    packs = [name for name, value in shape.dims.items() if not isinstance(value, int)]
    scalar = replace(shape, dims={**shape.dims, **dict.fromkeys(packs, ())})
    if not packs or scalar.legal(entry) is None:
        raise LayoutError(f"{entry.name} does not take 0-D inputs with dims {dict(shape.dims)}")
    return scalar


def empty(entry: Entry, shape: Shape) -> Shape:
    """`shape` with the first size set to 0 that the entry allows to be 0.

    Raises:
        LayoutError: the entry allows none.
    """
    for position, _ in shape.positions():
        candidate = shape.put(position, 0)
        binding = candidate.legal(entry)
        if binding is not None and any(meta and 0 in meta.shape for meta in binding.inputs.values()):
            return candidate
    raise LayoutError(f"{entry.name} does not take empty inputs with dims {dict(shape.dims)}")
