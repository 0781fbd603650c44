"""Runs of float16 are converted around a loop, to the same bits as element by element."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import pytest
import tilelang.language as T
import torch

from tileops_kernels.targets import compile_program

BLOCK = 256


def converted(source: str, target: str, expression=lambda x: x):
    n = T.dynamic("n")

    @T.prim_func
    def convert(x: T.Tensor((n,), source), y: T.Tensor((n,), target)):
        with T.Kernel(T.ceildiv(n, BLOCK), threads=BLOCK) as block:
            values = T.alloc_fragment((BLOCK,), source)
            for i in T.Parallel(BLOCK):
                if block * BLOCK + i < n:
                    values[i] = x[block * BLOCK + i]
            for i in T.Parallel(BLOCK):
                if block * BLOCK + i < n:
                    y[block * BLOCK + i] = T.cast(expression(T.cast(values[i], "float32")), target)

    return compile_program(convert, "cpu")


def every_code() -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)


@pytest.mark.parametrize("length", [1 << 16, (1 << 16) - 3, 5])
def test_every_float16_becomes_the_float32_that_it_is(length):
    x = every_code()[:length].contiguous()
    y = torch.full((length,), -1.0)
    program = converted("float16", "float32")
    program(x, y)
    assert "tl_load_run_float16(" in program.source
    torch.testing.assert_close(y, x.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [1 << 16, 1021])
def test_float32_is_rounded_to_the_nearest_float16_and_ties_to_even(length):
    codes = every_code().float()
    # The midpoint of every two neighbours, and the floats next to it.
    middle = (codes + codes.roll(1)) / 2
    nextafter = torch.nextafter(middle, torch.full_like(middle, torch.inf))
    program = converted("float32", "float16")
    assert "tl_store_run_float16(" in program.source
    for x in (middle, nextafter, codes * 1.7):
        x = x[-length:].contiguous()
        y = torch.full((length,), -1.0, dtype=torch.float16)
        program(x, y)
        torch.testing.assert_close(y, x.half(), rtol=0, atol=0, equal_nan=True)


def test_arithmetic_in_a_run_is_that_of_single_elements():
    x = every_code()
    y = torch.empty_like(x)
    converted("float16", "float16", lambda x: x * x + T.float32(0.125))(x, y)
    expected = torch.addcmul(torch.tensor(0.125), x.float(), x.float()).half()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


def test_bits_that_are_only_moved_are_not_converted():
    @T.prim_func
    def copied(x: T.Tensor((1 << 12,), "float16"), y: T.Tensor((1 << 12,), "float16")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(1 << 12):
                y[i] = x[i]

    program = compile_program(copied, "cpu")
    x = every_code()[-(1 << 12) :].contiguous()  # NaN of every kind
    y = torch.zeros_like(x)
    program(x, y)
    assert "_run_float16(" not in program.source.partition('extern "C"')[0].partition("static void")[2]
    assert torch.equal(x.view(torch.int16), y.view(torch.int16))
