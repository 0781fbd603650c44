"""Inputs of one row in the measuring process: several buffers with different values, and values to surprise
with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tileops_bench.fingerprint import fingerprint
from tileops_bench.records import Code, Problem

Inputs = dict[str, torch.Tensor | None]
SLOTS = 3
LOW_MEMORY_SLOTS = 2
SLOT_BUDGET = {"cpu": 512 << 20, "cuda": 8 << 30}


def input_bytes(inputs: Inputs) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in inputs.values() if t is not None)


@dataclass
class InputPool:
    """Rotating input sets.

    Timed calls go round the slots, so that no call finds its inputs where the last one left them. For a kept
    call the values of its slot are exchanged for ones that this buffer has never held: a result remembered by
    address, or from the warm-up, is then a wrong one.

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

    def surprise(self, slot: int) -> None:
        """Exchange the values of a slot's buffers for the spare ones, in place."""
        for name, tensor in self.slots[slot].items():
            other = self.spare[name]
            if tensor is None or other is None:
                continue
            held = tensor.clone()
            tensor.copy_(other)
            other.copy_(held)
        self._expected[slot], self._spare_expected = self._spare_expected, self._expected[slot]

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
