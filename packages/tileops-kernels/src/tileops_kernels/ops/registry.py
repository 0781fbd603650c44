"""The table op name -> flow, collected from the flow modules.

Every public module of `tileops_kernels.ops.flows` declares its own rows:

    OPS: dict[str, Flow] = {"SumFwdOp": Reduction("sum"), "MeanFwdOp": Reduction("mean")}

so that adding an op touches one file. Modules are imported on first use: they load TileLang.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import ModuleType

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.ops import flows
from tileops_kernels.ops.flows.base import Flow

__all__ = ["FLOWS", "FlowTable", "require_flow"]

# Not flows themselves: the base class, and modules that several flows share (leading underscore).
_HELPERS = frozenset({"base"})


def _flow_modules() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(flows.__path__):
        if module.name not in _HELPERS and not module.name.startswith("_"):
            yield importlib.import_module(f"{flows.__name__}.{module.name}")


class FlowTable(Mapping[str, Flow]):
    """Read-only mapping from op name to its flow. Reading it loads the flow modules once."""

    @cached_property
    def _table(self) -> dict[str, Flow]:
        table: dict[str, Flow] = {}
        owner: dict[str, str] = {}
        for module in _flow_modules():
            for op, flow in module.OPS.items():
                if op in table:
                    raise ValueError(
                        f"{op} is declared by two flow modules: {owner[op]} and {module.__name__}"
                    )
                table[op], owner[op] = flow, module.__name__
        return table

    def __getitem__(self, op: str) -> Flow:
        return self._table[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


FLOWS = FlowTable()


def require_flow(op: str) -> None:
    """Check that the op is implemented. Loads the flow modules, which Dynamo cannot trace: it runs this.

    Raises:
        NotImplementedOpError: the op is spec-only.
    """
    if op not in FLOWS:
        raise NotImplementedOpError(
            op,
            argument="op",
            got="spec-only",
            expected="implemented",
            message="the op is spec-only: the manifest specifies it, and no kernel implements it",
        )


# What `torch.compiler.assume_constant_result` does; calling that would load Dynamo.
require_flow._dynamo_marked_constant = True  # type: ignore[attr-defined]
