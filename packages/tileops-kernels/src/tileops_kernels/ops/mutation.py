"""Ops that write an input: always, or when a param says so (`inplace=True`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tileops_kernels.errors import ConfigError

if TYPE_CHECKING:
    from tileops_kernels.ops.signature import CallSignature
    from tileops_manifest import Entry

__all__ = ["Mutation"]


@dataclass(frozen=True)
class Mutation:
    """Which inputs an op writes, when, and which outputs they are.

    The condition is a table over the bool params it reads rather than an expression, so that `torch.compile`
    can trace the decision.

    Attributes:
        inputs: positions of the inputs written.
        returned: per output, the position of the input that it is, or None for a new tensor.
        params: positions of the params that decide.
        writes: the values of those params for which the inputs are written.
    """

    inputs: tuple[int, ...]
    returned: tuple[int | None, ...]
    params: tuple[int, ...]
    writes: frozenset[tuple[bool, ...]]

    @property
    def conditional(self) -> bool:
        return bool(self.params)

    @classmethod
    def of(cls, entry: Entry, signature: CallSignature) -> Mutation | None:
        """Derive the record from an entry; None for an op that writes no input.

        Raises:
            ConfigError: inputs are written under different conditions, or one that reads more than bool
                params.
        """
        written = [i for i, name in enumerate(signature.inputs) if entry.inputs[name].mutated]
        if not written:
            return None
        conditions = {entry.inputs[signature.inputs[i]].mutated_when for i in written}
        if len(conditions) != 1:
            raise ConfigError(
                f"{entry.name}: inputs that are written under different conditions are not supported"
            )
        condition = conditions.pop()
        names = sorted(condition.names) if condition is not None else []
        for name in names:
            if name not in entry.params or str(entry.params[name].type) != "bool":
                raise ConfigError(f"{entry.name}: `{condition}` reads {name!r}, expected bool params only")
        combinations = itertools.product((False, True), repeat=len(names))
        return cls(
            inputs=tuple(written),
            returned=tuple(
                None if spec.alias is None else signature.inputs.index(spec.alias)
                for spec in entry.outputs.values()
            ),
            params=tuple(signature.params.index(name) for name in names),
            writes=frozenset(
                values
                for values in combinations
                if condition is None or condition.evaluate(dict(zip(names, values, strict=True)))
            ),
        )

    def applies(self, params: Sequence[Any]) -> bool:
        """True if a call with these params writes its inputs."""
        return tuple([params[i] for i in self.params]) in self.writes

    def drop(self, result: Any) -> tuple[Any, ...]:
        """Return the outputs that are new tensors: what the torch operator returns."""
        outputs = result if isinstance(result, tuple) else (result,)
        return tuple(
            [output for output, source in zip(outputs, self.returned, strict=True) if source is None]
        )

    def restore(self, fresh: Any, inputs: Sequence[Any]) -> Any:
        """Return all outputs, from the new ones and the written inputs. Undoes `drop`."""
        remaining = list(fresh) if isinstance(fresh, tuple | list) else [fresh]
        outputs = [remaining.pop(0) if source is None else inputs[source] for source in self.returned]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
