"""The flow table, and that entries, flows and kernel classes agree on what is implemented."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tileops_kernels.kernels import list_kernels
from tileops_kernels.ops import CATALOG, list_ops, registry
from tileops_kernels.ops.flows.base import Flow
from tileops_kernels.ops.registry import FLOWS, FlowTable


def test_every_flow_belongs_to_an_entry():
    assert set(FLOWS) <= set(CATALOG.manifest.entries)
    assert all(isinstance(flow, Flow) for flow in FLOWS.values())
    assert len(FLOWS) == len(list(FLOWS))


@pytest.mark.parametrize("name", list_ops(implemented=True))
def test_an_op_with_a_flow_maps_kernels_in_its_entry(name):
    assert CATALOG.manifest[name].kernel_map


# The other way round an entry may come first: it names its kernel, and claims no target until there is one.
@pytest.mark.parametrize("name", list_ops(implemented=False))
def test_an_op_without_a_flow_claims_no_target(name):
    assert set(CATALOG.manifest[name].status.model_dump().values()) == {"spec-only"}


@pytest.mark.parametrize("name", list_ops(implemented=True))
def test_kernel_map_names_kernel_classes(name):
    assert set(CATALOG.manifest[name].kernel_map.values()) <= set(list_kernels())


@pytest.mark.parametrize("name", list_ops(implemented=True))
def test_a_flow_launches_the_kernels_of_its_entry(name):
    assert set(CATALOG.manifest[name].kernel_map.values()) <= {
        kernel.__name__ for kernel in FLOWS[name].kernels
    }


def test_an_op_declared_twice_is_refused(monkeypatch):
    first, second = ModuleType("first"), ModuleType("second")
    first.OPS = second.OPS = {"AddFwdOp": FLOWS["AddFwdOp"]}
    monkeypatch.setattr(registry, "_flow_modules", lambda: iter([first, second]))
    with pytest.raises(ValueError, match="AddFwdOp is declared by two flow modules: first and second"):
        FlowTable()["AddFwdOp"]


def test_importing_the_ops_does_not_import_tilelang():
    import subprocess

    code = "import sys, tileops_kernels.ops; assert 'tilelang' not in sys.modules, 'tilelang was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
