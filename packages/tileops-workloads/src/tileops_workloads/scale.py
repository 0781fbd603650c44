"""The `cpu` scale: a row made small enough to be checked on two cores, without losing what makes it hard.

Kept: the residue of every size modulo powers of two (a ragged tail stays ragged), at least three tiles of a
size that was large, at least three of whatever an integer param divides a size into (pages), ratios that the
entry's rules demand (queries per key head), more than one batch and head, and the innermost sizes as long as
the budget allows, since those select a kernel. The rule asks the entry what is legal and knows no op.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tileops_manifest import Binding, Entry

from .dtypes import torch_dtype
from .errors import require_name
from .shapes import Position, Shape

SCALES = ("cpu",)

# Elements of all inputs and outputs together, and operations: a fraction of a second in float64 on two cores.
MAX_ELEMENTS = 1 << 19
MAX_FLOPS = 1 << 27

# A size steps down to count * tile + size % tile, for the next (tile, count) that makes it smaller.
_TILES = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_LADDER = (*((tile, 3) for tile in _TILES), (1, 2), (1, 1))
_FEW_TILES, _FEW_ROWS, _PAIR, _ONE = (_LADDER.index(step) for step in ((64, 3), (2, 3), (1, 2), (1, 1)))

# Up to this, a size counts things (batches, heads) rather than extends along them.
_COUNT = 128
_PAGES = 3


@dataclass(frozen=True)
class Size:
    """One size of the shape that is being scaled: where it stands and what it was."""

    position: Position
    original: int
    innermost: bool

    @property
    def in_pack(self) -> bool:
        return self.position[1] is not None


@dataclass(frozen=True)
class Phase:
    """Which sizes may step down, to which depth of the ladder, and whether pages must survive."""

    may_shrink: Callable[[Size], bool]
    depth: int
    keep_pages: bool = True


# Outer extents to a few tiles; rows; inner extents; counts of batches and heads; then whatever it takes.
_PHASES = (
    Phase(lambda size: not size.innermost, _FEW_TILES),
    Phase(lambda size: not size.innermost and size.in_pack, _FEW_ROWS),
    Phase(lambda size: size.innermost, _FEW_TILES),
    Phase(lambda size: not size.innermost and size.original <= _COUNT, _PAIR),
    Phase(lambda size: not size.innermost, _FEW_ROWS),
    Phase(lambda size: True, _FEW_ROWS, keep_pages=False),
    Phase(lambda size: True, _ONE, keep_pages=False),
)


def scale_shape(entry: Entry, shape: Shape, scale: str = "cpu") -> Shape:
    """`shape` shrunk to the scale's budget, or as near to it as the entry allows; itself when it already
    fits.

    Raises:
        UnknownNameError: no such scale.
        SpecError: the shape is not legal to begin with.
    """
    require_name("scale", scale, SCALES)
    search = _Search(entry, shape)
    for phase in _PHASES:
        while not fits(shape.bind(entry)):
            smaller = search.step(shape, phase)
            if smaller is None:
                break
            shape = smaller
    return search.follow(shape)


def fits(binding: Binding) -> bool:
    """Whether a binding is within the budget."""
    return elements(binding) <= MAX_ELEMENTS and binding.flops <= MAX_FLOPS


def elements(binding: Binding) -> int:
    """Elements of all inputs and outputs; a complex one counts twice, as its parts do."""
    metas = [*binding.inputs.values(), *binding.outputs.values()]
    return sum(
        math.prod(meta.shape) * (2 if torch_dtype(meta.dtype).is_complex else 1)
        for meta in metas
        if meta is not None
    )


class _Search:
    """Steps from a shape to the next smaller legal one."""

    def __init__(self, entry: Entry, original: Shape):
        inner = _innermost(entry, original)
        self.entry = entry
        self.original = original
        self.sizes = [Size(position, size, position in inner) for position, size in original.positions()]
        self.multiples = _multiples(entry, original)
        self.pages: dict[Position, list[int]] = {}
        self.int_params = {
            name: value
            for name, value in original.params.items()
            if isinstance(value, int) and not isinstance(value, bool) and value > 1
        }

    def step(self, shape: Shape, phase: Phase) -> Shape | None:
        """The largest size that may shrink, one step down the ladder; None when none can."""
        movable = [s for s in self.sizes if phase.may_shrink(s) and s.position not in self.multiples]
        for size in sorted(movable, key=lambda s: shape.at(s.position), reverse=True):
            for target in self._targets(
                size.original, shape.at(size.position), phase, self._pages(size, phase)
            ):
                smaller = self._moved(shape, size.position, target)
                if smaller.legal(self.entry) is not None:
                    return smaller
                together = self._with_another(smaller, size.position, phase)
                if together is not None:
                    return together
        return None

    def follow(self, shape: Shape) -> Shape:
        """Int params that lay within the sizes (a window, a number of chosen keys) and no longer do shrink
        too.
        """
        for name, value in self.int_params.items():
            around = [size for size in self.sizes if size.original > value]
            if value > _PAGES and around and all(shape.at(size.position) <= value for size in around):
                shrunk = min(shape.at(size.position) * value // size.original for size in around)
                candidate = shape.with_param(name, max(min(shrunk, shape.params[name]), 1))
                shape = shape if candidate.legal(self.entry) is None else candidate
        return shape

    def _pages(self, size: Size, phase: Phase) -> list[int]:
        """Int params that divide a size into pages which must survive."""
        if size.innermost or not phase.keep_pages:
            return []
        if size.position not in self.pages:
            self.pages[size.position] = self._find_pages(size)
        return self.pages[size.position]

    def _find_pages(self, size: Size) -> list[int]:
        """A multiple of a smaller one by which the size may change is a bound of something, and no page."""
        dividing = [p for p in self.int_params.values() if size.original % p == 0]
        steps = [p for p in dividing if any(self._may_be(size, size.original + d) for d in (p, -p))]
        several = [p for p in dividing if size.original > _PAGES * p]
        return [p for p in several if not any(q < p and p % q == 0 for q in steps)]

    def _may_be(self, size: Size, value: int) -> bool:
        return value >= 0 and self.original.put(size.position, value).legal(self.entry) is not None

    @staticmethod
    def _targets(original: int, current: int, phase: Phase, pages: list[int]) -> list[int]:
        """Sizes below `current`, largest first; whole pages and a few of them, where there are pages."""
        page = math.lcm(*pages) if pages else 1
        least = _PAGES * page if pages else 1
        targets = {count * tile + original % tile for tile, count in _LADDER[: phase.depth + 1]}
        targets |= {least} if pages else set()
        return sorted((t for t in targets if least <= t < current and t % page == 0), reverse=True)

    def _moved(self, shape: Shape, position: Position, target: int) -> Shape:
        """`shape` with a new size, and every size that is a fixed multiple of it moved along."""
        shape = shape.put(position, target)
        for multiple, (base, ratio) in self.multiples.items():
            if base == position:
                shape = shape.put(multiple, ratio * target)
        return shape

    def _with_another(self, shape: Shape, taken: Position, phase: Phase) -> Shape | None:
        """A rule ties this size to another one, or to an int param: move that as well."""
        everything = Phase(phase.may_shrink, _ONE, phase.keep_pages)
        least = _PAGES if phase.keep_pages else 2 if phase.depth < _ONE else 0
        for size in self.sizes:
            if size.position != taken and size.position not in self.multiples:
                targets = self._targets(
                    size.original, shape.at(size.position), everything, self._pages(size, phase)
                )
                for target in (target for target in targets if target >= least):
                    candidate = self._moved(shape, size.position, target)
                    if candidate.legal(self.entry) is not None:
                        return candidate
        if phase.keep_pages:
            return None
        for name, value in self.int_params.items():
            for target in self._targets(value, shape.params[name], everything, []):
                candidate = shape.with_param(name, target)
                if candidate.legal(self.entry) is not None:
                    return candidate
        return None


def _innermost(entry: Entry, shape: Shape) -> set[Position]:
    """Sizes that stand last in the inputs rather than further out, inputs of more axes counting for more.

    Integer inputs, being tables, do not count, nor do vectors: they say nothing of how larger inputs lie in
    memory.
    """
    binding = shape.bind(entry)
    balance: Counter[Position] = Counter()
    last: set[Position] = set()
    for name, meta in binding.inputs.items():
        if meta is None or not meta.shape or entry.inputs[name].values is not None:
            continue
        *leading, inner = _axes(entry, name, binding, shape)
        last |= inner
        for position in inner:
            balance[position] += len(leading)
        for position in (position for axis in leading for position in axis):
            balance[position] -= len(leading)
    return {position for position in last if balance[position] >= 0}


def _axes(entry: Entry, name: str, binding: Binding, shape: Shape) -> Iterator[set[Position]]:
    """For each axis of an input the sizes that it is made of."""
    for item in entry.inputs[name].pattern.select(binding.env).items:
        if item.pack:
            yield from ({(item.name, axis)} for axis in range(len(shape.dims[item.name])))
        else:
            names = {item.name} if item.expression is None else item.expression.names
            yield {(dim, None) for dim in names if dim in shape.dims}


def _multiples(entry: Entry, shape: Shape) -> dict[Position, tuple[Position, int]]:
    """Sizes that a rule wants to be a multiple of another: {multiple: (base, ratio)}. A base is no multiple
    itself.

    Found by asking: one more than the multiple is illegal, and becomes legal when the base is 1; or, for
    sizes that broadcast together, when all others of the same size are 1.
    """
    sizes = list(shape.positions())
    found: dict[Position, tuple[Position, int]] = {}
    for multiple, large in sizes:
        off = shape.put(multiple, large + 1)
        if off.legal(entry) is not None or any(base == multiple for base, _ in found.values()):
            continue
        divisors = [
            (p, small) for p, small in sizes if p != multiple and 1 < small <= large and large % small == 0
        ]
        equals = [p for p, small in divisors if small == large]
        alone = off
        for position in equals:
            alone = alone.put(position, 1)
        tied_to_equals = bool(equals) and alone.legal(entry) is not None
        for base, small in divisors:
            tied = off.put(base, 1).legal(entry) is not None or (base in equals and tied_to_equals)
            if base not in found and tied:
                found[multiple] = (base, large // small)
                break
    return found
