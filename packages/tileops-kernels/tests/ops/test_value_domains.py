"""Integer inputs of every entry: values in the declared domain pass, one value outside is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.errors import ValueDomainError
from tileops_kernels.ops import CATALOG
from tileops_kernels.ops.values import check_domain, checked_inputs
from tileops_manifest import Binding, Domain

# Larger inputs say nothing more here.
MAX_VALUES = 1 << 16


def calls() -> Iterator[tuple[str, str]]:
    for op, entry in CATALOG.manifest.items():
        yield from (
            (op, name) for name, spec in entry.inputs.items() if spec.values and spec.values.kind != "any"
        )


def smallest_binding(op: str, name: str) -> Binding:
    """The case with the fewest values of an input."""
    bindings = [case.bind() for case in CATALOG.manifest[op].cases()]
    given = [binding for binding in bindings if binding.inputs[name] is not None]
    return min(given, key=lambda binding: torch.Size(binding.inputs[name].shape).numel())


def legal(domain: Domain, shape: tuple[int, ...]) -> torch.Tensor:
    """Values in a domain; beside an input `of` or `above` that is all 0."""
    if domain.kind in ("parts", "starts"):
        return torch.zeros(shape, dtype=torch.int64)
    if domain.kind == "offsets":
        last = shape[-1] - 1
        even = torch.tensor([domain.total * place // last for place in range(shape[-1])])
        return even.expand(shape).clone()
    low = domain.low or 0
    if domain.kind in ("range", "lengths", "sorted"):
        return torch.full(shape, low)
    rows = torch.arange(shape[-1]) + low
    if domain.disjoint:
        rows = torch.arange(torch.Size(shape).numel()).reshape(shape) + low
    return rows.expand(shape).clone()


def outside(domain: Domain, values: torch.Tensor) -> Iterator[torch.Tensor]:
    """`values` with one of them outside the domain, in each way that its kind knows."""

    def put(place: int, value: int) -> torch.Tensor:
        changed = values.clone()
        changed.view(-1)[place] = value
        return changed

    if domain.kind == "offsets":
        yield from (put(0, 1), put(-1, domain.total + 1))
    elif domain.kind == "parts":
        yield from (put(0, domain.total + 1), put(-1, -1))
    elif domain.kind == "starts":
        yield put(-1, 1)
    else:
        below = domain.low - 1
        yield from (put(-1, below - 1 if below == domain.filler else below), put(0, domain.high))
        if domain.kind in ("distinct", "permutation", "page_table") and values.shape[-1] > 1:
            yield put(-1, int(values.view(-1)[-2]))


@pytest.mark.parametrize(("op", "name"), list(calls()))
def test_a_value_outside_the_domain_is_named(op, name):
    binding = smallest_binding(op, name)
    domain, meta = checked_inputs(binding)[name], binding.inputs[name]
    assert 0 < torch.Size(meta.shape).numel() <= MAX_VALUES
    values = legal(domain, meta.shape)
    others = {
        other: torch.zeros(binding.inputs[other].shape, dtype=torch.int64)
        for other in (domain.of, domain.above)
        if other is not None and binding.inputs[other] is not None
    }
    check_domain(op, name, domain, {**others, name: values.to(torch_dtype(meta.dtype))})
    for wrong in outside(domain, values):
        with pytest.raises(ValueDomainError, match=rf"^{op}: {re.escape(name)}(\[[0-9, ]+\])? is ") as caught:
            check_domain(op, name, domain, {**others, name: wrong})
        assert caught.value.rule == f"values: {domain.kind}"
