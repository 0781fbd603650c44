"""Whatever legal shape is drawn from an entry's dims, the inputs obey the entry: rules and value domains."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tileops_manifest import Domain, TensorMeta, load_manifest
from tileops_workloads import DISTRIBUTIONS, make_workload
from tileops_workloads.boundary import smallest
from tileops_workloads.scale import elements, scale_shape
from tileops_workloads.shapes import Shape, freeze_dims

MANIFEST = load_manifest()
MAX_ELEMENTS = 1 << 16
SETTINGS = settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

sizes = st.integers(0, 9)
packs = st.lists(sizes, max_size=4).map(tuple)


@cache
def small_shapes(op: str) -> tuple[Shape, ...]:
    """The entry's rows, cut to the smallest that keep their params and optional inputs."""
    entry = MANIFEST[op]
    rows = {repr((sorted(row.params.items()), row.with_)): row for row in entry.workloads}
    shapes = (Shape(freeze_dims(r.dims), dict(r.params), r.dtypes[0], tuple(r.with_)) for r in rows.values())
    return tuple(smallest(entry, scale_shape(entry, shape)) for shape in shapes)


@st.composite
def legal_shapes(draw: st.DrawFn, op: str) -> Shape:
    """A small row with some sizes, packs and dtypes changed, one after another, where the entry allows it."""
    entry = MANIFEST[op]
    shape = draw(st.sampled_from(small_shapes(op)))
    assigned = entry.resolve_dtypes(shape.dtypes)
    for name, dtypes in entry.dtypes.items():
        candidate = replace(shape, dtypes={**assigned, name: draw(st.sampled_from(dtypes))})
        if candidate.legal(entry) is not None:
            shape, assigned = candidate, candidate.dtypes
    for _ in range(draw(st.integers(0, 5))):
        positions = list(shape.positions())
        if not positions:
            break
        position, old = draw(st.sampled_from(positions))
        new = draw(sizes)
        together = shape
        for other, size in positions:
            together = together.put(other, new) if size == old else together
        candidates = [shape.put(position, new), together]
        if isinstance(shape.dims[position[0]], tuple):
            candidates.append(shape.with_dim(position[0], draw(packs)))
        for candidate in candidates:
            binding = candidate.legal(entry)
            if binding is not None and elements(binding) <= MAX_ELEMENTS:
                shape = candidate
    return shape


def broken(domain: Domain, values: torch.Tensor, inputs: dict[str, torch.Tensor | None]) -> str | None:
    """What a domain says and the values do not obey; written from the specification's table."""
    values = values.to(torch.int64)
    if values.numel() == 0 or domain.kind == "any":
        return None
    meant = (
        values != domain.filler if domain.filler is not None else torch.ones_like(values, dtype=torch.bool)
    )
    if domain.low is not None and (meant & (values < domain.low)).any():
        return f"a value below {domain.low}"
    if domain.high is not None and (meant & (values >= domain.high)).any():
        return f"a value not below {domain.high}"
    if (
        domain.above is not None
        and inputs[domain.above] is not None
        and (values < inputs[domain.above]).any()
    ):
        return f"a value below that of {domain.above}"
    rows = values.reshape(-1, values.shape[-1]).tolist() if values.dim() else [[int(values)]]
    return next(filter(None, (_broken_row(domain, row, inputs) for row in rows)), None) or _broken_table(
        domain, rows
    )


def _broken_row(domain: Domain, row: list[int], inputs: dict[str, torch.Tensor | None]) -> str | None:
    steps = [b - a for a, b in pairwise(row)]
    if domain.kind in ("sorted", "offsets") and any(step < 0 for step in steps):
        return "falling values"
    if domain.kind == "offsets" and (row[0] != 0 or row[-1] != domain.total):
        return f"offsets not from 0 to {domain.total}"
    if domain.kind == "offsets" and domain.longest is not None and max(steps, default=0) > domain.longest:
        return f"a segment longer than {domain.longest}"
    if domain.kind in ("distinct", "page_table", "permutation"):
        named = [value for value in row if value != domain.filler]
        if len(set(named)) != len(named):
            return "a value twice in a row"
    if domain.kind == "permutation" and sorted(row) != list(range(domain.high)):
        return f"no permutation of {domain.high}"
    if domain.kind == "parts" and (min(row) < 0 or sum(row) > domain.total):
        return f"parts that are negative or exceed {domain.total}"
    if domain.kind == "starts" and row != [sum(inputs[domain.of].tolist()[:i]) for i in range(len(row))]:
        return f"not where the parts of {domain.of} begin"
    return None


def _broken_table(domain: Domain, rows: list[list[int]]) -> str | None:
    pages = [value for row in rows for value in row]
    return "a page twice in the table" if domain.disjoint and len(set(pages)) != len(pages) else None


@pytest.mark.parametrize("op", list(MANIFEST))
@SETTINGS
@given(data=st.data(), distribution=st.sampled_from(DISTRIBUTIONS), seed=st.integers(0, 3))
def test_inputs_of_any_legal_shape_obey_the_entry(op, data, distribution, seed):
    entry, shape = MANIFEST[op], data.draw(legal_shapes(op))
    workload = make_workload(
        entry, None, shape.dtypes, dims=shape.dims, params=shape.params, with_=shape.with_,
        distribution=distribution, seed=seed,
    )  # fmt: skip
    inputs = workload.gen_inputs()
    metas = {
        name: None
        if tensor is None
        else TensorMeta(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in inputs.items()
    }
    again = entry.bind(metas, workload.params)
    assert (again.outputs, again.dims, again.packs) == (
        workload.binding.outputs, workload.binding.dims, workload.binding.packs,
    )  # fmt: skip
    for name, tensor in inputs.items():
        domain = workload.binding.domain(name)
        if tensor is not None and domain is not None:
            assert broken(domain, tensor, inputs) is None, (workload, name, tensor)


@pytest.mark.parametrize(
    ("domain", "values", "found"),
    [
        (Domain("range", 0, 4), [0, 4], "a value not below 4"),
        (Domain("range", 1, 4), [0, 3], "a value below 1"),
        (Domain("range", 0, 4, above="other"), [3, 1], "a value below that of other"),
        (Domain("sorted", 0, 4), [1, 0], "falling values"),
        (Domain("distinct", 0, 4), [1, 1], "a value twice in a row"),
        (Domain("distinct", 0, 4, filler=-1), [-1, -1, 2], None),
        (Domain("offsets", total=4), [0, 3], "offsets not from 0 to 4"),
        (Domain("offsets", total=4, longest=2), [0, 3, 4], "a segment longer than 2"),
        (Domain("permutation", 0, 3), [0, 2], "no permutation of 3"),
        (Domain("parts", total=4), [2, 3], "parts that are negative or exceed 4"),
        (Domain("starts", of="other"), [0, 1], "not where the parts of other begin"),
        (Domain("page_table", 0, 4, disjoint=True), [[0, 1], [1, 2]], "a page twice in the table"),
        (Domain("page_table", 0, 4), [[0, 1], [1, 2]], None),
    ],
)
def test_a_broken_domain_is_found(domain, values, found):
    assert broken(domain, torch.tensor(values), {"other": torch.tensor([2, 2])}) == found
