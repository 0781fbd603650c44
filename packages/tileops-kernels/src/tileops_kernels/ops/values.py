"""Checks of the values of integer inputs: index tables, page tables, offsets.

A bad index makes a kernel read memory that is not the caller's. On a CPU these checks are on; on CUDA they
would make the host wait for the device, so they are on only inside `check_values(True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.errors import ValueDomainError

if TYPE_CHECKING:
    from tileops_kernels.ops.flows.base import Run
    from tileops_manifest import Binding, Domain, Entry

__all__ = ["check_domain", "check_values", "checked_inputs", "value_checks_on", "with_value_checks"]

_choice: ContextVar[bool | None] = ContextVar("tileops_check_values", default=None)


@contextmanager
def check_values(enabled: bool) -> Iterator[None]:
    """Switch value checks of integer inputs on or off, for this thread or task, whatever the device.

    On CUDA they synchronise with the device: not usable while a CUDA graph is captured.

    >>> with check_values(True):
    ...     value_checks_on(torch.device("cuda"))
    True
    >>> value_checks_on(torch.device("cuda")), value_checks_on(torch.device("cpu"))
    (False, True)
    """
    token = _choice.set(enabled)
    try:
        yield
    finally:
        _choice.reset(token)


def value_checks_on(device: torch.device) -> bool:
    """True if a call with inputs on `device` checks the values of its integer inputs."""
    choice = _choice.get()
    return device.type == "cpu" if choice is None else choice


def checked_inputs(binding: Binding) -> dict[str, Domain]:
    """Return the inputs of a call that declare a domain of values, with the domain resolved for this call."""
    domains = {}
    for name, spec in binding.entry.inputs.items():
        if spec.values is not None and spec.values.kind != "any" and binding.inputs.get(name) is not None:
            domains[name] = binding.domain(name)
    return domains


def with_value_checks(run: Run, entry: Entry, domains: Mapping[str, Domain], device: torch.device) -> Run:
    """Return `run`, preceded by the value checks wherever they are switched on."""
    names = tuple(entry.inputs)

    def checked(*inputs: Any) -> Any:
        if value_checks_on(device):
            given = dict(zip(names, inputs, strict=True))
            for name, domain in domains.items():
                check_domain(entry.name, name, domain, given)
        return run(*inputs)

    return checked


def check_domain(op: str, name: str, domain: Domain, inputs: Mapping[str, torch.Tensor | None]) -> None:
    """Check one input against its domain.

    Raises:
        ValueDomainError: names the first value outside, and where it stands.
    """
    values = inputs[name]
    if values.numel() == 0:
        return
    # 64-bit: unsigned index types have no comparison kernels, and bounds may exceed 32 bits.
    values = values.detach().to(torch.int64)
    _check_bounds(op, name, values, domain)
    if domain.above is not None:
        floor = inputs[domain.above]
        if floor is not None:
            _refuse(
                op, name, values, values < floor.to(torch.int64), f"at least {domain.above} there", domain
            )
    if domain.of is not None and inputs[domain.of] is not None:
        begin = inputs[domain.of].detach().to(torch.int64)
        begin = begin.cumsum(dim=-1) - begin
        _refuse(op, name, values, values != begin, f"the sum of {domain.of} before it", domain)
    structure = _STRUCTURE.get(domain.kind)
    if structure is not None:
        structure(op, name, values, domain)


def _check_bounds(op: str, name: str, values: torch.Tensor, domain: Domain) -> None:
    low, high = domain.low, domain.high
    exempt = "" if domain.filler is None else f" or {domain.filler}"
    meant = _meant(values, domain)
    if low is not None:
        expected = f"at least {low}" if high is None else f"in [{low}, {high})"
        _refuse(op, name, values, meant & (values < low), expected + exempt, domain)
    if high is not None:
        expected = f"below {high}" if low is None else f"in [{low}, {high})"
        _refuse(op, name, values, meant & (values >= high), expected + exempt, domain)


def _meant(values: torch.Tensor, domain: Domain) -> torch.Tensor:
    """Where a value stands for itself and is no filler."""
    return torch.ones_like(values, dtype=torch.bool) if domain.filler is None else values != domain.filler


def _check_sorted(op: str, name: str, values: torch.Tensor, domain: Domain) -> None:
    if values.dim():
        falling = torch.zeros_like(values, dtype=torch.bool)
        falling[..., 1:] = values[..., 1:] < values[..., :-1]
        _refuse(op, name, values, falling, "at least the value before it", domain)


def _check_distinct(op: str, name: str, values: torch.Tensor, domain: Domain) -> None:
    if values.dim():
        _refuse(op, name, values, _repeated(values, domain), "distinct in its row", domain)


def _check_page_table(op: str, name: str, values: torch.Tensor, domain: Domain) -> None:
    _check_distinct(op, name, values, domain)
    if domain.disjoint:
        again = _repeated(values.reshape(-1), domain).reshape(values.shape)
        _refuse(op, name, values, again, "distinct in the whole table", domain)


def _repeated(values: torch.Tensor, domain: Domain) -> torch.Tensor:
    """Where a value stands that stood before in its row."""
    ordered, order = values.sort(dim=-1, stable=True)
    repeated = torch.zeros_like(values, dtype=torch.bool)
    repeated[..., 1:] = (ordered[..., 1:] == ordered[..., :-1]) & _meant(ordered, domain)[..., 1:]
    return torch.zeros_like(repeated).scatter(-1, order, repeated)


def _check_offsets(op: str, name: str, values: torch.Tensor, domain: Domain) -> None:
    _check_sorted(op, name, values, domain)
    first = torch.zeros_like(values, dtype=torch.bool)
    first[..., 0] = values[..., 0] != 0
    _refuse(op, name, values, first, "0 (the first offset)", domain)
    if domain.total is not None:
        last = torch.zeros_like(values, dtype=torch.bool)
        last[..., -1] = values[..., -1] != domain.total
        _refuse(op, name, values, last, f"{domain.total} (the last offset)", domain)
    if domain.longest is not None:
        far = torch.zeros_like(values, dtype=torch.bool)
        far[..., 1:] = values.diff(dim=-1) > domain.longest
        _refuse(op, name, values, far, f"at most {domain.longest} above the offset before it", domain)


def _check_parts(op: str, name: str, values: torch.Tensor, domain: Domain) -> None:
    _refuse(op, name, values, values < 0, "not negative", domain)
    over = values.cumsum(dim=-1) > domain.total
    _refuse(op, name, values, over, f"parts that add up to at most {domain.total}", domain)


# Kinds whose values must also fit each other. `range` and `lengths` are bounds alone; a permutation of 0 ..
# high-1 is distinct values within bounds.
_STRUCTURE: dict[str, Callable[[str, str, torch.Tensor, Domain], None]] = {
    "sorted": _check_sorted,
    "distinct": _check_distinct,
    "permutation": _check_distinct,
    "page_table": _check_page_table,
    "offsets": _check_offsets,
    "parts": _check_parts,
}


def _refuse(
    op: str, name: str, values: torch.Tensor, bad: torch.Tensor, expected: str, domain: Domain
) -> None:
    if not bool(bad.any()):
        return
    index = tuple(bad.nonzero()[0].tolist())
    where = f"{name}[{', '.join(map(str, index))}]" if index else name
    got = int(values[index])
    raise ValueDomainError(op, argument=where, got=got, expected=expected, rule=f"values: {domain.kind}")
