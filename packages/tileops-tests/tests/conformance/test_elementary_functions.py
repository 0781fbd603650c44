"""Accuracy of elementary functions in float32, over the whole range of the format, against float64."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import math

import pytest
import tilelang.language as T
import torch

STRIDE = 4099  # of the 2^32 bit patterns; a prime, so that no pattern of mantissas is left out
COUNT = 2**32 // STRIDE + 1

# name: (tile function, torch function in float64, largest error in units in the last place)
FUNCTIONS = {
    "exp": (T.exp, torch.exp, 2.0),
    "exp2": (T.exp2, torch.exp2, 2.0),
    "log": (T.log, torch.log, 2.0),
    "log2": (T.log2, torch.log2, 2.0),
    "log10": (T.log10, torch.log10, 2.0),
    "log1p": (T.log1p, torch.log1p, 2.0),
    "tanh": (T.tanh, torch.tanh, 2.0),
    "erf": (T.erf, torch.erf, 2.0),
    "sin": (T.sin, torch.sin, 2.0),
    "cos": (T.cos, torch.cos, 2.0),
    "sqrt": (T.sqrt, torch.sqrt, 0.5),
    "rsqrt": (T.rsqrt, torch.rsqrt, 2.0),
}


def every_kind_of_float() -> torch.Tensor:
    """Floats of either sign and every exponent, subnormals, zeros, infinities and NaN among them."""
    bits = torch.arange(COUNT, dtype=torch.int64) * STRIDE
    edges = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
    bits[: 2 * len(edges)] = torch.tensor(edges + [e | 0x80000000 for e in edges])
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def applied(function, block=4096):
    n = T.dynamic("n")

    @T.prim_func
    def program(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            for i in T.Parallel(block):
                y[bx * block + i] = function(x[bx * block + i])

    return program


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_in_units_in_the_last_place(run, name):
    function, reference, limit = FUNCTIONS[name]
    x, y = run(applied(function), every_kind_of_float(), torch.empty(COUNT))
    exact = reference(x.double())
    rounded = exact.float()
    assert torch.equal(y.isnan(), rounded.isnan())
    overflow = torch.finfo(torch.float32).max
    for wrong in (
        y.isinf() & (exact.abs() < overflow * (1 - 2**-22)),
        rounded.isinf() & ~y.isinf() & (exact.abs() > 2 * overflow),
    ):
        assert not wrong.any(), x[wrong][:4]
    zeros = (rounded == 0) & (y == 0)
    assert torch.equal(y[zeros].signbit(), rounded[zeros].signbit())
    finite = y.isfinite() & rounded.isfinite()
    exponent = torch.frexp(exact[finite].abs().clamp(min=2.0**-126))[1].double() - 1
    error = (y[finite].double() - exact[finite]).abs() / torch.exp2(exponent - 23)
    worst = int(error.argmax())
    assert float(error[worst]) <= limit, (x[finite][worst].item().hex(), float(error[worst]))


@pytest.mark.parametrize("name", ["exp", "tanh", "sin"])
def test_the_result_does_not_depend_on_where_in_a_vector_an_element_lies(run, name):
    x = every_kind_of_float()[:: math.ceil(COUNT / 5000)].contiguous()
    _, whole = run(applied(FUNCTIONS[name][0]), x, torch.empty_like(x))
    _, shifted = run(applied(FUNCTIONS[name][0]), x[1:].contiguous(), torch.empty(len(x) - 1))
    assert torch.equal(whole[1:].view(torch.int32), shifted.view(torch.int32))
