"""Attention of one query per request over a cache of latents, which are keys and values at once.

A key is a latent and a part that carries the position; its value is the latent. A tile of latents in shared
memory serves both products, so the cache is read once for scores and values, and once for all the query heads
of a tile. Long caches are split as in `decode.py`.

Source: arXiv:2405.04434.
"""

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable
from tileops_kernels.kernels.decode_base import (
    DecodeConfig,
    SplitDecodeKernel,
    begin_part,
    first_rows,
    fold_scores,
    group_tiles,
    padded_depth,
    write_part,
)
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = ["MAX_KEY", "MAX_LATENT", "LatentDecodeKernel"]

_ACC = "float32"

MAX_LATENT = 512
"""Elements of the largest latent: 64 rows of a wider accumulator do not fit the registers of 256 threads."""

MAX_KEY = 576
"""Elements of the largest key, which is a latent and what carries the position: tiles fit shared memory."""


class LatentDecodeKernel(SplitDecodeKernel):
    """`SplitDecodeKernel` whose scores are `q k + q_pe k_pe` and whose values are `k`.

    The cache is `k[B, N, H_kv, D]` and `k_pe[B, N, H_kv, D_pe]`; batch and tokens are symbolic.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    MAX_HEAD_DIM = MAX_LATENT
    CONFIGS = ConfigTable(
        # Shared memory holds keys, registers a result as wide as a latent, for which keys of 3/2 stand.
        size=lambda s: max(s["head_dim"] + s["pe_dim"], s["head_dim"] * 3 // 2),
        devices={
            "cpu": ((None, DecodeConfig(64, 128, 0)),),
            # One stage: two do not lower for a loop of unknown length without the bulk copy engine.
            "sm_80": (
                (192, DecodeConfig(64, 128, 1)),
                (384, DecodeConfig(32, 128, 1)),
                (None, DecodeConfig(64, 256, 1)),
            ),
            "sm_90a": (
                (192, DecodeConfig(64, 128, 2)),
                (384, DecodeConfig(64, 256, 2)),
                (None, DecodeConfig(64, 256, 1)),
            ),
        },
    )

    @classmethod
    def bulk_copies(cls, config, sizes) -> bool:
        return super().bulk_copies(config, sizes) and sizes["pe_dim"] % 8 == 0

    @staticmethod
    def program(*, heads, kv_heads, head_dim, pe_dim, dtype, whole, config):
        batch = T.dynamic("batch")
        tokens = T.dynamic("tokens")
        splits = T.dynamic("splits")
        bn = config.block_n
        group, rows, tiles = group_tiles(heads, kv_heads)
        depth, pe_depth = padded_depth(head_dim), padded_depth(pe_dim)

        @T.prim_func
        def latent_decode(
            q: T.Tensor((batch, heads, head_dim), dtype),
            q_pe: T.Tensor((batch, heads, pe_dim), dtype),
            k: T.Tensor((batch, tokens, kv_heads, head_dim), dtype),
            k_pe: T.Tensor((batch, tokens, kv_heads, pe_dim), dtype),
            part: T.Tensor((batch, splits, heads, head_dim), dtype if whole else _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            scale: T.float32,
        ):
            with T.Kernel(splits, kv_heads * tiles, batch, threads=config.threads) as (bx, by, bz):
                q_pe_shared = T.alloc_shared((rows, pe_depth), dtype)
                k_shared = T.alloc_shared((bn, depth), dtype)
                k_pe_shared = T.alloc_shared((bn, pe_depth), dtype)

                # As in `decode.py`: several blocks on a multiprocessor, rows past the group never stored, as
                # many tiles in every split. A wide result takes the registers of the warps that load.
                if depth <= 256:
                    T.disable_warp_group_reg_alloc()
                kv_head, first_row, head0 = first_rows(by, group, rows, tiles)
                steps = T.ceildiv(T.ceildiv(tokens, bn), splits)
                first = bx * steps * bn

                T.copy(q_pe[bz, head0 : head0 + rows, 0:pe_depth], q_pe_shared)
                folded = begin_part(q, bz, head0, rows, depth, bn)
                q_shared, s_frag = folded[0], folded[1]
                for step in T.Pipelined(steps, num_stages=config.num_stages):
                    token0 = first + step * bn
                    T.copy(k[bz, token0 : token0 + bn, kv_head, 0:depth], k_shared)
                    T.copy(k_pe[bz, token0 : token0 + bn, kv_head, 0:pe_depth], k_pe_shared)
                    T.clear(s_frag)
                    tile_product(q_shared, k_shared, s_frag, False, True, T.GemmWarpPolicy.FullCol, False)
                    tile_product(
                        q_pe_shared, k_pe_shared, s_frag, False, True, T.GemmWarpPolicy.FullCol, False
                    )
                    fold_scores(folded, k_shared, token0, tokens, (False, scale, 0.0, False))
                write_part(folded, part, lse, bz, bx, head0, group - first_row, head_dim, whole)

        return latent_decode

    @classmethod
    def samples(cls):
        deepseek = {"heads": 128, "kv_heads": 1, "head_dim": 128, "pe_dim": 64, "dtype": "bfloat16"}
        deepseek["whole"] = False
        return (
            deepseek,
            {**deepseek, "whole": True, "dtype": "float16"},
            {**deepseek, "head_dim": 512},
            {**deepseek, "head_dim": 512, "heads": 16, "whole": True},
            {**deepseek, "head_dim": 256, "pe_dim": 32},
            {**deepseek, "heads": 6, "kv_heads": 2, "head_dim": 40, "pe_dim": 10},
        )
