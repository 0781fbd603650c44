"""Inputs of one row in the measuring process: several buffers with different values, and values to surprise
with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tileops_bench.fingerprint import fingerprint
from tileops_bench.records import Code, Problem

Inputs = dict[str, torch.Tensor | None]
SLOTS = 3
LOW_MEMORY_SLOTS = 2
SLOT_BUDGET = {"cpu": 512 << 20, "cuda": 8 << 30}
STIR_ELEMENTS = 1 << 20  # the most that one stir exchanges of a tensor: it must not cost more than the call


def input_bytes(inputs: Inputs) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in inputs.values() if t is not None)


@dataclass
class InputPool:
    """Rotating input sets.

    Timed calls go round the slots, so that no call finds its inputs where the last one left them. Before each
    of them part of the slot's values are exchanged for spare ones, at a place that nobody can foresee, and
    put back after it: a result remembered by address, by content or from the warm-up is then a wrong one.

    Args:
        generate: seed → inputs. Seeds 0, 1, … give different values.
        mutated: names of inputs that the entry lets an op write; they are not checked.
        target: cpu or cuda, for the memory budget.
    """

    generate: Callable[[int], Inputs]
    target: str
    mutated: frozenset[str] = frozenset()
    slots: list[Inputs] = field(default_factory=list)
    spare: Inputs = field(default_factory=dict)
    _expected: list[dict[str, str]] = field(default_factory=list)
    _spare_expected: dict[str, str] = field(default_factory=dict)
    _stirred: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _chooser: random.Random = field(default_factory=random.SystemRandom)

    def __post_init__(self) -> None:
        first = self.generate(0)
        small = input_bytes(first) * (SLOTS + 1) <= SLOT_BUDGET[self.target]
        count = SLOTS if small else LOW_MEMORY_SLOTS
        self.slots = [first, *(self.generate(seed) for seed in range(1, count))]
        self.spare = self.generate(count)
        self._expected = [self._marks(slot) for slot in self.slots]
        self._spare_expected = self._marks(self.spare)

    def _marks(self, inputs: Inputs) -> dict[str, str]:
        return {n: fingerprint(t) for n, t in inputs.items() if t is not None and n not in self.mutated}

    def stir(self, slot: int) -> None:
        """Exchange part of a slot's values for spare ones, in place, until `settle`.

        A random run of a floating tensor; all of any other, whose values may have to fit each other.
        """
        for name, tensor in self.slots[slot].items():
            other = self.spare[name]
            if tensor is not None and other is not None and tensor.numel():
                self._stirred.append(self._run(tensor, other))
        self._exchange()

    def settle(self) -> None:
        """Put back what `stir` exchanged."""
        self._exchange()
        self._stirred.clear()

    def _run(self, tensor: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not tensor.is_floating_point() or not (tensor.is_contiguous() and other.is_contiguous()):
            return tensor, other
        size = tensor.numel()
        length = self._chooser.randint(min(-(-size // 8), STIR_ELEMENTS), min(-(-size // 2), STIR_ELEMENTS))
        start = self._chooser.randint(0, size - length)
        return tensor.view(-1)[start : start + length], other.view(-1)[start : start + length]

    def _exchange(self) -> None:
        for mine, other in self._stirred:
            held = mine.clone()
            mine.copy_(other)
            other.copy_(held)

    def fresh_copy(self, slot: int) -> list[torch.Tensor | None]:
        """The slot's values in new storage, as positional arguments."""
        return [None if t is None else t.clone() for t in self.slots[slot].values()]

    def arguments(self, slot: int) -> list[torch.Tensor | None]:
        """The slot's tensors as positional arguments."""
        return list(self.slots[slot].values())

    def changed(self, slot: int) -> list[str]:
        """Names of inputs of a slot whose bits are no longer what was put there."""
        found = self._marks(self.slots[slot])
        return [name for name, mark in self._expected[slot].items() if found[name] != mark]

    def spare_changed(self) -> list[str]:
        """Names of inputs whose spare values are not what they were: written while they were lent."""
        found = self._marks(self.spare)
        return [name for name, mark in self._spare_expected.items() if found[name] != mark]

    def repair(self, slot: int) -> None:
        """Take what a slot holds now as its contents, so that one contender's damage is reported once."""
        self._expected[slot] = self._marks(self.slots[slot])

    def check(self, slot: int) -> Problem | None:
        """The problem that a change of this slot amounts to, if there is one; repairs the slot."""
        names = self.changed(slot)
        if not names:
            return None
        self.repair(slot)
        return Problem(
            code=Code.INPUT_CHANGED, detail=f"wrote to {', '.join(names)}, which the entry does not allow"
        )
