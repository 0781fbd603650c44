"""Data movement, control flow, symbolic sizes and atomics of tile programs, against torch."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import math

import pytest
import tilelang.language as T
import torch

from tileops_kernels.targets import compile_program

DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float64",
    "int8",
    "int64",
    "uint8",
    "uint32",
    "bool",
)


def values(shape, dtype="float32", seed=0):
    generator = torch.Generator().manual_seed(seed)
    torch_dtype = getattr(torch, dtype)
    if torch_dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(torch_dtype)
    return torch.randint(0, 2 if dtype == "bool" else 100, shape, generator=generator).to(torch_dtype)


def equal(got, expected):
    """Bit equality (torch cannot compare every narrow dtype)."""
    return (
        got.dtype == expected.dtype
        and got.shape == expected.shape
        and got.contiguous().view(torch.uint8).equal(expected.contiguous().view(torch.uint8))
    )


# ---- copy ----


def copy_through_tiles(dtype, block_m=16, block_n=32):
    m, n = T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def program(x: T.Tensor((m, n), dtype), y: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            x_shared = T.alloc_shared((block_m, block_n), dtype)
            x_frag = T.alloc_fragment((block_m, block_n), dtype)
            T.copy(x[by * block_m, bx * block_n], x_shared)
            T.copy(x_shared, x_frag)
            T.copy(x_frag, y[by * block_m, bx * block_n])

    return program


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_through_shared_memory_and_registers(run, dtype):
    x = values((37, 61), dtype)
    _, y = run(copy_through_tiles(dtype), x, torch.zeros_like(x))
    assert equal(y, x)


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (17, 33), (15, 31), (64, 5), (0, 8)])
def test_copy_of_ragged_shapes_with_one_program(run, shape):
    x = values(shape)
    _, y = run(copy_through_tiles("float32"), x, torch.zeros_like(x))
    assert equal(y, x)


def test_a_tile_over_the_edge_reads_zero_and_writes_nothing_outside(run):
    @T.prim_func
    def program(x: T.Tensor((5, 7), "float32"), y: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((8, 8), "float32")
            T.fill(tile, 9.0)
            T.copy(x[0:8, 0:8], tile)
            T.copy(tile, y)

    x = values((5, 7))
    _, y = run(program, x, torch.full((8, 8), 9.0))
    assert equal(y, torch.nn.functional.pad(x, (0, 1, 0, 3)))


def test_copy_converts_between_dtypes(run):
    @T.prim_func
    def program(
        x: T.Tensor((32, 32), "float32"), y: T.Tensor((32, 32), "bfloat16"), z: T.Tensor((32, 32), "float16")
    ):
        with T.Kernel(1, threads=64):
            narrow = T.alloc_shared((32, 32), "bfloat16")
            wide = T.alloc_fragment((32, 32), "float32")
            T.copy(x, narrow)
            T.copy(narrow, wide)
            T.copy(wide, z)
            T.copy(narrow, y)

    x = values((32, 32))
    _, y, z = run(
        program, x, torch.empty(32, 32, dtype=torch.bfloat16), torch.empty(32, 32, dtype=torch.float16)
    )
    assert equal(y, x.bfloat16())
    assert equal(z, x.bfloat16().float().half())


def test_copy_of_slices_of_higher_rank(run):
    @T.prim_func
    def program(x: T.Tensor((2, 3, 16, 32), "float32"), y: T.Tensor((3, 2, 16, 32), "float32")):
        with T.Kernel(2, 3, threads=64) as (b, h):
            tile = T.alloc_shared((16, 32), "float32")
            T.copy(x[b, h, 0:16, 0:32], tile)
            T.copy(tile, y[h, b, 0:16, 0:32])

    x = values((2, 3, 16, 32))
    _, y = run(program, x, torch.empty(3, 2, 16, 32))
    assert equal(y, x.transpose(0, 1).contiguous())


def test_copy_into_one_plane_of_a_staged_buffer(run):
    @T.prim_func
    def program(x: T.Tensor((3, 16, 32), "float32"), y: T.Tensor((3, 16, 32), "float32")):
        with T.Kernel(1, threads=64):
            stages = T.alloc_shared((3, 16, 32), "float32")
            for s in T.serial(3):
                T.copy(x[s, 0:16, 0:32], stages[s, 0:16, 0:32])
            for s in T.serial(3):
                T.copy(stages[2 - s, 0:16, 0:32], y[s, 0:16, 0:32])

    x = values((3, 16, 32))
    _, y = run(program, x, torch.empty_like(x))
    assert equal(y, x.flip(0))


def test_transposition_by_parallel_loops(run):
    @T.prim_func
    def program(x: T.Tensor((48, 32), "bfloat16"), y: T.Tensor((32, 48), "bfloat16")):
        with T.Kernel(3, 2, threads=64) as (bx, by):
            tile = T.alloc_shared((16, 16), "bfloat16")
            T.copy(x[bx * 16, by * 16], tile)
            for i, j in T.Parallel(16, 16):
                y[by * 16 + i, bx * 16 + j] = tile[j, i]

    x = values((48, 32), "bfloat16")
    _, y = run(program, x, torch.empty(32, 48, dtype=torch.bfloat16))
    assert equal(y, x.T.contiguous())


def test_transpose_operation(run):
    @T.prim_func
    def program(x: T.Tensor((32, 16), "float32"), y: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 16), "float32")
            turned = T.alloc_shared((16, 32), "float32")
            T.copy(x, tile)
            T.transpose(tile, turned)
            T.copy(turned, y)

    x = values((32, 16))
    _, y = run(program, x, torch.empty(16, 32))
    assert equal(y, x.T.contiguous())


def test_gather_by_an_index_tensor(run):
    rows = T.dynamic("rows")

    @T.prim_func
    def program(
        x: T.Tensor((rows, 32), "float32"), index: T.Tensor((16,), "int64"), y: T.Tensor((16, 32), "float32")
    ):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(16, 32):
                y[i, j] = x[index[i], j]

    x, index = values((50, 32)), torch.randperm(50)[:16]
    index[3] = 50  # outside: reads zero
    *_, y = run(program, x, index, torch.empty(16, 32))
    expected = x[index.clamp(max=49)]
    expected[3] = 0
    assert equal(y, expected)


def test_scatter_by_an_index_tensor(run):
    @T.prim_func
    def program(
        x: T.Tensor((16, 32), "float16"), index: T.Tensor((16,), "int32"), y: T.Tensor((16, 32), "float16")
    ):
        with T.Kernel(16, threads=32) as row:
            for j in T.Parallel(32):
                y[index[row], j] = x[row, j]

    x, index = values((16, 32), "float16"), torch.randperm(16).int()
    *_, y = run(program, x, index, torch.zeros_like(x))
    expected = torch.zeros_like(x)
    expected[index.long()] = x
    assert equal(y, expected)


def test_fill_clear_and_region_fill(run):
    @T.prim_func
    def program(y: T.Tensor((16, 32), "float32"), z: T.Tensor((16, 32), "bfloat16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((16, 32), "float32")
            narrow = T.alloc_shared((16, 32), "bfloat16")
            T.fill(tile, -T.infinity("float32"))
            T.copy(tile, y)
            T.clear(narrow)
            T.fill(narrow[4:8, 0:16], 1.5)
            T.copy(narrow, z)

    y, z = run(program, torch.empty(16, 32), torch.empty(16, 32, dtype=torch.bfloat16))
    expected = torch.zeros(16, 32, dtype=torch.bfloat16)
    expected[4:8, :16] = 1.5
    assert equal(y, torch.full((16, 32), -math.inf))
    assert equal(z, expected)


def test_tensors_with_strides(target):
    m, stride = T.dynamic("m"), T.dynamic("stride")

    @T.prim_func
    def program(x: T.StridedTensor((m, 32), (stride, 1), "float32"), y: T.Tensor((m, 32), "float32")):
        with T.Kernel(T.ceildiv(m, 8), threads=64) as block:
            tile = T.alloc_shared((8, 32), "float32")
            T.copy(x[block * 8, 0], tile)
            T.copy(tile, y[block * 8, 0])

    whole = values((13, 48)).to(target)
    y = torch.empty(13, 32, device=target)
    compile_program(program, target)(whole[:, 8:40], y)
    assert equal(y.cpu(), whole[:, 8:40].cpu().contiguous())


def test_a_view_and_a_reshape_of_a_tile(run):
    @T.prim_func
    def program(
        x: T.Tensor((16, 32), "float32"), y: T.Tensor((512,), "float32"), bits: T.Tensor((512,), "int32")
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((16, 32), "float32")
            T.copy(x, tile)
            flat = T.reshape(tile, (512,))
            words = T.view(tile, (512,), "int32")
            T.copy(flat, y)
            T.copy(words, bits)

    x = values((16, 32))
    _, y, bits = run(program, x, torch.empty(512), torch.empty(512, dtype=torch.int32))
    assert equal(y, x.flatten())
    assert equal(bits, x.flatten().view(torch.int32))


def test_a_negative_constant_index_counts_from_the_end(run):
    @T.prim_func
    def program(x: T.Tensor((32,), "float32"), y: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=32):
            y[0] = x[-1]
            y[-1] = x[-32]

    x = values((32,))
    _, y = run(program, x, torch.empty(2))
    assert equal(y, torch.stack([x[-1], x[0]]))


# ---- control flow ----


def test_loops_with_bounds_from_data_variables_and_breaks(run):
    @T.prim_func
    def program(
        x: T.Tensor((8, 64), "int32"), lengths: T.Tensor((8,), "int32"), y: T.Tensor((8, 3), "int32")
    ):
        with T.Kernel(8, threads=32) as row:
            total = T.alloc_var("int32", 0)
            for i in T.serial(lengths[row]):
                total = total + x[row, i]
            y[row, 0] = total
            steps = T.alloc_var("int32", 0)
            rest = T.alloc_var("int32", lengths[row])
            while rest > 1:
                rest = T.if_then_else(rest % 2 == 0, rest // 2, 3 * rest + 1)
                steps = steps + 1
            y[row, 1] = steps
            found = T.alloc_var("int32", -1)
            for i in T.serial(64):
                if x[row, i] > 90:
                    found = i
                    T.loop_break()
            y[row, 2] = found

    x, lengths = values((8, 64), "int32"), torch.tensor([0, 1, 2, 3, 7, 27, 63, 64], dtype=torch.int32)
    x[2] = 0
    *_, y = run(program, x, lengths, torch.empty(8, 3, dtype=torch.int32))

    def collatz(n):
        steps = 0
        while n > 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        return steps

    expected = [
        [row[:n].sum().item(), collatz(n), next((i for i, v in enumerate(row.tolist()) if v > 90), -1)]
        for row, n in zip(x, lengths.tolist(), strict=True)
    ]
    assert y.tolist() == expected


def test_branches_on_block_and_on_element(run):
    @T.prim_func
    def program(x: T.Tensor((64,), "float32"), y: T.Tensor((64,), "float32")):
        with T.Kernel(4, threads=32) as block:
            tile = T.alloc_fragment((16,), "float32")
            T.copy(x[block * 16], tile)
            if block % 2 == 0:
                for i in T.Parallel(16):
                    tile[i] = tile[i] * 2.0
            elif block == 3:
                T.fill(tile, 7.0)
            else:
                for i in T.Parallel(16):
                    if tile[i] < 0:
                        tile[i] = 0.0
            T.copy(tile, y[block * 16])

    x = values((64,))
    _, y = run(program, x, torch.empty(64))
    expected = x.clone().view(4, 16)
    expected[0] *= 2
    expected[2] *= 2
    expected[1].relu_()
    expected[3] = 7
    assert equal(y, expected.flatten())


def test_a_macro_a_closure_and_a_pipelined_loop(run):
    def activation(v):
        return T.max(v, T.float32(0))

    @T.macro
    def accumulate(tile, total):
        for i in T.Parallel(32):
            total[i] = total[i] + activation(tile[i])

    @T.prim_func
    def program(x: T.Tensor((5, 32), "float32"), y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(5, num_stages=2):
                T.copy(x[k, 0:32], tile)
                accumulate(tile, total)
            T.copy(total, y)

    x = values((5, 32))
    _, y = run(program, x, torch.empty(32))
    expected = torch.zeros(32)
    for row in x:
        expected += row.relu()
    assert equal(y, expected)


def test_a_persistent_grid_covers_every_tile(run):
    m = T.dynamic("m")

    @T.prim_func
    def program(x: T.Tensor((m, 32), "float32"), y: T.Tensor((m, 32), "float32")):
        with T.Kernel(4, threads=32) as worker:
            tile = T.alloc_shared((8, 32), "float32")
            for bx, by in T.Persistent([T.ceildiv(m, 8), 1], 4, worker):
                T.copy(x[bx * 8, by * 32], tile)
                T.copy(tile, y[bx * 8, by * 32])

    x = values((101, 32))
    _, y = run(program, x, torch.zeros_like(x))
    assert equal(y, x)


def test_two_kernels_in_one_program_run_in_order(run):
    @T.prim_func
    def program(
        x: T.Tensor((256,), "float32"), middle: T.Tensor((256,), "float32"), y: T.Tensor((256,), "float32")
    ):
        with T.Kernel(4, threads=32) as block:
            for i in T.Parallel(64):
                middle[block * 64 + i] = x[block * 64 + i] + 1.0
        with T.Kernel(4, threads=32) as block:
            for i in T.Parallel(64):
                y[block * 64 + i] = middle[255 - (block * 64 + i)] * 2.0

    x = values((256,))
    *_, y = run(program, x, torch.empty(256), torch.empty(256))
    assert equal(y, ((x + 1) * 2).flip(0))


def test_a_grid_of_three_dimensions(run):
    @T.prim_func
    def program(y: T.Tensor((3, 4, 5), "int32")):
        with T.Kernel(5, 4, 3, threads=32) as (bx, by, bz):
            y[bz, by, bx] = bz * 100 + by * 10 + bx

    (y,) = run(program, torch.empty(3, 4, 5, dtype=torch.int32))
    z, i, j = torch.meshgrid(torch.arange(3), torch.arange(4), torch.arange(5), indexing="ij")
    assert torch.equal(y, (z * 100 + i * 10 + j).int())


def test_synchronisation_and_asynchronous_copies(run):
    @T.prim_func
    def program(x: T.Tensor((32, 64), "float16"), y: T.Tensor((32, 64), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, 64), "float16")
            T.async_copy(x, tile)
            T.ptx_wait_group(0)
            T.sync_threads()
            for i, j in T.Parallel(32, 64):
                y[i, j] = tile[31 - i, j]

    x = values((32, 64), "float16")
    _, y = run(program, x, torch.empty_like(x))
    assert equal(y, x.flip(0))


def test_several_outputs_and_an_output_in_place(run):
    n = T.dynamic("n")

    @T.prim_func
    def program(
        x: T.Tensor((n,), "float32"), residual: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")
    ):
        with T.Kernel(T.ceildiv(n, 64), threads=32) as block:
            tile = T.alloc_fragment((64,), "float32")
            for i in T.Parallel(64):
                tile[i] = residual[block * 64 + i] + x[block * 64 + i]
            T.copy(tile, residual[block * 64])
            for i in T.Parallel(64):
                y[block * 64 + i] = tile[i] * 0.5

    x, residual = values((100,)), values((100,), seed=1)
    _, after, y = run(program, x, residual, torch.empty(100))
    assert equal(after, residual + x)
    assert equal(y, (residual + x) * 0.5)


def test_working_storage_beyond_the_stack(target, run):
    rows = 512 if target == "cpu" else 2  # a GPU's shared memory is smaller than a stack

    if run.__closure__ and "cuda" in [
        c.cell_contents for c in run.__closure__ if isinstance(c.cell_contents, str)
    ]:
        pytest.skip("a GPU's shared memory is smaller than this")

    @T.prim_func
    def program(x: T.Tensor((rows, 4096), "float32"), y: T.Tensor((rows, 4096), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((rows, 4096), "float32")
            b = T.alloc_shared((rows, 4096), "float32")
            T.copy(x, a)
            for i, j in T.Parallel(rows, 4096):
                b[i, j] = a[rows - 1 - i, j]
            T.copy(b, y)

    x = values((rows, 4096))
    _, y = run(program, x, torch.empty_like(x))
    assert equal(y, x.flip(0))


# ---- atomics ----


def test_atomic_updates_of_elements(run):
    @T.prim_func
    def program(
        x: T.Tensor((256,), "int32"),
        total: T.Tensor((1,), "int32"),
        greatest: T.Tensor((1,), "int32"),
        least: T.Tensor((1,), "int32"),
        bits: T.Tensor((1,), "int32"),
    ):
        with T.Kernel(4, threads=64) as block:
            for i in T.Parallel(64):
                T.atomic_add(total[0], x[block * 64 + i])
                T.atomic_max(greatest[0], x[block * 64 + i])
                T.atomic_min(least[0], x[block * 64 + i])
                T.atomic_or(bits[0], x[block * 64 + i])

    x = values((256,), "int32")
    one = torch.zeros(1, dtype=torch.int32)
    _, total, greatest, least, bits = run(program, x, one + 5, one, one + 1000, one)
    expected_bits = 0
    for v in x.tolist():
        expected_bits |= v
    assert [total.item(), greatest.item(), least.item(), bits.item()] == [
        x.sum().item() + 5,
        x.max().item(),
        x.min().item(),
        expected_bits,
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_atomic_addition_of_a_tile(run, dtype):
    @T.prim_func
    def program(x: T.Tensor((4, 64), dtype), y: T.Tensor((64,), dtype)):
        with T.Kernel(4, threads=64) as block:
            tile = T.alloc_fragment((64,), dtype)
            T.copy(x[block, 0:64], tile)
            T.atomic_add(y[0:64], tile)

    x = torch.randint(-8, 8, (4, 64)).to(getattr(torch, dtype))  # exact in any order
    _, y = run(program, x, torch.zeros(64, dtype=x.dtype))
    assert equal(y, x.float().sum(0).to(x.dtype))


def test_an_atomic_gives_back_the_previous_value(run):
    @T.prim_func
    def program(count: T.Tensor((1,), "int32"), ticket: T.Tensor((32,), "int32")):
        with T.Kernel(32, threads=32) as block:
            ticket[block] = T.atomic_add(count[0], 1, return_prev=True)

    count, ticket = run(program, torch.zeros(1, dtype=torch.int32), torch.empty(32, dtype=torch.int32))
    assert count.item() == 32
    assert sorted(ticket.tolist()) == list(range(32))
