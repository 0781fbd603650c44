"""Value checks of index inputs."""

from __future__ import annotations

import threading

import pytest
import torch

from tileops_kernels.errors import ValueDomainError
from tileops_kernels.ops import check_values
from tileops_kernels.ops.values import check_domain, value_checks_on
from tileops_manifest.tensors import Domain

X = torch.ones(8, 4)


def table(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (table([0, 1, 2], [3, 4, -1]), r"table\[1, 2\] is -1, expected in \[0, 8\)"),
        (table([0, 1, 8], [3, 4, 5]), r"table\[0, 2\] is 8, expected in \[0, 8\)"),
        (table([0, 1, 2], [3, 5, 3]), r"table\[1, 2\] is 3, expected distinct in its row"),
    ],
    ids=["negative", "past the end", "repeated"],
)
def test_bad_page_id_is_named(probes, values, message):
    with pytest.raises(ValueDomainError, match=f"ProbeTableFwdOp: {message}"):
        probes.table.function(X, values)


def test_values_are_checked_in_every_call(probes):
    values = table([0, 1, 2])
    probes.table.function(X, values)
    values[0, 0] = 9
    for call in (probes.table.function, probes.table.op(), torch.ops.tileops.probe_table):
        with pytest.raises(ValueDomainError, match=r"table\[0, 0\] is 9"):
            call(X, values)


def test_checks_can_be_switched_off(probes):
    with check_values(False):
        assert probes.table.function(X, table([0, 1, 9]))[0].shape == (1, 3, 4)
    with pytest.raises(ValueDomainError):
        probes.table.function(X, table([0, 1, 9]))


def test_default_is_on_for_cpu_and_off_for_cuda():
    assert value_checks_on(torch.device("cpu"))
    assert not value_checks_on(torch.device("cuda"))
    with check_values(True):
        assert value_checks_on(torch.device("cuda"))


def test_the_switch_is_of_one_thread():
    seen: list[bool] = []
    with check_values(False):
        thread = threading.Thread(target=lambda: seen.append(value_checks_on(torch.device("cpu"))))
        thread.start()
        thread.join()
    assert seen == [True]


DOMAINS = {
    "range": (Domain("range", 2, 5), [2, 4, 4], [2, 5, 4], r"v\[1\] is 5, expected in \[2, 5\)"),
    "low only": (Domain("range", 1, None), [1, 9], [1, 0], r"v\[1\] is 0, expected at least 1"),
    "high only": (Domain("range", None, 3), [-4, 2], [3, 0], r"v\[0\] is 3, expected below 3"),
    "sorted": (
        Domain("sorted", 0, 9),
        [0, 3, 3],
        [0, 3, 2],
        r"v\[2\] is 2, expected at least the value before",
    ),
    "distinct": (Domain("distinct", 0, 9), [3, 0, 8], [3, 0, 3], r"v\[2\] is 3, expected distinct"),
    "permutation": (Domain("permutation", 0, 3), [2, 0, 1], [2, 0, 2], r"v\[2\] is 2, expected distinct"),
    "lengths": (Domain("lengths", 0, 5), [0, 4], [0, 6], r"v\[1\] is 6, expected in \[0, 5\)"),
    "offsets first": (
        Domain("offsets", 0, 8, total=7),
        [0, 2, 7],
        [1, 2, 7],
        r"v\[0\] is 1, expected 0 \(the first",
    ),
    "offsets last": (
        Domain("offsets", 0, 8, total=7),
        [0, 7, 7],
        [0, 2, 6],
        r"v\[2\] is 6, expected 7 \(the last",
    ),
    "offsets order": (
        Domain("offsets", 0, 8, total=7),
        [0, 7, 7],
        [0, 5, 4],
        r"v\[2\] is 4, expected at least",
    ),
    "pages of two rows": (
        Domain("page_table", 0, 9, disjoint=True),
        [[3, 4], [0, 1]],
        [[3, 4], [4, 1]],
        r"v\[1, 0\] is 4, expected distinct in the whole table",
    ),
    "offsets apart": (
        Domain("offsets", total=7, longest=4),
        [0, 4, 7],
        [0, 5, 7],
        r"v\[1\] is 5, expected at most 4 above the offset before it",
    ),
    "parts": (
        Domain("parts", total=7),
        [0, 6],
        [1, 7],
        r"v\[1\] is 7, expected parts that add up to at most 7",
    ),
    "starts": (
        Domain("starts", of="floor"),
        [0, 3],
        [0, 2],
        r"v\[1\] is 2, expected the sum of floor before it",
    ),
    "filler": (
        Domain("distinct", 0, 5, filler=9),
        [9, 4, 9],
        [9, 4, 4],
        r"v\[2\] is 4, expected distinct",
    ),
    "neither value nor filler": (
        Domain("distinct", 0, 5, filler=9),
        [9, 4, 9],
        [9, 4, 7],
        r"v\[2\] is 7, expected in \[0, 5\) or 9",
    ),
    "above": (
        Domain("range", 0, 9, above="floor"),
        [3, 8],
        [3, 1],
        r"v\[1\] is 1, expected at least floor there",
    ),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("kind", DOMAINS)
def test_every_kind_of_domain(kind, dtype):
    domain, good, bad, message = DOMAINS[kind]
    if dtype is torch.uint8 and torch.tensor(good).min() < 0:
        good = [value + 4 for value in good if value + 4 < domain.high] or [0]
    floor = torch.tensor([3, 2])
    check_domain("Op", "v", domain, {"v": torch.tensor(good, dtype=dtype), "floor": floor})
    with pytest.raises(ValueDomainError, match=message) as caught:
        check_domain("Op", "v", domain, {"v": torch.tensor(bad, dtype=dtype), "floor": floor})
    assert caught.value.rule == f"values: {domain.kind}"


def test_empty_and_zero_dimensional_inputs_are_checked_as_they_are():
    check_domain("Op", "v", Domain("offsets", 0, 8, total=7), {"v": torch.empty(0, dtype=torch.int32)})
    check_domain("Op", "v", Domain("sorted", 0, 8), {"v": torch.tensor(3)})
    with pytest.raises(ValueDomainError, match="v is 9, expected in"):
        check_domain("Op", "v", Domain("range", 0, 8), {"v": torch.tensor(9)})
