"""Matrix products, reductions, scans and reducers of tile programs, against torch in float64."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import pytest
import tilelang.language as T
import torch

ROUNDOFF = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}


def values(shape, dtype="float32", seed=0):
    generator = torch.Generator().manual_seed(seed)
    torch_dtype = getattr(torch, dtype)
    if torch_dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(torch_dtype)
    return torch.randint(-50 if torch_dtype.is_signed else 0, 50, shape, generator=generator).to(torch_dtype)


def close(got, exact, scale, length, accumulate="float32"):
    """Within one rounding of the output and what a sum of `length` terms can lose in the accumulator."""
    output = ROUNDOFF[str(got.dtype).removeprefix("torch.")]
    bound = output * exact.abs() + 2 * length * ROUNDOFF[accumulate] * scale
    return bool(((got.double() - exact).abs() <= bound).all())


# ---- matrix products ----


def gemm(dtype, accumulate, out, transpose_a, transpose_b, block_m=32, block_n=32, block_k=32):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    a_shape, b_shape = ((k, m) if transpose_a else (m, k)), ((n, k) if transpose_b else (k, n))
    a_tile = (block_k, block_m) if transpose_a else (block_m, block_k)
    b_tile = (block_n, block_k) if transpose_b else (block_k, block_n)

    @T.prim_func
    def program(a: T.Tensor(a_shape, dtype), b: T.Tensor(b_shape, dtype), c: T.Tensor((m, n), out)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            a_shared = T.alloc_shared(a_tile, dtype)
            b_shared = T.alloc_shared(b_tile, dtype)
            c_frag = T.alloc_fragment((block_m, block_n), accumulate)
            T.clear(c_frag)
            for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                if transpose_a:
                    T.copy(a[step * block_k, by * block_m], a_shared)
                else:
                    T.copy(a[by * block_m, step * block_k], a_shared)
                if transpose_b:
                    T.copy(b[bx * block_n, step * block_k], b_shared)
                else:
                    T.copy(b[step * block_k, bx * block_n], b_shared)
                T.gemm(a_shared, b_shared, c_frag, transpose_A=transpose_a, transpose_B=transpose_b)
            T.copy(c_frag, c[by * block_m, bx * block_n])

    return program


@pytest.mark.parametrize(
    ("dtype", "transpose_a", "transpose_b"),
    [
        ("float32", False, False),
        ("float32", True, True),
        ("bfloat16", False, False),
        ("bfloat16", False, True),
        ("bfloat16", True, False),
        ("float16", False, True),
        ("float8_e4m3fn", False, True),
        ("float8_e5m2", False, True),
    ],
)
def test_gemm_of_floats(run, target, dtype, transpose_a, transpose_b):
    m, n, k = 50, 70, 90
    a, b = (
        values((k, m) if transpose_a else (m, k), dtype),
        values((n, k) if transpose_b else (k, n), dtype, seed=1),
    )
    out = "float32" if dtype.startswith("float8") else dtype
    *_, c = run(
        gemm(dtype, "float32", out, transpose_a, transpose_b),
        a,
        b,
        torch.empty(m, n, dtype=getattr(torch, out)),
    )
    a, b = (a.T if transpose_a else a).double(), (b.T if transpose_b else b).double()
    tensor_core_float32 = target == "cuda" and dtype == "float32"
    assert close(c, a @ b, a.abs() @ b.abs(), k, "float16" if tensor_core_float32 else "float32")


def test_gemm_of_integers_is_exact(run):
    a, b = values((33, 64), "int8"), values((47, 64), "int8", seed=1)
    *_, c = run(gemm("int8", "int32", "int32", False, True), a, b, torch.empty(33, 47, dtype=torch.int32))
    assert torch.equal(c, a.int() @ b.int().T)


def test_gemm_into_a_narrow_accumulator_starts_from_what_is_there(run):
    @T.prim_func
    def program(
        a: T.Tensor((32, 64), "float16"), b: T.Tensor((64, 32), "float16"), c: T.Tensor((32, 32), "float16")
    ):
        with T.Kernel(1, threads=128):
            a_shared = T.alloc_shared((32, 64), "float16")
            b_shared = T.alloc_shared((64, 32), "float16")
            c_frag = T.alloc_fragment((32, 32), "float16")
            T.copy(a, a_shared)
            T.copy(b, b_shared)
            T.copy(c, c_frag)
            T.gemm(a_shared, b_shared, c_frag)
            T.copy(c_frag, c)

    a, b, c = values((32, 64), "float16"), values((64, 32), "float16", 1), values((32, 32), "float16", 2)
    *_, got = run(program, a, b, c)
    exact = a.double() @ b.double() + c.double()
    assert close(got, exact, a.double().abs() @ b.double().abs(), 64, "float16")


def test_gemm_on_planes_with_clear_and_a_fragment_operand(run):
    @T.prim_func
    def program(
        a: T.Tensor((2, 32, 64), "bfloat16"),
        b: T.Tensor((2, 64, 32), "bfloat16"),
        c: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a_shared = T.alloc_shared((2, 32, 64), "bfloat16")
            a_frag = T.alloc_fragment((32, 64), "bfloat16")
            b_shared = T.alloc_shared((2, 64, 32), "bfloat16")
            c_frag = T.alloc_fragment((32, 32), "float32")
            T.copy(a, a_shared)
            T.copy(b, b_shared)
            T.fill(c_frag, 1000.0)
            T.gemm(a_shared[0, 0:32, 0:64], b_shared[0, 0:64, 0:32], c_frag, clear_accum=True)
            T.copy(a_shared[1, 0:32, 0:64], a_frag)
            T.gemm(a_frag, b_shared[1, 0:64, 0:32], c_frag)
            T.copy(c_frag, c)

    a, b = values((2, 32, 64), "bfloat16"), values((2, 64, 32), "bfloat16", 1)
    *_, c = run(program, a, b, torch.empty(32, 32))
    a, b = a.double(), b.double()
    assert close(c, (a @ b).sum(0), (a.abs() @ b.abs()).sum(0), 128)


# ---- reductions ----

REDUCTIONS = {
    "sum": (T.reduce_sum, lambda x, d: x.sum(d)),
    "max": (T.reduce_max, lambda x, d: x.amax(d)),
    "min": (T.reduce_min, lambda x, d: x.amin(d)),
    "abssum": (T.reduce_abssum, lambda x, d: x.abs().sum(d)),
    "absmax": (T.reduce_absmax, lambda x, d: x.abs().amax(d)),
}
BITWISE = {
    "bitand": (T.reduce_bitand, torch.bitwise_and),
    "bitor": (T.reduce_bitor, torch.bitwise_or),
    "bitxor": (T.reduce_bitxor, torch.bitwise_xor),
}


def reduction(reduce, dtype, dim, out=None):
    length = 32 if dim else 64
    out = out or dtype

    @T.prim_func
    def program(x: T.Tensor((32, 64), dtype), y: T.Tensor((length,), out)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((32, 64), dtype)
            result = T.alloc_fragment((length,), out)
            T.copy(x, tile)
            reduce(tile, result, dim=dim)
            T.copy(result, y)

    return program


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reduction_over_either_dimension(run, kind, dtype, dim):
    reduce, reference = REDUCTIONS[kind]
    x = values((32, 64), dtype)
    _, y = run(reduction(reduce, dtype, dim), x, torch.empty(32 if dim else 64, dtype=x.dtype))
    if "sum" in kind and dtype != "int32":
        # A GPU may add bfloat16 in bfloat16.
        assert close(y, reference(x.double(), dim), x.double().abs().sum(dim), 64, dtype)
    else:
        assert torch.equal(y, reference(x, dim).to(x.dtype))


@pytest.mark.parametrize("kind", BITWISE)
def test_bitwise_reduction(run, kind):
    reduce, combine = BITWISE[kind]
    x = values((32, 64), "int32")
    _, y = run(reduction(reduce, "int32", 1), x, torch.empty(32, dtype=torch.int32))
    expected = x[:, 0]
    for column in x.T[1:]:
        expected = combine(expected, column)
    assert torch.equal(y, expected)


def test_reduction_into_a_wider_dtype(run):
    x = values((32, 64), "bfloat16")
    _, y = run(reduction(T.reduce_sum, "bfloat16", 1, "float32"), x, torch.empty(32))
    assert close(y, x.double().sum(1), x.double().abs().sum(1), 64)


def test_reduction_that_goes_on_from_the_output_and_keeps_the_dimension(run):
    @T.prim_func
    def program(
        x: T.Tensor((2, 32, 64), "float32"), y: T.Tensor((32, 1), "float32"), z: T.Tensor((32,), "float32")
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((32, 64), "float32")
            total = T.alloc_fragment((32, 1), "float32")
            greatest = T.alloc_fragment((32,), "float32")
            T.copy(x[0, 0:32, 0:64], tile)
            T.reduce_sum(tile, total, dim=1)
            T.reduce_max(tile, greatest, dim=1)
            T.copy(x[1, 0:32, 0:64], tile)
            T.reduce_sum(tile, total, dim=1, clear=False)
            T.reduce_max(tile, greatest, dim=1, clear=False)
            T.copy(total, y)
            T.copy(greatest, z)

    x = values((2, 32, 64))
    _, y, z = run(program, x, torch.empty(32, 1), torch.empty(32))
    assert close(y[:, 0], x.double().sum((0, 2)), x.double().abs().sum((0, 2)), 128)
    assert torch.equal(z, x.amax((0, 2)))


def test_reduction_of_the_middle_of_three_dimensions(run):
    @T.prim_func
    def program(x: T.Tensor((4, 8, 32), "float32"), y: T.Tensor((4, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((4, 8, 32), "float32")
            result = T.alloc_shared((4, 32), "float32")
            T.copy(x, tile)
            T.reduce_sum(tile, result, dim=1)
            T.copy(result, y)

    x = values((4, 8, 32))
    _, y = run(program, x, torch.empty(4, 32))
    assert close(y, x.double().sum(1), x.double().abs().sum(1), 8)


def test_maximum_of_a_row_without_finite_values_and_with_nan(run):
    x = torch.full((32, 64), -torch.inf)
    x[1, 5] = torch.nan
    x[2, 7] = 3.0
    x[2, 8] = torch.nan
    _, y = run(reduction(T.reduce_max, "float32", 1), x, torch.empty(32))
    assert y[0] == -torch.inf
    assert y[1] == -torch.inf, "a NaN is dropped"
    assert y[2] == 3.0


def test_a_sum_that_must_not_be_reassociated_is_not(run):
    # Compensated summation: an optimiser that takes floating-point addition as associative removes the
    # compensation.
    @T.prim_func
    def program(x: T.Tensor((4096,), "float32"), y: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=32):
            plain = T.alloc_var("float32", 0.0)
            total = T.alloc_var("float32", 0.0)
            lost = T.alloc_var("float32", 0.0)
            term = T.alloc_var("float32", 0.0)
            after = T.alloc_var("float32", 0.0)
            for i in T.serial(4096):
                plain = plain + x[i]
                term = x[i] - lost
                after = total + term
                lost = (after - total) - term
                total = after
            y[0] = total
            y[1] = plain

    x = torch.full((4096,), 1e-4)
    x[0] = 1e4
    _, y = run(program, x, torch.empty(2))
    exact = x.double().sum().item()
    assert abs(y[0].item() - exact) < 1e-3
    assert abs(y[1].item() - exact) > 0.1, "the inputs do not need compensation"


# ---- scans and reducers ----


def scan(operation, dim, reverse, shared, dtype="float32"):
    @T.prim_func
    def program(x: T.Tensor((32, 64), dtype), y: T.Tensor((32, 64), dtype)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 64), dtype) if shared else T.alloc_fragment((32, 64), dtype)
            T.copy(x, tile)
            operation(tile, dim=dim, reverse=reverse)
            T.copy(tile, y)

    return program


@pytest.mark.parametrize(
    ("dim", "reverse", "shared"),
    [(0, False, True), (1, False, True), (1, True, True), (0, True, True), (1, False, False)],
)
def test_cumulative_sum(run, dim, reverse, shared):
    x = values((32, 64))
    _, y = run(scan(T.cumsum, dim, reverse, shared), x, torch.empty_like(x))
    wide = x.double().flip(dim) if reverse else x.double()
    exact, scale = wide.cumsum(dim), wide.abs().cumsum(dim)
    assert close(y, exact.flip(dim) if reverse else exact, scale.flip(dim) if reverse else scale, 64)


def test_cumulative_maximum(run):
    x = values((32, 64))
    _, y = run(scan(T.cummax, 1, False, True), x, torch.empty_like(x))
    assert torch.equal(y, x.cummax(1).values)


@pytest.mark.parametrize(("op", "reference"), [("sum", torch.sum), ("max", torch.amax), ("min", torch.amin)])
def test_reducer_fed_by_a_parallel_loop(run, op, reference):
    @T.prim_func
    def program(
        x: T.Tensor((4, 32, 64), "float32"), y: T.Tensor((64,), "float32"), z: T.Tensor((1,), "float32")
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 64), "float32")
            columns = T.alloc_reducer((64,), "float32", op=op)
            whole = T.alloc_reducer((1,), "float32", op=op)
            columns_frag = T.alloc_fragment((64,), "float32")
            whole_frag = T.alloc_fragment((1,), "float32")
            T.reducer_init(columns)
            T.reducer_init(whole)
            for step in T.serial(4):
                T.copy(x[step, 0:32, 0:64], tile)
                for i, j in T.Parallel(32, 64):
                    T.reducer_update(columns[j], tile[i, j])
                for i, j in T.Parallel(32, 64):
                    T.reducer_update(whole[0], tile[i, j])
            T.finalize_reducer(columns, columns_frag)
            T.finalize_reducer(whole, whole_frag)
            T.copy(columns_frag, y)
            T.copy(whole_frag, z)

    x = values((4, 32, 64))
    _, y, z = run(program, x, torch.empty(64), torch.empty(1))
    exact, scale = reference(x.double(), (0, 1)), x.double().abs().sum((0, 1))
    assert close(y, exact, scale if op == "sum" else 0 * scale, 128)
    assert close(
        z,
        reference(x.double()).view(1),
        x.double().abs().sum().view(1) if op == "sum" else torch.zeros(1),
        8192,
    )


def test_argmax_takes_the_first_of_equals(run):
    @T.prim_func
    def program(x: T.Tensor((32, 64), "float32"), y: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((32, 64), "float32")
            greatest = T.alloc_fragment((32,), "float32")
            candidate = T.alloc_fragment((32, 64), "int32")
            index = T.alloc_fragment((32,), "int32")
            T.copy(x, tile)
            T.reduce_max(tile, greatest, dim=1)
            for i, j in T.Parallel(32, 64):
                candidate[i, j] = T.if_then_else(tile[i, j] == greatest[i], j, 64)
            T.reduce_min(candidate, index, dim=1)
            T.copy(index, y)

    x = values((32, 64)).round()
    _, y = run(program, x, torch.empty(32, dtype=torch.int32))
    assert torch.equal(y, (x == x.amax(1, keepdim=True)).int().argmax(1).int())


# ---- together ----


def attention(heads, dim, causal, block_m=32, block_n=32):
    batch, length = T.dynamic("batch"), T.dynamic("length")
    scale = 1.4426950408889634 / dim**0.5
    shape = (batch, length, heads, dim)

    @T.prim_func
    def program(
        q: T.Tensor(shape, "bfloat16"),
        k: T.Tensor(shape, "bfloat16"),
        v: T.Tensor(shape, "bfloat16"),
        o: T.Tensor(shape, "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(length, block_m), heads, batch, threads=128) as (bx, h, b):
            q_shared = T.alloc_shared((block_m, dim), "bfloat16")
            k_shared = T.alloc_shared((block_n, dim), "bfloat16")
            v_shared = T.alloc_shared((block_n, dim), "bfloat16")
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), "bfloat16")
            output = T.alloc_fragment((block_m, dim), "float32")
            greatest = T.alloc_fragment((block_m,), "float32")
            before = T.alloc_fragment((block_m,), "float32")
            rescale = T.alloc_fragment((block_m,), "float32")
            row_sum = T.alloc_fragment((block_m,), "float32")
            total = T.alloc_fragment((block_m,), "float32")
            T.copy(q[b, bx * block_m : (bx + 1) * block_m, h, :], q_shared)
            T.clear(output)
            T.clear(total)
            T.fill(greatest, -T.infinity("float32"))
            for step in T.serial(T.ceildiv(length, block_n)):
                T.copy(k[b, step * block_n : (step + 1) * block_n, h, :], k_shared)
                for i, j in T.Parallel(block_m, block_n):
                    hidden = (step * block_n + j >= length) | (
                        (step * block_n + j > bx * block_m + i) if causal else False
                    )
                    scores[i, j] = T.if_then_else(hidden, -T.infinity("float32"), 0)
                T.gemm(q_shared, k_shared, scores, transpose_B=True)
                T.copy(greatest, before)
                T.reduce_max(scores, greatest, dim=1, clear=False)
                for i in T.Parallel(block_m):
                    rescale[i] = T.exp2((before[i] - greatest[i]) * scale)
                for i, j in T.Parallel(block_m, block_n):
                    scores[i, j] = T.exp2((scores[i, j] - greatest[i]) * scale)
                T.reduce_sum(scores, row_sum, dim=1)
                for i in T.Parallel(block_m):
                    total[i] = total[i] * rescale[i] + row_sum[i]
                for i, j in T.Parallel(block_m, dim):
                    output[i, j] = output[i, j] * rescale[i]
                T.copy(scores, weights)
                T.copy(v[b, step * block_n : (step + 1) * block_n, h, :], v_shared)
                T.gemm(weights, v_shared, output)
            for i, j in T.Parallel(block_m, dim):
                output[i, j] = output[i, j] / total[i]
            T.copy(output, o[b, bx * block_m : (bx + 1) * block_m, h, :])

    return program


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(run, causal):
    q, k, v = (values((2, 70, 3, 32), "bfloat16", seed) for seed in range(3))
    *_, o = run(attention(3, 32, causal), q, k, v, torch.empty_like(q))
    wide = [t.double().transpose(1, 2) for t in (q, k, v)]
    exact = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal).transpose(1, 2)
    scale = torch.nn.functional.scaled_dot_product_attention(
        wide[0], wide[1], wide[2].abs(), is_causal=causal
    ).transpose(1, 2)
    # The weights pass through bfloat16: each term of the sum is rounded once.
    assert ((o.double() - exact).abs() <= 2**-8 * exact.abs() + 2**-8 * scale + 1e-5).all()
