"""The plan cache: what shares a plan, what must not, and that it stays bounded."""

from __future__ import annotations

import threading

import pytest
import torch

from tileops_kernels.ops.plan import PlanCache, eager_key, param_key

X, W = torch.ones(2, 8), torch.ones(8)


def prepared(probe) -> int:
    return len(probe.flow.prepared)


def test_second_call_prepares_nothing(probes):
    for _ in range(3):
        probes.rows.function(X, W, [8])
    assert prepared(probes.rows) == 1


def test_values_do_not_matter(probes):
    probes.rows.function(X, W, [8])
    probes.rows.function(torch.zeros(2, 8), W, [8])
    assert prepared(probes.rows) == 1


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(3, 8), W),
        (torch.ones(8, 2).t(), W),
        (torch.ones(2, 16)[:, ::2], W),
        (X.half(), W.half()),
        (torch.ones(1, 2, 8), W),
    ],
    ids=["shape", "transposed", "strided", "dtype", "rank"],
)
def test_shape_stride_and_dtype_are_part_of_the_key(probes, x, weight):
    probes.rows.function(X, W, [8])
    probes.rows.function(x, weight, [8])
    assert prepared(probes.rows) == 2


def test_params_are_part_of_the_key(probes):
    for eps in (1e-6, 1e-5, None, 0.0, -0.0):
        probes.rows.function(X, W, [8], eps)
        probes.rows.function(X, W, [8], eps=eps)
    assert {str(binding.params["eps"]) for binding in probes.rows.flow.prepared} == {
        "1e-06",
        "1e-05",
        "None",
        "0.0",
        "-0.0",
    }
    before = prepared(probes.rows)
    probes.rows.op([8], eps=None)(X, W)
    probes.rows.op([8], eps=None)(X, W)
    assert prepared(probes.rows) <= before + 1


def test_equal_params_of_other_types_share_no_plan(probes):
    table = torch.zeros(1, 1, dtype=torch.int32)
    for scale in (1, 1.0):
        probes.table.function(torch.ones(1, 1), table, scale=scale)
    assert [type(binding.params["scale"]) for binding in probes.table.flow.prepared] == [int, float]


def test_optional_input_is_part_of_the_key(probes):
    x, table = torch.ones(8, 4), torch.zeros(1, 1, dtype=torch.int32)
    probes.table.function(x, table)
    probes.table.function(x, table, torch.ones(4))
    assert [binding.inputs["bias"] is None for binding in probes.table.flow.prepared] == [True, False]


def test_alignment_is_part_of_the_key_only_where_a_kernel_asks(probes, monkeypatch):
    storage = torch.ones(17)
    aligned, shifted = storage[:16].view(2, 8), storage[1:].view(2, 8)
    probes.rows.function(aligned, W, [8])
    probes.rows.function(shifted, W, [8])
    assert prepared(probes.rows) == 1
    monkeypatch.setitem(probes.rows.runtime.__dict__, "alignment", 16)
    probes.rows.runtime.plans.clear()
    for _ in range(2):
        probes.rows.function(aligned, W, [8])
        probes.rows.function(shifted, W, [8])
    assert prepared(probes.rows) == 3


def test_dispatcher_shares_the_cache(probes):
    torch.ops.tileops.probe_rows(X, W, [8], 1e-6)
    torch.ops.tileops.probe_rows(X, W, [8])
    assert prepared(probes.rows) == 1


def test_cache_is_bounded_and_keeps_what_is_used():
    cache = PlanCache(capacity=4)
    cache.put("hot", "plan")
    for key in range(100):
        cache.put(key, key)
        assert cache.get("hot") == "plan"
        assert len(cache) <= 8
    assert cache.get(0) is None
    assert [cache.get(key) for key in (97, 98, 99)] == [97, 98, 99]


def test_cache_refuses_a_capacity_below_one():
    with pytest.raises(ValueError, match="capacity is 0"):
        PlanCache(capacity=0)


def test_many_shapes_leave_the_cache_bounded(probes, monkeypatch):
    monkeypatch.setattr(probes.test.runtime.plans, "capacity", 8)
    for n in range(1, 40):
        assert probes.test.function(torch.ones(n), torch.ones(1)).shape == (n,)
    assert len(probes.test.runtime.plans) <= 16


def test_eager_key_is_refused_where_more_than_the_kernel_must_see_the_call():
    class Tagged(torch.Tensor):
        pass

    grad = X.clone().requires_grad_()
    negated = torch.view_as_complex(torch.ones(2, 2)).conj().imag
    assert eager_key((), (X, None)) is not None
    assert eager_key((), (X.as_subclass(Tagged),)) is None
    assert eager_key((), (grad,)) is None
    assert negated.is_neg()
    assert eager_key((), (negated,)) is None
    pairs = torch.ones(2, dtype=torch.complex64)
    assert eager_key((), (pairs,)) is not None
    assert eager_key((), (pairs.conj(),)) is None
    assert eager_key((), (torch.empty(0),)) is not None
    assert eager_key((), (torch._efficientzerotensor((2,)),)) is None
    assert eager_key((), (torch._to_functional_tensor(X),)) is None
    with torch.no_grad():
        assert eager_key((), (grad, torch.nn.Parameter(W))) is not None
    with torch.device("cpu"):
        assert eager_key((), (X,)) is None
    with torch.autograd.forward_ad.dual_level():
        assert eager_key((), (X,)) is None
    assert eager_key((), ([1.0],)) is None


def test_param_keys_tell_types_and_signs_apart():
    values = [1, 1.0, True, [1], (1,), [True], [1.0], 0.0, -0.0, None, "1", torch.float16]
    assert len({param_key(value) for value in values}) == len(values)
    assert param_key(float("nan")) == param_key(float("nan"))


def test_threads_get_what_one_thread_gets(probes):
    """Shapes in any order from many threads at once: every answer has its own shape and dtype."""
    wrong: list[object] = []
    start = threading.Barrier(4)

    def call(seed: int) -> None:
        start.wait()
        for step in range(200):
            rows, hidden = 1 + (seed * 7 + step * 3) % 11, 1 + (seed + step) % 5
            dtype = (torch.float32, torch.float16)[step % 2]
            x = torch.zeros(rows, hidden, dtype=dtype)
            y = probes.rows.function(x, x[0], [hidden])
            if y.shape != x.shape or y.dtype != dtype or y.data_ptr() == x.data_ptr():
                wrong.append((rows, hidden, dtype))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert prepared(probes.rows) >= 11 * 5
