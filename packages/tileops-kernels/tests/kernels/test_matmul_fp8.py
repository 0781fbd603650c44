"""Products of 8-bit matrices: which program a call gets, what is copied, what is launched."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.gemm_fp8 import BLOCK, FP8, GemmFp8Kernel, scale_shapes
from tileops_kernels.kernels.gemm_fp8_hopper import GemmFp8HopperConfig, GemmFp8HopperKernel
from tileops_kernels.ops import get_op

ROWS, COLUMNS, K = 5, 24, 144


def never(*args: object, **kwargs: object) -> object:
    raise AssertionError("nothing must be compiled for this call")


class Recorder:
    """Stands in for a compiled program: notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, ...]] = []

    def bound(self, *example: torch.Tensor) -> object:
        return lambda *args: self.calls.append(args)


def operands(m: int = ROWS, n: int = COLUMNS, k: int = K, per_block: bool = False) -> list[torch.Tensor]:
    """a, b and their factors."""
    matrices = [torch.ones(rows, k).to(torch.float8_e4m3fn) for rows in (m, n)]
    return [*matrices, *(torch.ones(shape) for shape in scale_shapes(m, n, k, per_block))]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The static arguments of every program that is asked for; the program itself is the last one's value."""
    asked: list[dict] = []

    def record(cls: type, device: torch.device, config: object, **static: object) -> Recorder:
        program = Recorder()
        asked.append({**static, "program": program})
        return program

    monkeypatch.setattr(GemmFp8Kernel, "compiled", classmethod(record))
    return asked


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("per_block", [False, True])
@pytest.mark.parametrize("m", [1, ROWS])
def test_a_program_knows_the_kind_of_factors_and_the_bias(
    m: int, per_block: bool, biased: bool, compiled: list[dict]
) -> None:
    bias = torch.ones(COLUMNS, dtype=torch.bfloat16) if biased else None
    d = get_op("GemmFp8FwdOp")(out_dtype="float16")(*operands(m, per_block=per_block), bias)
    assert (d.shape, d.dtype) == ((m, COLUMNS), torch.float16)
    (static,) = compiled
    assert (static["per_block"], static["biased"], static["out_dtype"]) == (per_block, biased, "float16")
    assert [len(call) for call in static["program"].calls] == [6 if biased else 5]


def test_one_factor_for_each_matrix_is_not_a_block_of_its_own(compiled: list[dict]) -> None:
    get_op("GemmFp8FwdOp")()(*operands(1, 1, 64))
    assert not compiled[0]["per_block"]


def test_operands_are_read_in_place_and_other_layouts_copied_once(compiled: list[dict]) -> None:
    a, b, *factors = operands()
    wide = torch.ones(COLUMNS, 2 * K).to(torch.float8_e4m3fn)
    get_op("GemmFp8FwdOp")()(a, b, *factors)
    get_op("GemmFp8FwdOp")()(a, wide[:, ::2], *factors)
    (in_place,), (copied,) = (static["program"].calls for static in compiled)
    assert [x.data_ptr() for x in in_place[:4]] == [x.data_ptr() for x in (a, b, *factors)]
    assert copied[0] is a
    assert copied[1].is_contiguous()
    assert copied[1].shape == b.shape


@pytest.mark.parametrize("sizes", [(0, COLUMNS, K), (ROWS, 0, K), (0, 0, 0)])
def test_an_empty_product_launches_nothing(sizes: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GemmFp8Kernel, "compiled", never)
    assert get_op("GemmFp8FwdOp")()(*operands(*sizes)).shape == sizes[:2]


@pytest.mark.parametrize("per_block", [False, True])
def test_a_sum_over_nothing_is_launched_for_its_bias(per_block: bool) -> None:
    factors = [torch.ones(shape) for shape in scale_shapes(ROWS, COLUMNS, 0, per_block)]
    a, b = (torch.empty(rows, 0).to(torch.float8_e4m3fn) for rows in (ROWS, COLUMNS))
    bias = torch.full((COLUMNS,), 3, dtype=torch.bfloat16)
    assert get_op("GemmFp8FwdOp")()(a, b, *factors, bias).unique().tolist() == [3]


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ({}, True),
        ({"per_block": True, "k": 4 * BLOCK}, True),
        ({"per_block": True, "k": 5 * BLOCK}, False),  # five factors: rows of 20 bytes
        ({"n": 4095}, False),
        ({"k": 4097}, False),
        ({"k": 0}, False),
    ],
)
def test_hopper_multiplies_what_its_copy_engine_can_fetch(
    sizes: dict, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"n": 4096, "k": 4096, "per_block": False, **sizes}
    assert not GemmFp8HopperKernel.fits(torch.device("cpu"), **sizes)
    monkeypatch.setattr(GemmFp8HopperKernel, "serves_device", classmethod(lambda cls, device: True))
    assert GemmFp8HopperKernel.fits(torch.device("cuda"), **sizes) is fits


def test_hopper_launches_its_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Recorder()
    monkeypatch.setattr(GemmFp8Kernel, "compiled", never)
    monkeypatch.setattr(GemmFp8HopperKernel, "fits", classmethod(lambda cls, *args, **sizes: True))
    monkeypatch.setattr(
        GemmFp8HopperKernel,
        "config_for",
        classmethod(lambda cls, device, **sizes: cls.default_config(target="cuda", arch="sm_90a", **sizes)),
    )
    monkeypatch.setattr(GemmFp8HopperKernel, "compiled", classmethod(lambda cls, *args, **static: program))
    get_op("GemmFp8FwdOp")()(*operands(k=160))
    assert [len(call) for call in program.calls] == [5]


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (4096, 4096, (128, 256)),
        (4096, 2112, (128, 192)),
        (128, 7168, (128, 64)),
        (8, 7168, (64, 64)),
        (128, 2112, (64, 32)),
    ],
)
@pytest.mark.parametrize("per_block", [False, True])
def test_hopper_takes_the_tile_of_the_least_time(
    m: int, n: int, tile: tuple[int, int], per_block: bool
) -> None:
    config = GemmFp8HopperKernel.default_config(
        target="cuda", arch="sm_90a", m=m, n=n, k=2048, per_block=per_block
    )
    assert (config.block_m, config.block_n) == tile


@pytest.mark.parametrize(
    ("tile", "factors"),
    [*((t, 0) for t in GemmFp8HopperKernel.TILES), *((t, 8) for t in GemmFp8HopperKernel.BLOCK_TILES)],
)
def test_a_tile_fits_shared_memory_and_registers(tile: GemmFp8HopperConfig, factors: int) -> None:
    assert (tile.block_m, tile.block_k) == (64 * tile.groups, BLOCK)
    assert tile.block_n % tile.width == tile.block_n % tile.chunk == 0
    assert (tile.block_n + tile.width) * 64 // 128 <= 192  # float32 sums and products of a thread
    results = 2 * tile.block_m * tile.chunk * 2
    buffers = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k
    assert buffers + results + factors * (tile.block_m + tile.block_n) * 4 < 227 << 10


def test_row_counts_share_one_program() -> None:
    GemmFp8Kernel.clear()
    op = get_op("GemmFp8FwdOp")()
    for m in (2, 7, 65):
        assert op(*operands(m, per_block=True)).shape == (m, COLUMNS)
    assert GemmFp8Kernel.programs() == 1


def test_factors_have_a_block_for_what_is_left_over() -> None:
    assert scale_shapes(5, 7, 129, per_block=True) == ((5, 2), (7, 2))
    assert scale_shapes(5, 7, 129, per_block=False) == ((1, 1), (1, 1))
    assert {FP8} == GemmFp8Kernel.SUPPORTED_DTYPES
