"""Attention of one query per request over a dense key-value cache.

Decoding reads the whole cache once and computes little, so the programs are built to keep the memory busy:
the query heads that share a key head are the rows of one tile (the cache is read once for all of them), and
a long cache is split over blocks, each of which attends to its own range of tokens. A second kernel merges
the parts in a fixed order, so a result has the same bits every time.

Source: arXiv:2205.14135, arXiv:2311.01282.
"""

import dataclasses
from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.decode_base import (
    DecodeConfig,
    SplitDecodeKernel,
    attend_tile,
    begin_part,
    first_rows,
    group_tiles,
    padded_depth,
    write_part,
)

__all__ = ["DecodeKernel", "DecodeMergeKernel"]

_ACC = "float32"


class DecodeKernel(SplitDecodeKernel):
    """`SplitDecodeKernel` over a cache `[B, N, H_kv, D]`; batch and tokens are symbolic."""

    # On Hopper one block of long copies keeps a multiprocessor busier than two blocks of short ones.
    BLOCKS_PER_UNIT = 1
    CONFIGS = dataclasses.replace(
        SplitDecodeKernel.CONFIGS,
        devices={
            **SplitDecodeKernel.CONFIGS.devices,
            "sm_90a": ((256, DecodeConfig(128, 128, 1)), *SplitDecodeKernel.CONFIGS.devices["sm_90a"][1:]),
        },
    )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, capped, whole, config):
        batch = T.dynamic("batch")
        tokens = T.dynamic("tokens")
        splits = T.dynamic("splits")
        bn = config.block_n
        group, rows, tiles = group_tiles(heads, kv_heads)
        depth = padded_depth(head_dim)

        @T.prim_func
        def decode(
            q: T.Tensor((batch, heads, head_dim), dtype),
            k: T.Tensor((batch, tokens, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, tokens, kv_heads, head_dim), dtype),
            part: T.Tensor((batch, splits, heads, head_dim), dtype if whole else _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            scale: T.float32,
            cap: T.float32,
        ):
            with T.Kernel(splits, kv_heads * tiles, batch, threads=config.threads) as (bx, by, bz):
                k_shared = T.alloc_shared((bn, depth), dtype)
                v_shared = T.alloc_shared((bn, depth), dtype)

                # Several blocks on a multiprocessor: no warp group takes the registers of another.
                T.disable_warp_group_reg_alloc()
                kv_head, first_row, head0 = first_rows(by, group, rows, tiles)
                # Every split walks the same number of tiles; those past the end of the cache are masked.
                steps = T.ceildiv(T.ceildiv(tokens, bn), splits)
                first = bx * steps * bn

                folded = begin_part(q, bz, head0, rows, depth, bn)
                scoring = (capped, scale, cap, config.fma)
                for step in T.Pipelined(steps, num_stages=config.num_stages):
                    token0 = first + step * bn
                    T.copy(k[bz, token0 : token0 + bn, kv_head, 0:depth], k_shared)
                    T.copy(v[bz, token0 : token0 + bn, kv_head, 0:depth], v_shared)
                    attend_tile(folded, k_shared, v_shared, token0, tokens, scoring)
                write_part(folded, part, lse, bz, bx, head0, group - first_row, head_dim, whole)

        return decode

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "capped": False}
        llama["whole"] = False
        return (
            llama,
            {**llama, "whole": True},
            {**llama, "dtype": "float16", "capped": True},
            {**llama, "heads": 6, "kv_heads": 2, "head_dim": 64},
            {**llama, "kv_heads": 1, "head_dim": 256},
            {**llama, "kv_heads": 32, "head_dim": 100},
            {**llama, "dtype": "float32", "capped": True},
            {**llama, "dtype": "float32", "head_dim": 256},
        )


class DecodeMergeKernel(Kernel):
    """Merge the parts of a split cache: their mean, weighted by `2^(lse - max)`, in order."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})

    @dataclass(frozen=True)
    class Config:
        """Threads of one block, which merges one head, and parts that it reads at once."""

        threads: int
        block_s: int

    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"cpu": ((None, Config(32, 16)),), "sm_80": ((64, Config(32, 32)), (None, Config(64, 32)))},
    )

    @staticmethod
    def program(*, heads, head_dim, dtype, config):
        batch = T.dynamic("batch")
        splits = T.dynamic("splits")
        width = 1 << (head_dim - 1).bit_length()
        bs = config.block_s
        neg_inf = -T.infinity(_ACC)

        @T.prim_func
        def merge(
            part: T.Tensor((batch, splits, heads, head_dim), _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            o: T.Tensor((batch, heads, head_dim), dtype),
        ):
            with T.Kernel(heads, batch, threads=config.threads) as (head, bz):
                weight = T.alloc_shared((bs,), _ACC)
                acc = T.alloc_fragment((width,), _ACC)
                top = T.alloc_var(_ACC, init=neg_inf)
                total = T.alloc_var(_ACC, init=0.0)
                T.clear(acc)
                for step in T.serial(T.ceildiv(splits, bs)):
                    for i in T.Parallel(bs):
                        weight[i] = T.if_then_else(
                            step * bs + i < splits, lse[bz, step * bs + i, head], neg_inf
                        )
                    for i in T.serial(bs):
                        top = T.max(top, weight[i])
                for step in T.serial(T.ceildiv(splits, bs)):
                    for i in T.Parallel(bs):
                        weight[i] = T.if_then_else(
                            step * bs + i < splits, lse[bz, step * bs + i, head], neg_inf
                        )
                    # Unrolled, so that the parts of all splits are on their way at once.
                    for i in T.unroll(bs):
                        # A split without tokens has lse -inf, and so has one past the last: weight 0.
                        share = T.if_then_else(weight[i] == neg_inf, 0.0, T.exp2(weight[i] - top))
                        total += share
                        for d in T.Parallel(width):
                            if d < head_dim and step * bs + i < splits:
                                acc[d] += share * part[bz, step * bs + i, head, d]
                for d in T.Parallel(width):
                    if d < head_dim:
                        # A query that sees only scores of -inf gets 0, as in PyTorch.
                        o[bz, head, d] = T.if_then_else(total == 0.0, 0.0, acc[d] / total)

        return merge

    @classmethod
    def samples(cls):
        return (
            {"heads": 32, "head_dim": 128, "dtype": "bfloat16"},
            {"heads": 6, "head_dim": 100, "dtype": "float16"},
        )
