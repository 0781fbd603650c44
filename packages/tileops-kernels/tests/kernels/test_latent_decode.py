"""Decoding over latents: schedules, programs per size, capabilities, what is launched."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tileops_kernels.errors import ConfigError, NotImplementedOpError
from tileops_kernels.kernels.decode import DecodeMergeKernel
from tileops_kernels.kernels.latent_decode import MAX_KEY, MAX_LATENT, LatentDecodeKernel
from tileops_kernels.kernels.latent_decode_hopper import LatentDecodeHopperConfig, LatentDecodeHopperKernel
from tileops_kernels.ops import get_op

OP = "MultiHeadLatentAttentionDecodeWithKVCacheFwdOp"


def call(batch=1, heads=4, kv_heads=1, head_dim=32, pe_dim=16, tokens=9, dtype=torch.float16):
    shapes = (
        (batch, heads, head_dim),
        (batch, heads, pe_dim),
        (batch, tokens, kv_heads, head_dim),
        (batch, tokens, kv_heads, pe_dim),
    )
    return get_op(OP)(pe_dim=pe_dim)(*(torch.ones(shape).to(dtype) for shape in shapes))


def never(*args: object, **kwargs: object) -> object:
    raise AssertionError("nothing must be compiled for this call")


def test_batches_and_cache_lengths_share_a_program_for_whole_and_one_for_split_caches() -> None:
    LatentDecodeKernel.clear()
    for programs, batch, tokens in ((1, 1, 5), (1, 3, 7), (2, 2, 700), (2, 1, 900)):
        assert call(batch=batch, tokens=tokens).shape == (batch, 4, 32)
        assert LatentDecodeKernel.programs() == programs


def test_a_whole_cache_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeMergeKernel, "compiled", never)
    assert call(dtype=torch.bfloat16).dtype == torch.bfloat16


def test_latents_may_have_no_positions() -> None:
    assert call(pe_dim=0).shape == (1, 4, 32)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"head_dim": MAX_LATENT + 1, "pe_dim": 0}, "513, expected at most 512"),
        ({"head_dim": MAX_LATENT, "pe_dim": MAX_KEY - MAX_LATENT + 1}, "577, expected at most 576"),
    ],
)
def test_keys_too_wide_for_a_multiprocessor_are_refused(sizes: dict, message: str) -> None:
    with pytest.raises(NotImplementedOpError, match=message):
        call(**sizes)


def test_an_empty_batch_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LatentDecodeKernel, "compiled", never)
    assert call(batch=0).shape == (0, 4, 32)


def test_hopper_takes_its_own_schedule_where_heads_fill_two_warp_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = []
    monkeypatch.setattr(LatentDecodeHopperKernel, "serves_device", classmethod(lambda cls, device: True))
    for kernel in (LatentDecodeKernel, LatentDecodeHopperKernel):

        def on_hopper(cls: type, device: torch.device, **sizes: object) -> object:
            return cls.default_config(target="cuda", arch="sm_90a", **sizes)

        def compiled(cls: type, device: torch.device, config: object, **static: object) -> SimpleNamespace:
            assert isinstance(config, cls.Config)
            launched.append((cls.__name__, static["heads"]))
            return SimpleNamespace(bound=lambda *example: lambda *args: None)

        monkeypatch.setattr(kernel, "config_for", classmethod(on_hopper))
        monkeypatch.setattr(kernel, "compiled", classmethod(compiled))
    deepseek = {"head_dim": 128, "pe_dim": 64}
    call(heads=128, **deepseek)
    call(heads=64, **deepseek)
    call(heads=128, head_dim=512, pe_dim=64)
    call(heads=128, kv_heads=2, **deepseek)
    hopper, general = "LatentDecodeHopperKernel", "LatentDecodeKernel"
    assert launched == [(hopper, 128), (general, 64), (general, 128), (general, 128)]
    assert not LatentDecodeHopperKernel.serves("cpu", None)


def test_a_ring_too_short_for_its_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_stages is 2, expected at least 3"):
        LatentDecodeHopperConfig(128, 2)


@pytest.mark.parametrize(("group", "rows"), [(6, 16), (128, 64)])
def test_a_block_has_rows_for_a_group_or_a_power_of_two_of_them(group: int, rows: int) -> None:
    assert LatentDecodeKernel.tile_rows(group) == rows
    assert LatentDecodeHopperKernel.tile_rows(group) == 128


@pytest.mark.parametrize(("pe_dim", "stages"), [(64, 2), (10, 1)])
def test_positions_that_the_copy_engine_cannot_fetch_have_one_stage(pe_dim: int, stages: int) -> None:
    sizes = {"head_dim": 128, "pe_dim": pe_dim, "dtype": "bfloat16"}
    assert LatentDecodeKernel.default_config(target="cuda", arch="sm_90a", **sizes).num_stages == stages
