"""Matrix products: schedules, what is copied, what is compiled, what is launched."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tileops_kernels.kernels.attention import AttentionForwardKernel
from tileops_kernels.kernels.bmm import BmmKernel
from tileops_kernels.kernels.decode import DecodeKernel
from tileops_kernels.kernels.gemm import GemmKernel, SplitKSumKernel, pick_split
from tileops_kernels.kernels.gemm_hopper import BmmHopperKernel, GemmHopperKernel, MatmulHopperConfig
from tileops_kernels.kernels.gemm_small import BmmSmallKernel, GemmSmallKernel
from tileops_kernels.kernels.paged_decode import PagedDecodeKernel
from tileops_kernels.ops import get_op
from tileops_kernels.ops.flows import matmul
from tileops_kernels.ops.flows._dense import MAX_GRID_Z, bound_over_batch, dense_copy, same
from tileops_kernels.ops.flows._operands import flipped, flipped_copy, operand

SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90a": 227 << 10}


def never(*args: object, **kwargs: object) -> object:
    raise AssertionError("nothing must be compiled for this call")


class Recorder:
    """Stands in for a compiled program: notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.bound_calls: list[tuple] = []

    def __call__(self, *args: object) -> None:
        self.calls.append(args)

    def bound(self, *example: object) -> object:
        return lambda *args: self.bound_calls.append(args)


@pytest.mark.parametrize("steps", [1, 3, 7, 16, 112, 113])
@pytest.mark.parametrize("tiles", [1, 33, 64, 500])
def test_a_split_divides_the_steps_and_fits_the_gpu(tiles: int, steps: int) -> None:
    split = pick_split(tiles=tiles, steps=steps, units=132)
    assert steps % split == 0
    assert split == 1 or (tiles * split <= 132 and steps // split >= 4)


def test_skinny_products_are_split_and_large_ones_are_not() -> None:
    sizes = {"n": 2112, "k": 7168, "dtype": "bfloat16"}
    configs = {
        m: GemmKernel.default_config(target="cuda", arch="sm_90a", m=m, **sizes) for m in (1, 16, 64, 4096)
    }
    assert configs[1] == configs[16]
    assert configs[16].swap_ab
    assert configs[16].split_k > 1
    assert configs[4096].split_k == 1


def test_the_config_of_a_product_without_a_row_count_is_that_of_a_large_one() -> None:
    sizes = {"n": 4096, "k": 7168, "dtype": "bfloat16"}
    unknown = GemmKernel.default_config(target="cuda", arch="sm_90a", **sizes)
    assert unknown == GemmKernel.default_config(target="cuda", arch="sm_90a", m=4096, **sizes)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "kernel", [GemmKernel, BmmKernel, AttentionForwardKernel, DecodeKernel, PagedDecodeKernel]
)
def test_float32_products_never_run_as_tf32(kernel: type, arch: str) -> None:
    for sample in kernel.samples():
        config = kernel.default_config(target="cuda", arch=arch, **{**sample, "dtype": "float32"})
        assert config.fma
        assert not kernel.default_config(target="cuda", arch=arch, **{**sample, "dtype": "float16"}).fma


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"m": 4096, "n": 4096}, True),
        ({"m": 1024, "n": 1024}, True),
        ({"m": 4096, "n": 4095}, False),  # the copy engine cannot address such rows
        ({"m": 4096, "n": 4096, "dtype": "float32"}, False),
    ],
)
def test_hopper_forms_what_it_can_and_what_fills_it(
    sizes: dict, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GemmHopperKernel, "serves_device", classmethod(lambda cls, device: True))
    sizes = {"k": 4096, "dtype": "bfloat16", "trans_b": True, **sizes}
    general = GemmKernel.default_config(target="cuda", arch="sm_90a", **sizes)
    assert GemmHopperKernel.beats(general, torch.device("cuda"), **sizes) is expected


def test_no_other_device_takes_hoppers_schedule() -> None:
    general = GemmKernel.default_config(target="cuda", arch="sm_90a", m=4096, n=4096, k=64, dtype="float16")
    sizes = {"m": 4096, "n": 4096, "k": 64, "dtype": "float16", "trans_b": True}
    assert not GemmHopperKernel.beats(general, torch.device("cpu"), **sizes)


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({"m": 4096, "n": 4096}, (128, 256)),
        ({"m": 4096, "n": 2112}, (192, 176)),  # two whole rounds
        ({"m": 4096, "n": 2112, "trans_b": False}, (128, 192)),
        ({"m": 1024, "n": 1024}, (64, 128)),  # a tile for nearly every multiprocessor
    ],
)
def test_hopper_takes_the_tile_of_the_least_time(sizes: dict, tile: tuple[int, int]) -> None:
    config = GemmHopperKernel.default_config(target="cuda", arch="sm_90a", **sizes)
    assert (config.block_m, config.block_n) == tile


@pytest.mark.parametrize("tile", GemmHopperKernel.TILES)
def test_a_tile_is_shared_out_evenly(tile: MatmulHopperConfig) -> None:
    assert tile.block_m == 64 * tile.groups
    assert tile.block_n % tile.chunk == 0
    results = 2 * tile.block_m * tile.chunk
    buffers = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k
    assert 2 * (buffers + results) <= SHARED_MEMORY["sm_90a"]


@pytest.mark.parametrize(
    ("op", "kernel", "general", "shapes"),
    [
        ("GemmFwdOp", GemmHopperKernel, GemmKernel, ((256, 16), (24, 16))),
        ("BmmFwdOp", BmmHopperKernel, BmmKernel, ((2, 256, 16), (2, 16, 24))),
    ],
)
def test_the_faster_schedule_is_launched(
    op: str, kernel: type, general: type, shapes: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Recorder()
    monkeypatch.setattr(kernel, "beats", classmethod(lambda cls, *args, **sizes: True))
    monkeypatch.setattr(kernel, "compiled", classmethod(lambda cls, *args, **static: program))
    monkeypatch.setattr(general, "compiled", never)
    get_op(op)()(*(torch.ones(shape, dtype=torch.float16) for shape in shapes))
    assert [len(call) for call in program.bound_calls] == [3]


def test_row_and_column_major_operands_are_read_in_place() -> None:
    x = torch.empty(24, 16, dtype=torch.float16)
    assert operand(x, False, GemmKernel, any_rows=True) == (False, same)
    assert operand(x, True, GemmKernel, any_rows=True) == (True, same)
    assert operand(x.t(), False, GemmKernel, any_rows=True) == (True, flipped)
    assert operand(x.t(), True, GemmKernel, any_rows=True) == (False, flipped)


def test_other_layouts_are_copied_once() -> None:
    x = torch.empty(24, 32, dtype=torch.float16)[:, ::2]
    assert operand(x, True, GemmKernel, any_rows=True) == (True, dense_copy)


def test_rows_that_the_copy_engine_cannot_address_are_transposed_by_a_copy() -> None:
    with FakeTensorMode():
        a = torch.empty(16, 23, dtype=torch.float16, device="cuda")
        assert operand(a, True, GemmKernel, any_rows=False) == (False, flipped_copy)
        assert operand(a.t(), False, GemmKernel, any_rows=False) == (False, dense_copy)


@pytest.mark.parametrize(
    ("kernel", "sizes", "suits"),
    [
        (GemmSmallKernel, {"m": 37, "n": 131, "k": 77}, True),
        (GemmSmallKernel, {"m": 37, "n": 131, "k": 257}, False),  # nine steps
        (GemmSmallKernel, {"m": 37, "n": 4096, "k": 77}, False),  # more tiles than multiprocessors
        (GemmSmallKernel, {"m": 37, "n": 131, "k": 77, "dtype": "float32"}, False),
        (BmmSmallKernel, {"m": 128, "n": 128, "k": 128, "batch": 8}, True),
        (BmmSmallKernel, {"m": 128, "n": 128, "k": 128, "batch": 17}, False),
        (BmmSmallKernel, {"m": 128, "n": 128, "k": 136, "batch": 8}, False),
        (BmmSmallKernel, {"m": 37, "n": 53, "k": 77, "batch": 3}, True),
        (BmmSmallKernel, {"m": 37, "n": 53, "k": 257, "batch": 3}, False),
        (BmmSmallKernel, {"m": 37, "n": 53, "k": 77, "batch": 30}, False),
    ],
)
def test_a_small_product_is_one_short_round(
    kernel: type, sizes: dict, suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"dtype": "bfloat16", **sizes}
    assert not kernel.suits(torch.device("cpu"), **sizes)
    monkeypatch.setattr(kernel, "serves_device", classmethod(lambda cls, device: True))
    assert kernel.suits(torch.device("cuda"), **sizes) is suits


def test_a_small_batched_product_is_launched_small(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Recorder()
    monkeypatch.setattr(BmmSmallKernel, "serves_device", classmethod(lambda cls, device: True))
    monkeypatch.setattr(BmmSmallKernel, "config_for", classmethod(lambda cls, device, **sizes: None))
    monkeypatch.setattr(BmmSmallKernel, "compiled", classmethod(lambda cls, *args, **static: program))
    monkeypatch.setattr(BmmKernel, "compiled", never)
    for k, n in ((16, 40), (77, 53)):
        get_op("BmmFwdOp")()(torch.ones(2, 24, k).half(), torch.ones(2, k, n).half())
    assert [len(call) for call in program.bound_calls] == [3, 3]


def test_a_small_product_reads_rows_of_any_length_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Recorder()
    monkeypatch.setattr(matmul, "is_out_of_reach", lambda tensor, transposed, kernel: True)
    monkeypatch.setattr(GemmSmallKernel, "serves_device", classmethod(lambda cls, device: True))
    monkeypatch.setattr(
        GemmSmallKernel,
        "config_for",
        classmethod(lambda cls, *a, **s: GemmSmallKernel.CONFIGS.pick("cuda", "sm_90a", {})),
    )
    monkeypatch.setattr(GemmSmallKernel, "compiled", classmethod(lambda cls, *args, **static: program))
    monkeypatch.setattr(GemmKernel, "compiled", never)
    a, b = torch.ones(16, 23).half(), torch.ones(16, 40).half()
    get_op("GemmFwdOp")(trans_a=True, trans_b=False)(a, b)
    (call,) = program.bound_calls
    assert call[0] is a


@pytest.mark.parametrize("shapes", [((0, 8), (5, 8)), ((4, 8), (0, 8)), ((4, 0), (5, 0)), ((0, 0), (0, 0))])
def test_empty_products_launch_nothing(shapes: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GemmKernel, "compiled", never)
    a, b = (torch.ones(shape, dtype=torch.float16) for shape in shapes)
    d = get_op("GemmFwdOp")()(a, b)
    assert d.shape == (a.shape[0], b.shape[0])
    assert not d.any()


@pytest.mark.parametrize("sizes", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)])
def test_empty_batched_products_launch_nothing(sizes: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BmmKernel, "compiled", never)
    batch, m, n, k = sizes
    d = get_op("BmmFwdOp")()(torch.ones(batch, m, k).half(), torch.ones(batch, k, n).half())
    assert d.shape == (batch, m, n)
    assert not d.any()


def test_row_counts_share_one_program() -> None:
    GemmKernel.clear()
    op, b = get_op("GemmFwdOp")(), torch.ones(24, 40, dtype=torch.bfloat16)
    for m in (1, 7, 64, 65, 130):
        assert op(torch.ones(m, 40, dtype=torch.bfloat16), b).shape == (m, 24)
    assert GemmKernel.programs() == 1


def test_batch_and_row_counts_share_one_program() -> None:
    BmmKernel.clear()
    op = get_op("BmmFwdOp")()
    for batch, m in ((1, 3), (5, 3), (2, 70)):
        assert op(torch.ones(batch, m, 40).half(), torch.ones(batch, 40, 24).half()).shape == (batch, m, 24)
    assert BmmKernel.programs() == 1


def test_a_batch_within_the_grid_takes_one_bound_launch() -> None:
    program, x = Recorder(), torch.empty(MAX_GRID_Z, 1)
    bound_over_batch(program, x, 3)(x, 3)
    assert (len(program.calls), len(program.bound_calls)) == (0, 1)


def test_a_batch_beyond_the_grid_is_cut_and_shared_tensors_are_not() -> None:
    program = Recorder()
    x = torch.arange(2 * MAX_GRID_Z + 1)
    table = torch.empty(len(x))
    bound_over_batch(program, x, table, 3, shared=(1,))(x, table, 3)
    assert [len(call[0]) for call in program.calls] == [MAX_GRID_Z, MAX_GRID_Z, 1]
    assert torch.equal(torch.cat([call[0] for call in program.calls]), x)
    assert all(call[1] is table and call[2] == 3 for call in program.calls)


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
def test_the_schedule_of_every_row_count_compiles_and_fits() -> None:
    static = {"n": 4096, "k": 7168, "dtype": "bfloat16", "trans_a": False, "trans_b": True}
    work = [
        (arch, GemmKernel.default_config(target="cuda", arch=arch, m=m, **static))
        for arch in SHARED_MEMORY
        for m in (16, 32, 64, 128, 512, 4096)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda item: GemmKernel.lower(*item, **static), work))
    for (arch, config), artifact in zip(work, found, strict=True):
        assert artifact.spill_store_bytes + artifact.spill_load_bytes == 0, (arch, config)
        assert artifact.shared_bytes + artifact.dynamic_shared_bytes <= SHARED_MEMORY[arch], (arch, config)


def test_a_split_product_is_summed_by_its_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GemmKernel.Config(64, 64, 64, 128, 0, split_k=3)
    monkeypatch.setattr(GemmKernel, "config_for", classmethod(lambda cls, device, **sizes: config))
    SplitKSumKernel.clear()
    a, b = torch.ones(5, 500, dtype=torch.bfloat16), torch.ones(30, 500, dtype=torch.bfloat16)
    op = get_op("GemmFwdOp")()
    assert op(a, b).shape == (5, 30)
    assert SplitKSumKernel.programs() == 1
