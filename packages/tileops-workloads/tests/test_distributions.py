"""Distributions: golden bytes, statistics, exactness, specials."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from tileops_workloads import DISTRIBUTIONS, UnknownNameError, UnsupportedDtypeError
from tileops_workloads.bits import Stream
from tileops_workloads.distributions import generate, least_shift

FLOATS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
OTHERS = (torch.bool, torch.complex64, torch.complex128)

GOLDEN = {
    "torch.float64 normal": "0f70a466161d77fd",
    "torch.float64 exact": "4a28f8ecaab27ec4",
    "torch.float64 sparse-exact": "c13ebd8c0dbab93b",
    "torch.float64 adversarial": "9d1bca48d760a155",
    "torch.float64 structured": "69ef28b8fcfdc76f",
    "torch.float64 shifted": "d5910731f2570242",
    "torch.float32 normal": "6b66e43ecdf0cb72",
    "torch.float32 exact": "9c2e30b492600d01",
    "torch.float32 sparse-exact": "a9e49f866d17f217",
    "torch.float32 adversarial": "7760f63535b3a141",
    "torch.float32 structured": "3425cea505aedb73",
    "torch.float32 shifted": "767ee0671831ed2d",
    "torch.float16 normal": "04b3cf3477ad46c7",
    "torch.float16 exact": "d937d8dad65120fd",
    "torch.float16 sparse-exact": "40b8ec72cede7080",
    "torch.float16 adversarial": "159a9cb6360eeca1",
    "torch.float16 structured": "f314c92341a98a74",
    "torch.float16 shifted": "fe21c3086fcdafe9",
    "torch.bfloat16 normal": "2d1268641f8fb9f5",
    "torch.bfloat16 exact": "6300a8cf9d3b20fe",
    "torch.bfloat16 sparse-exact": "669e42c7f8174638",
    "torch.bfloat16 adversarial": "ff749f470af2934d",
    "torch.bfloat16 structured": "63b364acf90803b1",
    "torch.bfloat16 shifted": "c27f00177d31e49e",
    "torch.float8_e4m3fn normal": "6f540eff17e81404",
    "torch.float8_e4m3fn exact": "d149d41dbaa12487",
    "torch.float8_e4m3fn sparse-exact": "ae9e7e1d93b0a95a",
    "torch.float8_e4m3fn adversarial": "9e1ba5e23feb11fe",
    "torch.float8_e4m3fn structured": "f6a8c852a8700775",
    "torch.float8_e4m3fn shifted": "dee13a22ef5c311f",
    "torch.float8_e5m2 normal": "d31466e6475581f3",
    "torch.float8_e5m2 exact": "8d2c49e18ac9639a",
    "torch.float8_e5m2 sparse-exact": "3ed29f9bec0cfa82",
    "torch.float8_e5m2 adversarial": "953025c29ac4f2c3",
    "torch.float8_e5m2 structured": "4bb26d9af4907696",
    "torch.float8_e5m2 shifted": "d468210c4bbadff9",
    "torch.int8 normal": "935a2418b30bf2b8",
    "torch.int8 exact": "82ceefe078236886",
    "torch.int8 sparse-exact": "47bd8c4c1683980a",
    "torch.int8 adversarial": "0ae10c007157de47",
    "torch.int8 structured": "5bfe0ebead44e387",
    "torch.int8 shifted": "935a2418b30bf2b8",
    "torch.int16 normal": "8f4021d7d13a07d4",
    "torch.int16 exact": "e2bd288a58c7e1d6",
    "torch.int16 sparse-exact": "daa2029f040fc72b",
    "torch.int16 adversarial": "b33d267f9a51e1bf",
    "torch.int16 structured": "25ece4a9a0694caf",
    "torch.int16 shifted": "8f4021d7d13a07d4",
    "torch.int32 normal": "c17dab60e9e61008",
    "torch.int32 exact": "2b2079b0da3628c3",
    "torch.int32 sparse-exact": "430da6bfba6c2fb7",
    "torch.int32 adversarial": "95b83de233e65adb",
    "torch.int32 structured": "bb5468252079655c",
    "torch.int32 shifted": "c17dab60e9e61008",
    "torch.int64 normal": "93558cafe6e42871",
    "torch.int64 exact": "d852d842bda7fbef",
    "torch.int64 sparse-exact": "faafccfb8c7a62a1",
    "torch.int64 adversarial": "90a581cad9c70867",
    "torch.int64 structured": "f6a9ca93a3dd30fa",
    "torch.int64 shifted": "93558cafe6e42871",
    "torch.uint8 normal": "99c17e10fb9bc0ae",
    "torch.uint8 exact": "e87c83d653010efd",
    "torch.uint8 sparse-exact": "4ae67245aa9209c6",
    "torch.uint8 adversarial": "295e10e030e81302",
    "torch.uint8 structured": "5bfe0ebead44e387",
    "torch.uint8 shifted": "99c17e10fb9bc0ae",
    "torch.uint16 normal": "8b3cb6b2fda689b6",
    "torch.uint16 exact": "7e2f28c431e23172",
    "torch.uint16 sparse-exact": "d2309da608b9c70a",
    "torch.uint16 adversarial": "960083c442b81ccb",
    "torch.uint16 structured": "25ece4a9a0694caf",
    "torch.uint16 shifted": "8b3cb6b2fda689b6",
    "torch.uint32 normal": "0582aed24df4abf0",
    "torch.uint32 exact": "41faf16d64adca60",
    "torch.uint32 sparse-exact": "a0cb155dab1dd775",
    "torch.uint32 adversarial": "68f2f969fe7d3f73",
    "torch.uint32 structured": "bb5468252079655c",
    "torch.uint32 shifted": "0582aed24df4abf0",
    "torch.uint64 normal": "e0bb009b68d3af87",
    "torch.uint64 exact": "867c5d9ecdc8ae8a",
    "torch.uint64 sparse-exact": "d851da95202c4e1b",
    "torch.uint64 adversarial": "9e35e18e09ef5223",
    "torch.uint64 structured": "f6a9ca93a3dd30fa",
    "torch.uint64 shifted": "e0bb009b68d3af87",
    "torch.bool normal": "2bb13e91913de667",
    "torch.bool exact": "2bb13e91913de667",
    "torch.bool sparse-exact": "2bb13e91913de667",
    "torch.bool adversarial": "2bb13e91913de667",
    "torch.bool structured": "2bb13e91913de667",
    "torch.bool shifted": "2bb13e91913de667",
    "torch.complex64 normal": "bcbf0a859a222b11",
    "torch.complex64 exact": "13ba41705c91c345",
    "torch.complex64 sparse-exact": "75453681e8d8eb45",
    "torch.complex64 adversarial": "01bcf96cd9cbaa75",
    "torch.complex64 structured": "71115691470b956f",
    "torch.complex64 shifted": "5d520f6fde65f0e2",
    "torch.complex128 normal": "a8c77b380e87c7fd",
    "torch.complex128 exact": "a161b6261ebaf74c",
    "torch.complex128 sparse-exact": "f55b684dbf127897",
    "torch.complex128 adversarial": "21435ccd691532f2",
    "torch.complex128 structured": "ed7d6e51c2e46e63",
    "torch.complex128 shifted": "e3bd822957f818aa",
}


# Where there is a GPU, its bytes are held to the same goldens.
DEVICES = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))


def draw(dtype, distribution="normal", shape=(33, 65), name="test", device="cpu"):
    return generate(Stream.named(name), shape, dtype, distribution, device)


def digest(tensor):
    return hashlib.sha256(bytes(tensor.cpu().reshape(-1).view(torch.uint8).tolist())).hexdigest()[:16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + OTHERS, ids=str)
def test_bytes_are_golden(dtype, distribution, device):
    assert digest(draw(dtype, distribution, device=device)) == GOLDEN[f"{dtype} {distribution}"]


def test_global_random_state_is_neither_read_nor_written():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = draw(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(draw(torch.float32), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_normal_is_a_bell_of_zero_mean_and_unit_variance(dtype):
    x = draw(dtype, shape=(400, 500)).double()
    assert abs(x.mean().item()) < 0.01
    assert abs(x.std().item() - 1) < 0.01
    assert abs((x**3).mean().item()) < 0.05
    # The fourth moment of a sum of four uniforms is 2.7; a Gaussian has 3, one uniform 1.8.
    assert abs((x**4).mean().item() - 2.7) < 0.05
    assert x.abs().max() < 3.5


def test_normal_fills_the_significand_of_float32():
    """Values that survived a rounding to tf32 could not show that a kernel used it."""
    x = draw(torch.float32, shape=(10_000,))
    low_bits = x.view(torch.int32) & ((1 << 13) - 1)
    assert (low_bits != 0).float().mean() > 0.99


@pytest.mark.parametrize("distribution", ["exact", "sparse-exact"])
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_exact_values_are_the_same_in_every_float_dtype(dtype, distribution):
    assert torch.equal(draw(dtype, distribution).double(), draw(torch.float64, distribution))


@pytest.mark.parametrize("distribution", ["exact", "sparse-exact"])
def test_exact_products_sum_without_rounding_in_any_order(distribution):
    a, b = (draw(torch.float32, distribution, (8, 4096), name) for name in ("a", "b"))
    forward = torch.cumsum(a * b, dim=-1)[:, -1]
    backward = torch.cumsum((a * b).flip(-1), dim=-1)[:, -1]
    assert torch.equal(forward, backward)
    assert torch.equal(forward.double(), (a.double() * b.double()).sum(dim=-1))


def test_sparse_exact_is_mostly_plain_zeros():
    x = draw(torch.float32, "sparse-exact", (100, 1000))
    assert abs((x != 0).float().mean().item() - 1 / 16) < 0.005
    assert not torch.signbit(x[x == 0]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_adversarial_holds_every_special_value(dtype):
    x = draw(dtype, "adversarial", (60, 64))
    info = torch.finfo(dtype)
    wide = x.double()
    assert wide.isnan().any()
    assert (wide == math.inf).any()
    assert (wide == -math.inf).any()
    assert (wide == info.max).any()
    assert ((wide.abs() > 0) & (wide.abs() < info.smallest_normal)).any()
    assert (torch.signbit(wide) & (wide == 0)).any()


@pytest.mark.parametrize("shape", [(60, 64), (120, 4096)])
def test_adversarial_leaves_some_rows_finite(shape):
    x = draw(torch.float32, "adversarial", shape)
    finite = x.isfinite().all(dim=-1)
    assert finite.any()
    assert not finite.all()


def test_adversarial_of_a_dtype_without_infinity_is_largest_finite_or_nan():
    x = draw(torch.float8_e4m3fn, "adversarial", (60, 64)).float()
    assert x.abs().nan_to_num().max() == 448


def test_structured_rows_take_turns():
    rows = draw(torch.float32, "structured", (8, 50))
    assert (rows[0].diff() > 0).all()
    assert (rows[1] == rows[1, 0]).all()
    assert 1 < rows[2].unique().numel() < 6
    assert (rows[3].diff() < 0).all()
    assert rows[1, 0] != rows[5, 0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shifted_rows_have_means_far_larger_than_their_spread(dtype):
    x = draw(dtype, "shifted", (16, 400)).double()
    assert (x.mean(1).abs() >= 0.9 * least_shift(dtype)).all()
    assert ((x.std(1) > 0.8) & (x.std(1) < 1.3)).all()
    assert x[:8].mean(1).unique().numel() == 8


def test_the_elements_of_a_single_shifted_row_share_a_mean():
    assert draw(torch.float32, "shifted", (1, 400)).std() < 1.2


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_adversarial_integers_reach_both_ends(dtype):
    x = draw(dtype, "adversarial", (100, 50)).to(torch.float64)
    info = torch.iinfo(dtype)
    assert x.min() == float(info.min)
    assert x.max() >= float(min(info.max, torch.iinfo(torch.int64).max))


def test_bools_are_fair():
    assert abs(draw(torch.bool, shape=(200, 200)).float().mean().item() - 0.5) < 0.02


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_degenerate_shapes(shape):
    for distribution in DISTRIBUTIONS:
        assert draw(torch.float16, distribution, shape).shape == shape


def test_unknown_distribution_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'normal'"):
        draw(torch.float32, "norml")


def test_a_dtype_without_values_of_its_own_is_refused():
    with pytest.raises(UnsupportedDtypeError, match="qint8"):
        draw(torch.qint8)
