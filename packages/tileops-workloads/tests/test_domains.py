"""Integer inputs lie in their domains, whatever the legal shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tileops_manifest import Domain
from tileops_workloads import DISTRIBUTIONS, DomainError
from tileops_workloads.bits import Stream
from tileops_workloads.domains import Request, generate_integers

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)
distributions = st.sampled_from(DISTRIBUTIONS)


def make(domain, shape, distribution="normal", dtype=torch.int32, others=None):
    stream = Stream.named("domains", domain.kind)
    return generate_integers(
        Request("ids", domain, tuple(shape), dtype, distribution, stream, torch.device("cpu"), others or {})
    )


@SETTINGS
@given(st.integers(-5, 5), st.integers(1, 1000), st.integers(0, 40), distributions)
def test_range(low, span, size, distribution):
    x = make(Domain("range", low, low + span), (size,), distribution)
    assert x.shape == (size,)
    assert ((x >= low) & (x < low + span)).all()


@SETTINGS
@given(st.integers(1, 100), st.integers(1, 40), distributions)
def test_an_input_declared_above_another_is_never_below_it(high, size, distribution):
    starts = make(Domain("range", 0, high), (size,), distribution)
    ends = make(
        Domain("range", 0, high + 1, above="starts"), (size,), distribution, others={"starts": starts}
    )
    assert (ends >= starts).all()
    assert (ends <= high).all()


@SETTINGS
@given(st.integers(1, 50), st.integers(1, 9), st.integers(1, 20), distributions)
def test_sorted(high, rows, columns, distribution):
    x = make(Domain("sorted", 0, high), (rows, columns), distribution)
    assert (x.diff(dim=-1) >= 0).all()
    assert ((x >= 0) & (x < high)).all()


@SETTINGS
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 10), distributions)
def test_distinct_and_page_tables_do_not_repeat_within_a_row(rows, high, spare, distribution):
    columns = max(high - spare, 1)
    for kind in ("distinct", "page_table"):
        x = make(Domain(kind, 0, high), (rows, columns), distribution)
        assert all(row.unique().numel() == columns for row in x)
        assert ((x >= 0) & (x < high)).all()


@SETTINGS
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10), distributions)
def test_disjoint_page_tables_name_a_page_once(rows, columns, spare, distribution):
    x = make(Domain("page_table", 0, rows * columns + spare, disjoint=True), (rows, columns), distribution)
    assert x.shape == (rows, columns)
    assert x.unique().numel() == rows * columns


@SETTINGS
@given(st.integers(2, 30), st.integers(0, 500), distributions)
def test_offsets_rise_from_zero_to_the_total(size, total, distribution):
    x = make(Domain("offsets", total=total), (size,), distribution)
    assert x[0] == 0
    assert x[-1] == total
    assert (x.diff() >= 0).all()


@SETTINGS
@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 500), distributions)
def test_offsets_rise_by_no_more_than_the_longest_segment(parts, longest, total, distribution):
    total = min(total, parts * longest)
    x = make(Domain("offsets", total=total, longest=longest), (parts + 1,), distribution)
    assert x[0] == 0
    assert x[-1] == total
    assert ((x.diff() >= 0) & (x.diff() <= longest)).all()


@SETTINGS
@given(st.integers(1, 30), st.integers(0, 500), distributions)
def test_parts_add_up_to_the_total_or_leave_some_of_it(count, total, distribution):
    sizes = make(Domain("parts", total=total), (count,), distribution)
    assert (sizes >= 0).all()
    assert sizes.sum() <= total
    assert sizes.sum() == total or distribution == "adversarial"
    starts = make(Domain("starts", of="sizes"), (count,), distribution, others={"sizes": sizes})
    assert starts.tolist() == [int(sizes[:i].sum()) for i in range(count)]


def test_adversarial_parts_leave_something_over():
    assert make(Domain("parts", total=1000), (5,), "adversarial").sum() < 1000


def test_parts_of_a_shape_that_is_no_rows_leave_something_over():
    stream = Stream.named("domains", "parts")
    domain, device = Domain("parts", total=1000), torch.device("cpu")
    request = Request("ids", domain, (5,), torch.int32, "normal", stream, device, {}, of_row=False)
    assert generate_integers(request).sum() < 1000


@SETTINGS
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 60), distributions)
def test_distinct_values_with_a_filler_repeat_only_that(rows, high, columns, distribution):
    x = make(Domain("distinct", 0, high, filler=-1), (rows, columns), distribution)
    for row in x:
        real = row[row != -1]
        assert real.unique().numel() == real.numel()
        assert ((real >= 0) & (real < high)).all()


def test_about_one_in_eight_of_distinct_values_is_the_filler():
    x = make(Domain("distinct", 0, 1000, filler=-1), (16, 1000))
    assert 0.1 < (x == -1).float().mean() < 0.15


@SETTINGS
@given(st.integers(1, 60), distributions)
def test_permutation(size, distribution):
    x = make(Domain("permutation", 0, size), (size,), distribution)
    assert torch.equal(x.sort().values, torch.arange(size, dtype=torch.int32))


@SETTINGS
@given(st.integers(1, 300), st.integers(2, 20), distributions)
def test_lengths_include_the_longest_and_the_shortest(high, size, distribution):
    x = make(Domain("lengths", 1, high + 1), (size,), distribution)
    assert x.max() == high
    assert x.min() == 1


def test_any_is_the_plain_distribution():
    assert make(Domain("any"), (100,)).unique().numel() > 10


def test_adversarial_ranges_prefer_the_ends():
    x = make(Domain("range", 0, 1000), (4000,), "adversarial")
    assert ((x == 0) | (x == 999)).float().mean() > 0.4


@pytest.mark.parametrize(
    ("domain", "shape", "message"),
    [
        (Domain("range", 3, 3), (2,), r"no value lies in \[3, 3\)"),
        (Domain("distinct", 0, 4), (2, 5), r"5 distinct values asked for, \[0, 4\) has 4"),
        (Domain("offsets", total=9, longest=2), (5,), "4 segments of at most 2 cannot reach 9"),
        (Domain("permutation", 0, 4), (5,), "a permutation of 4 values has 5 places"),
        (Domain("range", 0, 1 << 40), (2,), "longer than 2"),
    ],
)
def test_a_domain_that_cannot_be_met_is_an_error(domain, shape, message):
    with pytest.raises(DomainError, match=message):
        make(domain, shape)
