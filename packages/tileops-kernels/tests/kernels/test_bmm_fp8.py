"""Batches of 8-bit products: which program a call gets, what is turned and copied, what is launched."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.bmm_fp8 import BmmFp8HopperKernel, BmmFp8Kernel
from tileops_kernels.ops import get_op

B, M, N, K = 3, 5, 16, 32
OPS = {"BmmFp8KNFwdOp": (B, K, N), "BmmFp8NKFwdOp": (B, N, K)}
# Plans are kept for as long as the process lives: calls for Hopper have sizes of their own.
HOPPER_M = 9


def operands(op: str, m: int = M) -> list[torch.Tensor]:
    a, b = (torch.ones(shape).to(torch.float8_e4m3fn) for shape in ((B, m, K), OPS[op]))
    return [a, b, torch.tensor(2.0), torch.tensor(0.5)]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(cls: type, device: torch.device, **sizes: int) -> object:
        return cls.default_config(target="cuda", arch="sm_90a", **sizes)

    monkeypatch.setattr(BmmFp8HopperKernel, "serves_device", classmethod(lambda cls, device: True))
    monkeypatch.setattr(
        "tileops_kernels.kernels.gemm_fp8_hopper.GemmFp8HopperKernel.serves_device", lambda d: True
    )
    monkeypatch.setattr(BmmFp8HopperKernel, "config_for", classmethod(config))


@pytest.mark.parametrize("op", OPS)
def test_b_is_read_as_it_lies(op: str, log: list) -> None:
    given = operands(op)
    d = get_op(op)(out_dtype="float16")(*given)
    assert (d.shape, d.dtype) == ((B, M, N), torch.float16)
    (launched,) = log
    assert launched.static["trans_b"] is (op == "BmmFp8NKFwdOp")
    assert launched.static["out_dtype"] == "float16"
    assert [t.data_ptr() for t in launched.tensors] == [t.data_ptr() for t in (*given, d)]


@pytest.mark.parametrize("op", OPS)
def test_a_view_of_the_other_storage_is_read_in_place(op: str, log: list) -> None:
    a, b, *factors = operands(op)
    get_op(op)()(a, b.mT.contiguous().mT, *factors)
    (launched,) = log
    assert launched.static["trans_b"] is (op == "BmmFp8KNFwdOp")


@pytest.mark.usefixtures("hopper")
def test_hopper_multiplies_along_k_and_turns_what_lies_across(log: list) -> None:
    for op in OPS:
        get_op(op)()(*operands(op, HOPPER_M))
    assert [launched.kernel for launched in log] == [
        "TurnFp8Kernel",
        "BmmFp8HopperKernel",
        "BmmFp8HopperKernel",
    ]
    turned = log[0].tensors[1]
    assert turned.shape == (B, N, K)
    assert log[1].tensors[1] is turned


@pytest.mark.parametrize(
    ("n", "k", "fits"), [(16, 32, True), (20, 32, False), (16, 40, False), (16, 0, False)]
)
@pytest.mark.usefixtures("hopper")
def test_hopper_takes_rows_that_its_copy_engine_can_address(n: int, k: int, fits: bool) -> None:
    assert BmmFp8HopperKernel.fits(torch.device("cuda"), n=n, k=k) is fits


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({"batch": 8, "m": 2048, "n": 2048}, (128, 192)),
        ({"batch": 4, "m": 1024, "n": 1024}, (128, 256)),
        ({"batch": 32, "m": 128, "n": 128}, (64, 64)),
    ],
)
def test_tiles_are_chosen_for_the_whole_batch(sizes: dict, tile: tuple[int, int]) -> None:
    config = BmmFp8HopperKernel.default_config(target="cuda", arch="sm_90a", **sizes)
    assert (config.block_m, config.block_n) == tile


@pytest.mark.parametrize("shape", [(0, M, N), (B, 0, N), (B, M, 0)])
@pytest.mark.parametrize("op", OPS)
def test_an_empty_product_launches_nothing(op: str, shape: tuple[int, int, int], log: list) -> None:
    batch, m, n = shape
    b_shape = (batch, K, n) if op == "BmmFp8KNFwdOp" else (batch, n, K)
    a, b = (torch.empty(s).to(torch.float8_e4m3fn) for s in ((batch, m, K), b_shape))
    assert get_op(op)()(a, b, torch.tensor(1.0), torch.tensor(1.0)).shape == shape
    assert log == []


def test_batches_and_row_counts_share_one_program() -> None:
    BmmFp8Kernel.clear()
    op = get_op("BmmFp8NKFwdOp")()
    for batch, m in ((1, 2), (3, 7), (2, 65)):
        a, b = (torch.ones(s).to(torch.float8_e4m3fn) for s in ((batch, m, K), (batch, N, K)))
        assert op(a, b, torch.tensor(1.0), torch.tensor(1.0)).shape == (batch, m, N)
    assert BmmFp8Kernel.programs() == 1
