"""Probe ops: entries of `probe.yaml` on a flow that records, so that the op layer is tested alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.ops import CATALOG
from tileops_kernels.ops.base import make_class
from tileops_kernels.ops.docstrings import docstring_of
from tileops_kernels.ops.flows.base import Flow, Run
from tileops_kernels.ops.functional import make_function
from tileops_kernels.ops.registry import FLOWS
from tileops_kernels.ops.runtime import OpRuntime
from tileops_manifest import Binding, Case, Entry, load_manifest


class RecordingFlow(Flow):
    """Allocates the outputs, fills them with ones in place of a launch, and records every `prepare`."""

    def __init__(self) -> None:
        self.prepared: list[Binding] = []
        self.error: Exception | None = None

    def prepare(self, binding: Binding, inputs: Any) -> Run:
        self.prepared.append(binding)
        if self.error is not None:
            raise self.error
        names = list(binding.entry.inputs)
        sources = [
            names.index(spec.alias) if spec.alias in binding.mutated else None
            for spec in binding.entry.outputs.values()
        ]
        metas = [(meta.shape, torch_dtype(meta.dtype)) for meta in binding.outputs.values()]
        device = next(t.device for t in inputs if t is not None)

        def run(*inputs: Any) -> Any:
            outputs = []
            for source, (shape, dtype) in zip(sources, metas, strict=True):
                output = (
                    inputs[source] if source is not None else torch.empty(shape, dtype=dtype, device=device)
                )
                output.detach().fill_(1)
                outputs.append(output)
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return run


def _probe(entry: Entry) -> SimpleNamespace:
    runtime = OpRuntime(entry)
    flow = RecordingFlow()
    return SimpleNamespace(
        entry=entry,
        runtime=runtime,
        flow=flow,
        op=make_class(runtime, docstring_of(entry, function=False)),
        function=make_function(runtime, docstring_of(entry, function=True)),
    )


@pytest.fixture(scope="session")
def _probes() -> dict[str, SimpleNamespace]:
    # Once per process: an operator can be defined in torch only once.
    manifest = load_manifest(Path(__file__).with_name("probe.yaml"))
    return {entry.function_name.removeprefix("probe_"): _probe(entry) for entry in manifest.entries.values()}


@pytest.fixture
def probes(_probes: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The probe ops (`rows`, `inplace`, `table`, `test`, `gemm`, `window`, `spec_only`), unprepared."""
    for probe in _probes.values():
        if not probe.entry.name.startswith("ProbeSpecOnly"):
            monkeypatch.setitem(FLOWS._table, probe.entry.name, probe.flow)
        probe.runtime.plans.clear()
        probe.flow.prepared.clear()
        probe.flow.error = None
    return SimpleNamespace(**_probes)


def smallest_case(op: str) -> Case:
    """The workload case of an op that moves the fewest bytes."""
    return min(CATALOG.manifest[op].cases(), key=lambda case: case.bind().bytes)


def make_inputs(binding: Binding) -> list[torch.Tensor | None]:
    """Inputs that satisfy a binding, domains of integer inputs included. Their values mean nothing."""
    inputs: list[torch.Tensor | None] = []
    for name, meta in binding.inputs.items():
        if meta is None:
            inputs.append(None)
            continue
        dtype, domain = torch_dtype(meta.dtype), binding.domain(name)
        kind = None if domain is None else domain.kind
        if kind == "parts":
            parts = torch.zeros(meta.shape, dtype=dtype)
            parts[-1] = domain.total
            inputs.append(parts)
        elif kind == "offsets":
            # Parts as even as can be: none is longer than the call allows.
            parts = meta.shape[0] - 1
            inputs.append(
                torch.tensor([domain.total * part // parts for part in range(parts + 1)], dtype=dtype)
            )
        elif kind == "starts":
            inputs.append(torch.zeros(meta.shape, dtype=dtype))  # all but the last part are empty
        elif domain is None or domain.high is None:
            inputs.append(torch.ones(meta.shape, dtype=dtype))
        else:
            # Distinct along the last axis, which the stricter kinds of domain ask for.
            span = max(domain.high - (domain.low or 0), 1)
            values = torch.arange(meta.shape[-1]) % span + (domain.low or 0)
            inputs.append(values.expand(meta.shape).to(dtype).contiguous())
    return inputs


@pytest.fixture
def small_call() -> Callable[[str], tuple[list[torch.Tensor | None], dict[str, Any]]]:
    """`small_call(op)` -> inputs and params of the op's smallest workload case."""

    def build(op: str) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
        binding = smallest_case(op).bind()
        return make_inputs(binding), dict(binding.params)

    return build
