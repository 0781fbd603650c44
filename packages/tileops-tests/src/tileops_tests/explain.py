"""How one case is judged, for a person who doubts it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from torch import Tensor

from tileops_tests.cases import Case, on_device
from tileops_tests.comparator import OutputReference
from tileops_tests.reference import OracleLike, accumulation_dtype, build_references, sees_lower_precision
from tileops_tests.sensitivity import gate
from tileops_tests.tolerance import constants_for


def explain(case: Case, oracle: OracleLike, target: str, seed: int, console: Console) -> None:
    """Print a case's inputs, numerics, constants, the three errors against the bound, and the sensitivity
    gate.
    """
    entry, binding = case.spec.entry, case.binding
    inputs = case.spec.workload(seed).gen_inputs()
    constants = constants_for(entry.name, target)
    references = build_references(
        binding, oracle, on_device(inputs, target), constants, distribution=case.spec.distribution
    )
    console.print(f"[bold]{entry.name}[/] {case.id}", highlight=False)
    for name, tensor in inputs.items():
        if tensor is not None:
            console.print(
                f"  input {name}: {tensor.dtype}, shape {tuple(tensor.shape)}, stride {tensor.stride()}",
                highlight=False,
            )
    console.print(f"  params: {binding.params}", highlight=False, markup=False)
    console.print(f"  numerics: {entry.numerics.model_dump()}", highlight=False, markup=False)
    length = oracle.reduction_length(inputs, binding.params)
    console.print(
        f"  bound = {constants.k:g}·e_base + {constants.c:g}·u({references[0].dtype})·|ref| "
        f"+ {constants.c2:g}·√{length}·u({accumulation_dtype(binding)})·scale",
        highlight=False,
    )
    console.print(_errors(references))
    gate_table = Table("wrong result", "outcome", title="sensitivity")
    for kind, outcome in gate(references).items():
        gate_table.add_row(kind, outcome.value)
    console.print(gate_table)
    if not sees_lower_precision(references):
        console.print("e_low ≤ 2·bound everywhere: a pass on this case is not evidence of its precision")


def _errors(references: list[OutputReference]) -> Table:
    table = Table(
        "output",
        "comparison",
        "max |ref|",
        "max e_base",
        "max e_low",
        "median bound",
        "max bound",
        "max e_low/bound",
    )
    for reference in references:
        if reference.bound is None or not reference.bound.numel():
            table.add_row(reference.name, "bit for bit", *([""] * 6))
            continue
        ratio = (reference.e_low / reference.bound).nan_to_num(0.0)
        columns = (reference.ref.abs(), reference.e_base, reference.e_low)
        table.add_row(
            reference.name,
            "per element",
            *(f"{_peak(column):.3g}" for column in columns),
            f"{reference.bound.median().item():.3g}",
            f"{_peak(reference.bound):.3g}",
            f"{_peak(ratio):.3g}",
        )
    return table


def _peak(x: Tensor) -> float:
    return x.nan_to_num(0.0, 0.0, 0.0).max().item()
