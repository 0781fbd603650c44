"""Conversions and element-wise operations of tile programs, against torch."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import math

import pytest
import tilelang.language as T
import torch

N = 512
FLOATS = ("float16", "bfloat16", "float32", "float64")
NARROW = (*FLOATS[:2], "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint32")


def samples(dtype: str, scale: float = 4.0, seed: int = 0) -> torch.Tensor:
    """Values of a float dtype: its edges first, then a zero-mean bell."""
    torch_dtype = getattr(torch, dtype)
    info = torch.finfo(torch_dtype)
    edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        info.max,
        info.min,
        info.smallest_normal,
        info.smallest_normal / 2,
        info.eps,
    ]
    edges += [math.inf, -math.inf, math.nan, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    generator = torch.Generator().manual_seed(seed)
    bell = torch.randn(N - len(edges), generator=generator, dtype=torch.float64) * scale
    return torch.cat([torch.tensor(edges, dtype=torch.float64), bell]).to(torch_dtype)


def integers(dtype: str, seed: int = 0) -> torch.Tensor:
    info = torch.iinfo(getattr(torch, dtype))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(
        max(info.min, -(2**62)), min(info.max, 2**62), (N,), generator=generator, dtype=torch.int64
    )
    values[:4] = torch.tensor([info.min, info.max, 0, 1])
    return values.to(getattr(torch, dtype))


def same(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Bit equality per element; any NaN equals any other."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise AssertionError(
            f"got {got.dtype} {tuple(got.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
        )
    if not got.is_floating_point():
        return got == expected
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return (got.view(bits) == expected.view(bits)) | (got.isnan() & expected.isnan())


def ulps(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest error in units in the last place; infinite where a NaN or an infinity is in the wrong place."""
    info, wide, rounded = torch.finfo(got.dtype), got.double(), exact.to(got.dtype).double()
    if not (wide.isnan() == rounded.isnan()).all():
        return math.inf
    # Where the exact value rounds to infinity, or the result overflowed, only the very edge of the range
    # may differ.
    disagree = wide.isinf() != rounded.isinf()
    if (disagree & (exact.abs() < info.max * (1 - 4 * info.eps))).any() or (
        disagree & (exact.abs() > 2 * info.max)
    ).any():
        return math.inf
    finite = rounded.isfinite() & wide.isfinite()
    exponent = torch.frexp(exact[finite].abs().clamp(min=info.smallest_normal))[1].double() - 1
    return float(((wide - exact)[finite].abs() / (torch.exp2(exponent) * info.eps)).max())


# ---- conversions ----

CONVERSIONS = {
    "float16": ("bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    "bfloat16": ("float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    "float32": (*NARROW, "float64"),
    "float64": ("float16", "bfloat16", "float32"),
    "float8_e4m3fn": ("float16", "bfloat16", "float32"),
    "float8_e5m2": ("float16", "bfloat16", "float32"),
}


def conversion(source, target):
    @T.prim_func
    def program(x: T.Tensor((N,), source), y: T.Tensor((N,), target)):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as block:
            for i in T.Parallel(128):
                y[block * 128 + i] = T.cast(x[block * 128 + i], target)

    return program


def converted(x: torch.Tensor, target: str) -> torch.Tensor:
    """What a conversion gives: to nearest even; to fp8 it saturates, as the GPU's conversion does."""
    dtype = getattr(torch, target)
    if target.startswith("float8"):
        limit = torch.finfo(dtype).max
        x = x.float().clamp(-limit, limit)
    return x.to(dtype)


@pytest.mark.parametrize(
    ("source", "target_dtype"), [(s, t) for s, targets in CONVERSIONS.items() for t in targets]
)
def test_float_conversion_rounds_to_nearest_even(run, source, target_dtype):
    x = samples(source, scale=100.0)
    _, y = run(conversion(source, target_dtype), x, torch.empty(N, dtype=getattr(torch, target_dtype)))
    assert same(y, converted(x, target_dtype)).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_every_bit_pattern_of_a_narrow_float_survives_the_way_through_float32(run, dtype):
    torch_dtype = getattr(torch, dtype)
    bits = torch.uint8 if torch_dtype.itemsize == 1 else torch.int16
    count = 2 ** (8 * torch_dtype.itemsize)
    x = torch.arange(count, dtype=torch.int64).to(bits).view(torch_dtype)

    @T.prim_func
    def program(
        x: T.Tensor((count,), dtype), wide: T.Tensor((count,), "float32"), y: T.Tensor((count,), dtype)
    ):
        with T.Kernel(T.ceildiv(count, 256), threads=128) as block:
            for i in T.Parallel(256):
                wide[block * 256 + i] = T.cast(x[block * 256 + i], "float32")
                y[block * 256 + i] = T.cast(wide[block * 256 + i], dtype)

    _, wide, y = run(program, x, torch.empty(count), torch.empty_like(x))
    assert same(wide, x.float()).all()
    assert same(y, converted(x, dtype)).all()


def float_to_integer(source, target):
    @T.prim_func
    def program(x: T.Tensor((N,), source), y: T.Tensor((N,), target), back: T.Tensor((N,), source)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[i] = T.cast(x[i], target)
                back[i] = T.cast(y[i], source)

    return program


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target_dtype", ["int8", "int32", "int64", "uint8"])
def test_float_to_integer_truncates_and_back_is_exact(run, source, target_dtype):
    generator = torch.Generator().manual_seed(1)
    low = 0.0 if target_dtype.startswith("u") else -100.0
    x = (torch.rand(N, generator=generator, dtype=torch.float64) * (100.0 - low) + low).to(
        getattr(torch, source)
    )
    _, y, back = run(
        float_to_integer(source, target_dtype),
        x,
        torch.empty(N, dtype=getattr(torch, target_dtype)),
        torch.empty_like(x),
    )
    assert torch.equal(y, x.double().trunc().to(y.dtype))
    assert torch.equal(back, y.to(x.dtype))


def test_large_integers_convert_to_narrow_floats_in_one_rounding(run):
    # 2^24 + 1 + 2^17 rounds up in bfloat16 only if it does not pass through float32's rounding first.
    x = torch.tensor(
        [(1 << 24) + (1 << 16) + 1, -((1 << 24) + (1 << 16) + 1), 2147483647, -2147483648] * (N // 4),
        dtype=torch.int32,
    )

    @T.prim_func
    def program(x: T.Tensor((N,), "int32"), y: T.Tensor((N,), "bfloat16")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[i] = T.cast(x[i], "bfloat16")

    _, y = run(program, x, torch.empty(N, dtype=torch.bfloat16))
    assert y[:4].tolist() == [16777216.0 + 131072.0, -(16777216.0 + 131072.0), 2147483648.0, -2147483648.0]


def test_reinterpret_keeps_the_bits(run):
    @T.prim_func
    def program(x: T.Tensor((N,), "float32"), bits: T.Tensor((N,), "uint32"), y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                bits[i] = T.reinterpret(x[i], "uint32")
                y[i] = T.reinterpret(bits[i], "float32")

    x = samples("float32")
    _, bits, y = run(program, x, torch.empty(N, dtype=torch.uint32), torch.empty_like(x))
    assert torch.equal(bits.view(torch.int32), x.view(torch.int32))
    assert same(y, x).all()


def test_constants_are_exact(run):
    @T.prim_func
    def program(y: T.Tensor((4,), "float64"), z: T.Tensor((4,), "float32"), w: T.Tensor((4,), "bfloat16")):
        with T.Kernel(1, threads=32):
            y[0] = T.float64(1 / 3)
            y[1] = T.infinity("float64")
            y[2] = -T.infinity("float64")
            y[3] = T.float64(5e-324)
            z[0] = T.float32(1 / 3)
            z[1] = T.infinity("float32")
            z[2] = T.float32(-0.0)
            z[3] = T.float32(1e-45)
            w[0] = T.bfloat16(1 / 3)
            w[1] = T.infinity("bfloat16")
            w[2] = T.bfloat16(-0.0)
            w[3] = T.bfloat16(65504.0)

    y, z, w = run(
        program, torch.empty(4, dtype=torch.float64), torch.empty(4), torch.empty(4, dtype=torch.bfloat16)
    )
    assert same(y, torch.tensor([1 / 3, math.inf, -math.inf, 5e-324], dtype=torch.float64)).all()
    assert same(z, torch.tensor([1 / 3, math.inf, -0.0, 1e-45])).all()
    assert same(w, torch.tensor([1 / 3, math.inf, -0.0, 65504.0], dtype=torch.bfloat16)).all()


# ---- functions of one argument ----

# name: (tile function, torch function in float64, largest error in units in the last place for float32 and
# float64)
UNARY = {
    "exp": (T.exp, torch.exp, 2),
    "exp2": (T.exp2, torch.exp2, 2),
    "log": (T.log, torch.log, 2),
    "log2": (T.log2, torch.log2, 2),
    "log10": (T.log10, torch.log10, 2),
    "log1p": (T.log1p, torch.log1p, 2),
    "sqrt": (T.sqrt, torch.sqrt, 0.5),
    "rsqrt": (T.rsqrt, torch.rsqrt, 2),
    "sigmoid": (T.sigmoid, torch.sigmoid, 4),
    "tanh": (T.tanh, torch.tanh, 2),
    "tan": (T.tan, torch.tan, 4),
    "sin": (T.sin, torch.sin, 2),
    "cos": (T.cos, torch.cos, 2),
    "sinh": (T.sinh, torch.sinh, 3),
    "cosh": (T.cosh, torch.cosh, 3),
    "asin": (T.asin, torch.asin, 4),
    "acos": (T.acos, torch.acos, 4),
    "atan": (T.atan, torch.atan, 4),
    "erf": (T.erf, torch.erf, 2),
    "floor": (T.floor, torch.floor, 0),
    "ceil": (T.ceil, torch.ceil, 0),
    "trunc": (T.trunc, torch.trunc, 0),
    "round": (T.round, torch.round, 0),
    "abs": (T.abs, torch.abs, 0),
    "neg": (lambda x: -x, torch.neg, 0),
}
TRIGONOMETRIC = ("sin", "cos", "tan")


def unary(name, dtype):
    function = UNARY[name][0]

    @T.prim_func
    def program(x: T.Tensor((N,), dtype), y: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[i] = function(x[i])

    return program


@pytest.mark.parametrize("name", UNARY)
def test_unary_function_in_float32(run, name):
    x = samples("float32", scale=10.0)
    if name in TRIGONOMETRIC:
        x = x[x.abs() < 1e4].repeat(2)[:N] if (x.abs() < 1e4).sum() < N else x
    _, y = run(unary(name, "float32"), x, torch.empty_like(x))
    assert ulps(y, UNARY[name][1](x.double())) <= UNARY[name][2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["exp", "log", "rsqrt", "tanh", "erf", "sin", "floor", "abs"])
def test_unary_function_in_other_dtypes(run, name, dtype):
    x = samples(dtype, scale=2.0)
    x = x[x.abs() < 1e4].repeat(2)[:N] if name in TRIGONOMETRIC else x
    _, y = run(unary(name, dtype), x, torch.empty_like(x))
    # A narrow result is a float32 result rounded once: half a unit, and what float32's error can add.
    assert ulps(y, UNARY[name][1](x.double())) <= (2.0 if dtype == "float64" else 0.51)


# ---- two arguments ----

BINARY = {
    "add": (lambda a, b: a + b, torch.add),
    "sub": (lambda a, b: a - b, torch.sub),
    "mul": (lambda a, b: a * b, torch.mul),
    "div": (lambda a, b: a / b, torch.div),
    "max drops NaN": (T.max, torch.fmax),
    "min drops NaN": (T.min, torch.fmin),
}


def binary(function, dtype, result):
    @T.prim_func
    def program(a: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((N,), result)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[i] = function(a[i], b[i])

    return program


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_float_arithmetic_rounds_once(run, name, dtype):
    function, reference = BINARY[name]
    a, b = samples(dtype, seed=1), samples(dtype, seed=2).flip(0)
    *_, y = run(binary(function, dtype, dtype), a, b, torch.empty_like(a))
    expected = reference(a, b)
    if "NaN" in name:  # of two zeros either may come out
        assert (same(y, expected) | ((y == 0) & (expected == 0))).all()
    else:
        assert same(y, expected).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_comparisons_and_selection(run, dtype):
    @T.prim_func
    def program(a: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((8, N), "int32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[0, i] = T.if_then_else(a[i] < b[i], 1, 0)
                y[1, i] = T.if_then_else(a[i] <= b[i], 1, 0)
                y[2, i] = T.Select(a[i] > b[i], 1, 0)
                y[3, i] = T.Select(a[i] >= b[i], 1, 0)
                y[4, i] = T.cast(a[i] == b[i], "int32")
                y[5, i] = T.cast(a[i] != b[i], "int32")
                y[6, i] = T.cast(T.isnan(T.cast(a[i], "float32")), "int32")
                y[7, i] = T.cast(
                    T.And(a[i] > T.cast(0, dtype), T.Not(T.isnan(T.cast(b[i], "float32")))), "int32"
                )

    a, b = samples(dtype, seed=1), samples(dtype, seed=2).flip(0)
    b[N // 2 :] = a[N // 2 :]
    *_, y = run(program, a, b, torch.empty(8, N, dtype=torch.int32))
    expected = [a < b, a <= b, a > b, a >= b, a == b, a != b, a.isnan(), (a > 0) & ~b.isnan()]
    assert torch.equal(y, torch.stack(expected).int())


def test_infinities_and_finite_values_are_told_apart(run):
    @T.prim_func
    def program(x: T.Tensor((N,), "float32"), y: T.Tensor((2, N), "bool")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[0, i] = T.isinf(x[i])
                y[1, i] = T.isfinite(x[i])

    x = samples("float32")
    _, y = run(program, x, torch.empty(2, N, dtype=torch.bool))
    assert torch.equal(y, torch.stack([x.isinf(), x.isfinite()]))


def test_bool_tensors_are_read_and_written(run):
    @T.prim_func
    def program(a: T.Tensor((N,), "bool"), b: T.Tensor((N,), "bool"), y: T.Tensor((3, N), "bool")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[0, i] = T.And(a[i], b[i])
                y[1, i] = T.Or(a[i], b[i])
                y[2, i] = T.Not(a[i])

    a, b = integers("int8", 1) > 0, integers("int8", 2) > 0
    *_, y = run(program, a, b, torch.empty(3, N, dtype=torch.bool))
    assert torch.equal(y, torch.stack([a & b, a | b, ~a]))


INTEGER = {
    "add wraps": (lambda a, b: a + b, lambda a, b: a + b),
    "sub wraps": (lambda a, b: a - b, lambda a, b: a - b),
    "mul wraps": (lambda a, b: a * b, lambda a, b: a * b),
    "min": (T.min, torch.minimum),
    "max": (T.max, torch.maximum),
    "and": (lambda a, b: a & b, torch.bitwise_and),
    "or": (lambda a, b: a | b, torch.bitwise_or),
    "xor": (lambda a, b: a ^ b, torch.bitwise_xor),
    "not": (lambda a, _b: ~a, lambda a, _b: torch.bitwise_not(a)),
    "floor division": (T.floordiv, lambda a, b: torch.div(a, b, rounding_mode="floor")),
    "floor remainder": (T.floormod, torch.remainder),
    "truncated division": (T.truncdiv, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic(run, dtype):
    functions = [f for f, _ in INTEGER.values()]
    count = len(functions)

    @T.prim_func
    def program(a: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((count, N), dtype)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[0, i] = functions[0](a[i], b[i])
                y[1, i] = functions[1](a[i], b[i])
                y[2, i] = functions[2](a[i], b[i])
                y[3, i] = functions[3](a[i], b[i])
                y[4, i] = functions[4](a[i], b[i])
                y[5, i] = functions[5](a[i], b[i])
                y[6, i] = functions[6](a[i], b[i])
                y[7, i] = functions[7](a[i], b[i])
                y[8, i] = functions[8](a[i], b[i])
                y[9, i] = functions[9](a[i], b[i])
                y[10, i] = functions[10](a[i], b[i])
                y[11, i] = functions[11](a[i], b[i])

    a, b = integers(dtype, 1), integers(dtype, 2)
    b[2] = 1
    b = torch.where(b.to(torch.int64) == 0, torch.ones_like(b), b)
    a[0], b[0] = a[3], b[3]  # the least value divided by -1 has no result
    *_, y = run(program, a, b, torch.empty(count, N, dtype=a.dtype))
    wide = torch.int64
    for row, (name, (_, reference)) in zip(y, INTEGER.items(), strict=True):
        expected = reference(a.to(wide), b.to(wide)).to(a.dtype) if dtype != "int64" else reference(a, b)
        assert torch.equal(row, expected), name


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_shifts(run, dtype):
    @T.prim_func
    def program(a: T.Tensor((N,), dtype), y: T.Tensor((2, N), dtype)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[0, i] = a[i] << T.cast(3, dtype)
                y[1, i] = a[i] >> T.cast(3, dtype)

    a = integers(dtype)
    _, y = run(program, a, torch.empty(2, N, dtype=a.dtype))
    wide = a.to(torch.int64)
    assert torch.equal(y, torch.stack([(wide << 3).to(a.dtype), (wide >> 3).to(a.dtype)]))


def test_four_bit_integers_unpack_from_bytes(run):
    @T.prim_func
    def program(packed: T.Tensor((N,), "uint8"), y: T.Tensor((2 * N,), "int8")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(2 * N):
                nibble = (packed[i // 2] >> T.cast((i % 2) * 4, "uint8")) & T.uint8(15)
                y[i] = T.cast(nibble, "int8") - T.int8(8)

    packed = integers("uint8")
    _, y = run(program, packed, torch.empty(2 * N, dtype=torch.int8))
    expected = torch.stack([packed & 15, packed >> 4], dim=1).flatten().to(torch.int8) - 8
    assert torch.equal(y, expected)


def test_clamp_power_and_scalar_parameters(run):
    @T.prim_func
    def program(
        x: T.Tensor((N,), "float32"),
        y: T.Tensor((4, N), "float32"),
        low: T.float32,
        high: T.float32,
        count: T.int32,
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[0, i] = T.clamp(x[i], low, high)
                y[1, i] = T.pow(T.abs(x[i]), T.float32(0.5))
                y[2, i] = T.if_then_else(i < count, x[i], T.float32(0))
                y[3, i] = T.fmod(x[i], T.float32(0.75))

    x = samples("float32")
    _, y = run(program, x, torch.empty(4, N), -1.0, 2.0, 100)
    assert same(y[0], x.clamp(-1.0, 2.0)).all()
    assert ulps(y[1], x.double().abs().pow(0.5)) <= 2
    assert same(y[2], torch.where(torch.arange(N) < 100, x, 0.0)).all()
    exact = [math.fmod(v, 0.75) if math.isfinite(v) else math.nan for v in x.tolist()]
    assert same(y[3], torch.tensor(exact)).all()


def test_narrow_arithmetic_rounds_at_each_operation(run):
    @T.prim_func
    def program(a: T.Tensor((N,), "bfloat16"), b: T.Tensor((N,), "bfloat16"), y: T.Tensor((N,), "bfloat16")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(N):
                y[i] = (a[i] * b[i] + a[i]) * b[i]

    a, b = samples("bfloat16", seed=3), samples("bfloat16", seed=4)
    *_, y = run(program, a, b, torch.empty_like(a))
    each, once = (a * b + a) * b, ((a.float() * b.float() + a.float()) * b.float()).bfloat16()
    assert same(y, each).all()
    assert not same(once, each).all(), "the inputs do not tell one rounding from three"
