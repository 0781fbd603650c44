"""Attention, decode and rotary embedding: schedules, programs per size, capabilities, what is launched."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.attention import AttentionForwardKernel
from tileops_kernels.kernels.attention_hopper import AttentionHopperKernel
from tileops_kernels.kernels.decode import DecodeKernel, DecodeMergeKernel
from tileops_kernels.kernels.decode_base import padded_depth, pick_splits, rows_of
from tileops_kernels.kernels.paged_decode import PagedDecodeKernel
from tileops_kernels.kernels.rope import RopeKernel
from tileops_kernels.ops import get_op
from tileops_kernels.ops.flows.attention import window_of
from tileops_kernels.ops.flows.decode import score_scalars

GQA = "GroupedQueryAttentionFwdOp"
WINDOW = "GroupedQueryAttentionSlidingWindowFwdOp"
DECODE = "GroupedQueryAttentionDecodeWithKVCacheFwdOp"
PAGED = "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"


def qkv(seq: int, heads: int = 4, kv_heads: int = 2, head_dim: int = 32) -> tuple[torch.Tensor, ...]:
    shape = (1, seq, kv_heads, head_dim)
    return torch.ones(1, seq, heads, head_dim).half(), torch.ones(shape).half(), torch.ones(shape).half()


def never(*args: object, **kwargs: object) -> object:
    raise AssertionError("nothing must be compiled for this call")


@pytest.mark.parametrize(
    ("causal", "left", "right", "expected"),
    [
        (True, -1, -1, (None, 0)),
        (False, -1, -1, (None, None)),
        (True, 5, 7, (5, 0)),
        (False, 5, 7, (5, 7)),
        (False, 0, 0, (0, 0)),
        (False, 2**40, 2**40, (100, 100)),
    ],
)
def test_windows_become_bounds_that_fit_a_kernel_scalar(
    causal: bool, left: int, right: int, expected: tuple
) -> None:
    params = {"is_causal": causal, "window_size_left": left, "window_size_right": right}
    assert window_of(params, seq=100) == expected


def test_window_sizes_and_sequence_lengths_share_one_program() -> None:
    AttentionForwardKernel.clear()
    for window, seq in ((1, 9), (5, 9), (64, 70), (1000, 9)):
        assert get_op(WINDOW)(window_size_left=window)(*qkv(seq))[0].shape == (seq, 4, 32)
    assert AttentionForwardKernel.programs() == 1


def test_hopper_takes_its_own_schedule_for_the_heads_it_is_written_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = []
    monkeypatch.setattr(AttentionHopperKernel, "serves_device", classmethod(lambda cls, device: True))
    for kernel in (AttentionForwardKernel, AttentionHopperKernel):

        def on_hopper(cls: type, device: torch.device, **sizes: object) -> object:
            return cls.default_config(target="cuda", arch="sm_90a", **sizes)

        def compiled(cls: type, device: torch.device, config: object, **static: object) -> SimpleNamespace:
            assert isinstance(config, cls.Config)
            launched.append((cls.__name__, static["head_dim"]))
            return SimpleNamespace(bound=lambda *example: lambda *args: None)

        monkeypatch.setattr(kernel, "config_for", classmethod(on_hopper))
        monkeypatch.setattr(kernel, "compiled", classmethod(compiled))
    for head_dim in (64, 80, 128):
        get_op(GQA)()(*qkv(9, head_dim=head_dim))
    get_op(GQA)()(*(t.float() for t in qkv(9, head_dim=128)))
    hopper, general = "AttentionHopperKernel", "AttentionForwardKernel"
    assert launched == [(hopper, 64), (general, 80), (hopper, 128), (general, 128)]
    assert not AttentionHopperKernel.serves("cpu", None)


@pytest.mark.parametrize(
    ("sizes", "by_head"),
    [
        ({"seq": 512}, True),
        ({"seq": 2048}, True),
        ({"seq": 8192}, False),  # more row tiles to compute than to fetch
        ({"seq": 2048, "heads": 32}, False),  # four query heads share what is fetched
        ({"seq": 2048, "heads": 32, "right_bounded": False}, True),
        ({}, False),
        ({"seq": 4096, "right_bounded": False}, True),
        ({"seq": 4097, "right_bounded": False}, False),
        ({"seq": 512, "left_bounded": True}, False),
        ({"seq": 512, "head_dim": 64}, False),
    ],
)
def test_short_sequences_without_a_window_are_walked_head_by_head(sizes: dict, by_head: bool) -> None:
    mha = {"heads": 8, "kv_heads": 8, "head_dim": 128}
    sizes = {**mha, "left_bounded": False, "right_bounded": True, **sizes}
    config = AttentionHopperKernel.default_config(target="cuda", arch="sm_90a", **sizes)
    assert config.by_head is by_head
    # A head's row tiles lie side by side in the grid.
    assert all(limit <= 128 * config.blocks for limit in AttentionHopperKernel.BY_HEAD_UP_TO.values())


@pytest.mark.parametrize("op", [GQA, DECODE, PAGED])
def test_a_head_too_wide_for_the_registers_is_refused(op: str) -> None:
    wide = AttentionForwardKernel.MAX_HEAD_DIM + 1
    calls = {
        GQA: lambda: get_op(GQA)()(*qkv(3, head_dim=wide)),
        DECODE: lambda: get_op(DECODE)()(torch.ones(1, 4, wide).half(), *(qkv(3, head_dim=wide)[1:])),
        PAGED: lambda: get_op(PAGED)(page_size=4)(
            torch.ones(1, 4, wide).half(),
            *(t[0] for t in qkv(8, head_dim=wide)[1:]),
            torch.tensor([3], dtype=torch.int32),
            torch.tensor([[1, 0]], dtype=torch.int32),
        ),
    }
    with pytest.raises(NotImplementedOpError, match="257, expected at most 256"):
        calls[op]()


def test_an_empty_sequence_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionForwardKernel, "compiled", never)
    assert get_op(GQA)()(*qkv(0)).shape == (1, 0, 4, 32)


def test_an_empty_batch_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeKernel, "compiled", never)
    cache = torch.ones(0, 7, 2, 32).half()
    assert get_op(DECODE)()(torch.ones(0, 4, 32).half(), cache, cache).shape == (0, 4, 32)


@pytest.mark.parametrize("head_dim", [64, 65, 128, 256])
def test_unaligned_heads_take_smaller_tiles_on_a_gpu(head_dim: int) -> None:
    static = {"head_dim": head_dim, "dtype": "bfloat16"}
    config = AttentionForwardKernel.default_config(target="cuda", arch="sm_90a", **static)
    assert (config.block_m == 128) == (head_dim % 8 == 0)


def test_a_program_without_the_copy_engine_has_one_stage() -> None:
    def stages(kernel: type, **static: int) -> int:
        return kernel.default_config(target="cuda", arch="sm_90a", dtype="float16", **static).num_stages

    assert stages(DecodeKernel, head_dim=256) > 1
    assert stages(DecodeKernel, head_dim=250) == 1
    assert stages(PagedDecodeKernel, head_dim=128, page_size=64) > 1
    assert stages(PagedDecodeKernel, head_dim=128, page_size=16) == 1


@pytest.mark.parametrize("blocks", [1, 4, 100, 256, 10_000])
@pytest.mark.parametrize("steps", [1, 2, 31, 4096])
def test_splits_fill_the_gpu_and_leave_every_part_some_work(blocks: int, steps: int) -> None:
    splits = pick_splits(blocks, steps, units=132, per_unit=2)
    assert splits == 1 or 2 * splits <= steps
    assert splits == 1 or blocks * (splits - 1) < 2 * 264
    assert pick_splits(blocks, steps, units=1, per_unit=1) == 1


@pytest.mark.parametrize("per_unit", [1, 2])
@pytest.mark.parametrize(("blocks", "whole"), [(64, False), (116, True), (132, True)])
def test_a_block_on_nearly_every_multiprocessor_is_not_split(blocks: int, whole: bool, per_unit: int) -> None:
    assert (pick_splits(blocks, 64, units=132, per_unit=per_unit) == 1) is whole


@pytest.mark.parametrize("group", [1, 3, 16, 17, 64, 200])
def test_a_tile_holds_the_heads_of_a_group_or_a_power_of_two_of_them(group: int) -> None:
    rows = rows_of(group)
    assert rows in (16, 32, 64)
    assert rows >= min(group, 64)


@pytest.mark.parametrize("head_dim", range(1, 257, 17))
def test_a_padded_row_is_the_least_that_four_warps_share(head_dim: int) -> None:
    assert 0 <= padded_depth(head_dim) - head_dim < 32
    assert padded_depth(head_dim) % 32 == 0


def test_score_scalars_are_in_base_two() -> None:
    scale, cap = score_scalars({"sm_scale": None, "softcap": None}, 64)
    assert (scale, cap) == pytest.approx((math.log2(math.e) / 8, 0.0))
    scale, cap = score_scalars({"sm_scale": 0.5, "softcap": 30.0}, 64)
    assert (scale, cap) == pytest.approx((0.5 / 30, 30 * math.log2(math.e)))


def test_cache_lengths_batches_and_scales_share_a_program_for_whole_and_one_for_split_caches() -> None:
    DecodeKernel.clear()
    for programs, batch, tokens, scale in (
        (1, 1, 5, None),
        (1, 3, 5, 0.25),
        (2, 2, 700, -1.0),
        (2, 1, 900, None),
    ):
        cache = torch.ones(batch, tokens, 2, 32).half()
        out = get_op(DECODE)(sm_scale=scale)(torch.ones(batch, 4, 32).half(), cache, cache)
        assert out.shape == (batch, 4, 32)
        assert DecodeKernel.programs() == programs


def test_a_cache_that_is_not_split_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeMergeKernel, "compiled", never)
    cache = torch.ones(2, 5, 2, 32).half()
    out = get_op(DECODE)()(torch.ones(2, 4, 32).half(), cache, cache)
    assert (out.shape, out.dtype) == ((2, 4, 32), torch.float16)


def test_a_long_cache_is_split_and_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def compiled(cls: type, device: torch.device, config: object = None, **static: object) -> SimpleNamespace:
        def bound(*example: object) -> object:
            shapes.append((cls.__name__, [tuple(a.shape) for a in example if isinstance(a, torch.Tensor)]))
            return lambda *args: None

        return SimpleNamespace(bound=bound)

    for kernel in (DecodeKernel, DecodeMergeKernel):
        monkeypatch.setattr(kernel, "compiled", classmethod(compiled))
    cache = torch.ones(1, 4096, 1, 32, dtype=torch.bfloat16)
    get_op(DECODE)(softcap=5.0)(torch.ones(1, 4, 32, dtype=torch.bfloat16), cache, cache)
    (first, launched), (second, merged) = shapes
    assert (first, second) == ("DecodeKernel", "DecodeMergeKernel")
    assert launched[3:] == merged[:2]
    assert merged[0][1] > 1


def test_positions_and_lengths_share_one_rotary_program() -> None:
    RopeKernel.clear()
    for shape in ((1, 5, 3, 32), (2, 9, 3, 32), (1, 130, 3, 32)):
        assert get_op("RopeNeoxFwdOp")(layout="2d")(torch.ones(shape)).shape == shape
    assert RopeKernel.programs() == 1


def test_one_rope_program_serves_every_rule_and_every_number_in_it():
    RopeKernel.clear()
    x, divisors = torch.ones(5, 32), torch.ones(16)
    for scale in (2.0, 4.0):
        get_op("RopeNeoxFwdOp")(base=100.0 * scale)(x)
        get_op("RopeLlama31FwdOp")(scale_factor=scale)(x)
        get_op("RopeYarnFwdOp")(scale=scale, base=500.0)(x)
        get_op("RopeLongRopeFwdOp")(max_position_embeddings=int(4096 * scale))(x)
    assert RopeKernel.programs() == 1
    get_op("RopeLongRopeFwdOp")()(x, divisors)
    assert RopeKernel.programs() == 2


@pytest.mark.parametrize(("op", "copied"), [("RopeNonNeoxFwdOp", True), ("RopeNeoxFwdOp", False)])
def test_a_pair_across_the_bounds_of_two_is_copied(monkeypatch: pytest.MonkeyPatch, op, copied) -> None:
    launched = []

    class Program:
        def bound(self, *example):
            return lambda *args: launched.append(args)

    monkeypatch.setattr(RopeKernel, "compiled", classmethod(lambda cls, device, **static: Program()))
    x = torch.ones(65, dtype=torch.float16)[1:].view(2, 32)
    get_op(op)()(x)
    ((source, *_),) = launched
    assert (source is not x) == copied
    assert source.data_ptr() % 4 == (0 if copied else 2)


def test_an_empty_sequence_is_not_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RopeKernel, "compiled", never)
    assert get_op("RopeNeoxFwdOp")()(torch.ones(0, 32)).shape == (0, 32)
