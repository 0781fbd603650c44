"""Functions of the language against their definitions."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileops_manifest import ExpressionError
from tileops_manifest import functions as fn

sizes = st.integers(0, 12)
windows = st.integers(-1, 14)
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def counted_scores(num_queries: int, num_keys: int, left: int, right: int) -> int:
    count = 0
    for i in range(num_queries):
        position = i + num_keys - num_queries
        for j in range(num_keys):
            inside = (left < 0 or j >= position - left) and (right < 0 or j <= position + right)
            count += inside
    return count


@given(sizes, sizes, windows, windows)
def test_windowed_scores_counts_the_pairs(num_queries, num_keys, left, right):
    expected = counted_scores(num_queries, num_keys, left, right)
    assert fn.windowed_scores(num_queries, num_keys, left, right) == expected


@given(sizes, sizes)
def test_causal_scores_counts_the_pairs(num_queries, num_keys):
    assert fn.causal_scores(num_queries, num_keys) == counted_scores(num_queries, num_keys, -1, 0)


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4), st.booleans())
def test_scores_of_packed_requests_with_a_cache_are_those_of_the_requests(requests, causal):
    offsets = tuple(accumulate((new for new, _ in requests), initial=0))
    cached = tuple(before for _, before in requests)
    expected = sum(counted_scores(new, new + before, -1, 0 if causal else -1) for new, before in requests)
    assert fn.varlen_cached_scores(offsets, cached, causal) == expected


@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 64))
def test_touched_experts_is_what_balanced_routing_touches(num_tokens, top_k, num_experts):
    routed = {copy % num_experts for copy in range(num_tokens * top_k)}
    assert fn.touched_experts(num_tokens, top_k, num_experts) == len(routed)


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 7), st.data(), st.integers(1, 5), st.booleans())
def test_windows_counts_the_positions(size, kernel, stride, data, dilation, ceil_mode):
    padding = data.draw(st.integers(0, kernel // 2))
    padded, reach = size + 2 * padding, dilation * (kernel - 1)
    if ceil_mode:
        # Taken while the window before it leaves the last element out, if it begins before the far padding.
        taken = [t for t in range(0, padded - padding, stride) if t - stride + reach < padded - 1]
    else:
        taken = [t for t in range(0, padded, stride) if t + reach < padded]
    (count,) = fn.windows((size,), (kernel,), (stride,), (padding,), (dilation,), ceil_mode)
    assert max(count, 0) == len(taken)


@given(st.integers(0, 5000))
def test_powers_of_two_have_one_bit(n):
    assert fn.is_power_of_two(n) == (n.bit_count() == 1)


@given(st.floats() | st.integers())
def test_finite_numbers_differ_from_themselves_by_zero(value):
    assert fn.is_finite(value) == (value - value == 0)


@given(st.integers(-50, 50), st.integers(1, 9))
def test_ceil_div_rounds_up(a, b):
    assert (fn.ceil_div(a, b) - 1) * b < a <= fn.ceil_div(a, b) * b


@given(shapes, shapes)
def test_broadcast_follows_the_alignment_rule(a, b):
    width = max(len(a), len(b))
    pairs = list(zip((1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b, strict=True))
    possible = all(x == y or 1 in (x, y) for x, y in pairs)
    assert fn.broadcastable(a, b) == possible
    if possible:
        assert fn.broadcast(a, b) == tuple(y if x == 1 else x for x, y in pairs)
        assert fn.broadcast(b, a) == fn.broadcast(a, b)
    else:
        with pytest.raises(ExpressionError, match="do not broadcast"):
            fn.broadcast(a, b)


@given(shapes, st.data())
def test_reduced_keeps_or_drops_exactly_the_named_axes(shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True)) if shape else []
    named = tuple(axis - len(shape) if data.draw(st.booleans()) else axis for axis in axes)
    gone = set(axes) or set(range(len(shape)))
    assert fn.reduced(shape, named, True) == tuple(1 if i in gone else n for i, n in enumerate(shape))
    assert fn.reduced(shape, named, False) == tuple(n for i, n in enumerate(shape) if i not in gone)
    assert fn.reduced_sizes(shape, named) == tuple(shape[i] for i in sorted(gone))


@pytest.mark.parametrize(("dim", "expected"), [(None, ()), ((), ()), (0, ()), (-1, ())])
def test_a_tensor_of_rank_0_is_reduced_like_one_of_rank_1(dim, expected):
    assert fn.reduced((), dim, False) == expected
    assert fn.reduced((), dim, True) == expected
    assert fn.axes(dim, 0) == ()


@pytest.mark.parametrize("dim", [1, -2, (0, 0), (0, -1)])
def test_axes_of_rank_1_refuse_what_is_out_of_range_or_named_twice(dim):
    with pytest.raises(ExpressionError, match="distinct axes"):
        fn.axes(dim, 1)


def test_an_empty_list_of_axes_is_all_or_none():
    assert fn.reduced((2, 3), (), False) == ()
    assert fn.reduced((2, 3), (), False, "none") == (2, 3)


@pytest.mark.parametrize(("value", "n", "expected"), [(3, 2, (3, 3)), ((4,), 2, (4, 4)), ((1, 2), 2, (1, 2))])
def test_expand(value, n, expected):
    assert fn.expand(value, n) == expected


@given(st.integers(1, 1 << 70))
def test_ilog2_is_the_floor_of_the_logarithm(n):
    assert 2 ** fn.ilog2(n) <= n < 2 ** (fn.ilog2(n) + 1)


def test_ilog2_refuses_zero():
    with pytest.raises(ExpressionError):
        fn.ilog2(0)


@given(st.integers(0, 1 << 70))
def test_isqrt_is_the_floor_of_the_root(n):
    assert fn.isqrt(n) ** 2 <= n < (fn.isqrt(n) + 1) ** 2


def test_isqrt_refuses_what_has_no_root():
    with pytest.raises(ExpressionError, match="isqrt needs an integer >= 0, got -1"):
        fn.isqrt(-1)


@pytest.mark.parametrize(("value", "expected"), [(1, True), (True, False), (1.0, False)])
def test_is_int_does_not_take_bool(value, expected):
    assert fn.is_int(value) is expected


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4),
    st.integers(-1, 5),
    st.integers(-1, 5),
)
def test_packed_windowed_scores_are_those_of_the_requests(requests, left, right):
    queries, keys = (tuple(accumulate((r[i] for r in requests), initial=0)) for i in (0, 1))
    expected = sum(fn.windowed_scores(q, k, left, right) for q, k in requests)
    assert fn.varlen_windowed_scores(queries, keys, left, right) == expected


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 5), st.integers(0, 9))
def test_selected_scores_count_the_keys_that_a_query_may_select(num_queries, first, stride, selected):
    def complete(position):
        """Keys all of whose positions lie at or before this one."""
        return sum(all(p <= position for p in range(j * stride, (j + 1) * stride)) for j in range(50))

    expected = sum(min(complete(first + i), selected) for i in range(num_queries))
    assert fn.selected_scores(num_queries, first, stride, selected) == expected
