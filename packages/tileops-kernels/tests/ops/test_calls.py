"""Calls of real ops: edge sizes, layouts, devices and threads. What they compute is judged elsewhere."""

from __future__ import annotations

import threading

import pytest
import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.ops import CATALOG, get_function, get_op

# One per arity, and one whose output has another dtype than its inputs.
ELEMENTWISE = ["ReluFwdOp", "AddFwdOp", "WhereFwdOp", "EqFwdOp"]


def calls_with_shape(name: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    return [
        torch.ones(shape, dtype=torch_dtype(spec.dtypes[0]))
        for spec in CATALOG.manifest[name].inputs.values()
    ]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 10], ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_scalars_empty_tensors_and_many_dims(name, shape):
    function = get_function(CATALOG.manifest[name].function_name)
    assert function(*calls_with_shape(name, shape)).shape == shape


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_any_strides_give_a_contiguous_output(name):
    function = get_function(CATALOG.manifest[name].function_name)
    dense = calls_with_shape(name, (6, 8))
    expected = function(*dense)
    views = {
        "transposed": [tensor.t().contiguous().t() for tensor in dense],
        "strided": [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in dense],
        "offset": [torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(6, 8) for tensor in dense],
        "expanded": [tensor[:1].expand(6, 8) for tensor in dense],
    }
    for inputs in views.values():
        before = [tensor.clone() for tensor in inputs]
        result = function(*inputs)
        assert result.is_contiguous()
        assert torch.equal(result, expected)  # the same values were given
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_threads_agree_with_one_thread():
    op = get_op("AddFwdOp")()
    inputs = [
        (torch.arange(n, dtype=torch.float32), torch.full((m, n), 0.5)) for n in (1, 7, 33) for m in (1, 2, 5)
    ]
    alone = [op(*pair) for pair in inputs]
    CATALOG.runtime("AddFwdOp").plans.clear()
    wrong: list[int] = []

    def call(offset: int) -> None:
        for step in range(90):
            i = (offset + step * 2) % len(inputs)
            if not torch.equal(op(*inputs[i]), alone[i]):
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
