"""Attention of one query per request over a dense key-value cache.

Decoding reads the whole cache once and computes little, so the programs are built to keep the memory busy:
the query heads that share a key head are the rows of one tile (the cache is read once for all of them), and
a long cache is split over blocks, each of which attends to its own range of tokens. A second kernel merges
the parts in a fixed order, so a result has the same bits every time.

Source: arXiv:2205.14135, arXiv:2311.01282.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.attention import MAX_HEAD_DIM
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = [
    "DecodeConfig",
    "DecodeKernel",
    "DecodeMergeKernel",
    "attend_tile",
    "cuda_variant",
    "padded_depth",
    "pick_splits",
    "row_bytes",
    "rows_of",
]

_ACC = "float32"


@dataclass(frozen=True)
class DecodeConfig:
    """`block_n` tokens a step, `threads` that compute, `num_stages` of copies.

    `fma`: form the products on the ordinary cores.
    """

    block_n: int
    threads: int
    num_stages: int
    fma: bool = False


def rows_of(group: int) -> int:
    """Return the rows of a tile for `group` query heads: a power of two, 16 (the tensor core's) to 64.

    >>> [rows_of(group) for group in (1, 8, 17, 64, 128)]
    [16, 16, 32, 64, 64]
    """
    return min(64, max(16, 1 << (group - 1).bit_length()))


def row_bytes(sizes) -> int:
    """Return the bytes of one row of a head, by which the tables choose: tiles are as deep as memory allows.

    >>> row_bytes({"head_dim": 128, "dtype": "bfloat16"})
    256
    """
    return sizes["head_dim"] * (4 if sizes["dtype"] == "float32" else 2)


def cuda_variant(config: DecodeConfig, target: str, sizes, bulk_copies: bool) -> DecodeConfig:
    """Return a table's config with what CUDA asks of it: one stage without the copy engine, exact float32."""
    if target != "cuda":
        return config
    num_stages = config.num_stages if bulk_copies else 1
    return dataclasses.replace(config, num_stages=num_stages, fma=sizes["dtype"] == "float32")


def padded_depth(head_dim: int) -> int:
    """Return the columns of a tile: 8 for each of the four warps that share the output's columns.

    >>> padded_depth(64), padded_depth(80)
    (64, 96)
    """
    return -(-head_dim // 32) * 32


def pick_splits(blocks: int, steps: int, slots: int) -> int:
    """Return over how many blocks to split a cache of `steps` tiles when `blocks` exist without splitting.

    Minimises the steps that the busiest of `slots` concurrent blocks takes; a tie goes to fewer splits, which
    are cheaper to merge. No part is shorter than two steps.

    >>> pick_splits(blocks=256, steps=32, slots=264), pick_splits(blocks=4, steps=1024, slots=264)
    (1, 66)
    """
    limit = max(1, min(steps // 2, -(-2 * slots // blocks)))
    return min(range(1, limit + 1), key=lambda s: (-(-blocks * s // slots) * -(-steps // s), s))


@T.macro
def attend_tile(q_shared, k_shared, v_shared, scores, state, token0, end, capped, scale, cap, fma):
    """Fold one tile of keys and values into the running result; tokens from `end` on are masked.

    `scores` is (scores, probabilities in shared memory), `state` is (output, maximum, sum, and scratch rows).
    Scores become base-2 exponents: `q k * scale`, or `cap * tanh(q k * scale)` if `capped`.
    """
    s_frag, p_shared = scores
    o_frag, row_max, row_sum, old_max, shift, part_sum = state
    rows, bn = s_frag.shape
    neg_inf = -T.infinity(_ACC)
    T.clear(s_frag)
    tile_product(q_shared, k_shared, s_frag, False, True, T.GemmWarpPolicy.FullCol, fma)
    for i, j in T.Parallel(rows, bn):
        if capped:
            s_frag[i, j] = cap * T.tanh(s_frag[i, j] * scale)
        else:
            s_frag[i, j] = s_frag[i, j] * scale
    if token0 + bn > end:
        for i, j in T.Parallel(rows, bn):
            s_frag[i, j] = T.if_then_else(token0 + j < end, s_frag[i, j], neg_inf)
    T.copy(row_max, old_max)
    T.reduce_max(s_frag, row_max, dim=1, clear=False)
    for i in T.Parallel(rows):
        # A row that has seen only -inf has maximum -inf, and -inf - -inf is not 0.
        shift[i] = T.if_then_else(row_max[i] == neg_inf, 0.0, row_max[i])
        old_max[i] = T.exp2(old_max[i] - shift[i])
    for i, j in T.Parallel(rows, bn):
        s_frag[i, j] = T.exp2(s_frag[i, j] - shift[i])
    T.reduce_sum(s_frag, part_sum, dim=1)
    for i in T.Parallel(rows):
        row_sum[i] = row_sum[i] * old_max[i] + part_sum[i]
    for i, d in T.Parallel(rows, o_frag.shape[1]):
        o_frag[i, d] *= old_max[i]
    T.copy(s_frag, p_shared)
    tile_product(p_shared, v_shared, o_frag, False, False, T.GemmWarpPolicy.FullCol, fma)


class DecodeKernel(Kernel):
    """`o[b, h] = softmax(q[b, h] k[b, :, h']^T) v[b, :, h']` with `h' = h // group`.

    Batch and tokens are symbolic.

    Writes one normalised float32 result and its base-2 log-sum-exp per split; `DecodeMergeKernel` merges
    them.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    MAX_HEAD_DIM = MAX_HEAD_DIM
    # Without this flag every exp2 carries a rescue path for results below 2^-126.
    PASS_CONFIGS: ClassVar = {"tl.device_compile_flags": ["-ftz=true"]}
    Config = DecodeConfig
    CONFIGS = ConfigTable(
        size=row_bytes,
        devices={
            "cpu": ((None, DecodeConfig(64, 128, 0)),),
            # One stage: two do not lower for a loop of unknown length without the bulk copy engine.
            "sm_80": (
                (256, DecodeConfig(64, 128, 1)),
                (512, DecodeConfig(32, 128, 1)),
                (None, DecodeConfig(32, 256, 1)),
            ),
            "sm_90a": (
                (256, DecodeConfig(64, 128, 2)),
                (512, DecodeConfig(32, 128, 2)),
                (None, DecodeConfig(32, 256, 2)),
            ),
        },
    )

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        """The table's, but with one stage where rows are not aligned for the copy engine."""
        return cuda_variant(
            super().default_config(target=target, arch=arch, **sizes),
            target,
            sizes,
            sizes["head_dim"] % 8 == 0,
        )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, capped, config):
        batch = T.dynamic("batch")
        tokens = T.dynamic("tokens")
        splits = T.dynamic("splits")
        bn = config.block_n
        group = heads // kv_heads
        rows = rows_of(group)
        tiles = -(-group // rows)
        depth = padded_depth(head_dim)

        @T.prim_func
        def decode(
            q: T.Tensor((batch, heads, head_dim), dtype),
            k: T.Tensor((batch, tokens, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, tokens, kv_heads, head_dim), dtype),
            part: T.Tensor((batch, splits, heads, head_dim), _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            scale: T.float32,
            cap: T.float32,
        ):
            with T.Kernel(splits, kv_heads * tiles, batch, threads=config.threads) as (bx, by, bz):
                q_shared = T.alloc_shared((rows, depth), dtype)
                k_shared = T.alloc_shared((bn, depth), dtype)
                v_shared = T.alloc_shared((bn, depth), dtype)
                p_shared = T.alloc_shared((rows, bn), dtype)
                s_frag = T.alloc_fragment((rows, bn), _ACC)
                o_frag = T.alloc_fragment((rows, depth), _ACC)
                row_max = T.alloc_fragment((rows,), _ACC)
                row_sum = T.alloc_fragment((rows,), _ACC)
                old_max = T.alloc_fragment((rows,), _ACC)
                shift = T.alloc_fragment((rows,), _ACC)
                part_sum = T.alloc_fragment((rows,), _ACC)

                # Several blocks on a multiprocessor: no warp group takes the registers of another.
                T.disable_warp_group_reg_alloc()

                # Rows past the group belong to other heads: computed, never stored.
                kv_head = by // tiles
                first_row = (by % tiles) * rows
                head0 = kv_head * group + first_row
                # Every split walks the same number of tiles; those past the end of the cache are masked.
                steps = T.ceildiv(T.ceildiv(tokens, bn), splits)
                first = bx * steps * bn

                T.copy(q[bz, head0 : head0 + rows, 0:depth], q_shared)
                T.clear(o_frag)
                T.clear(row_sum)
                T.fill(row_max, -T.infinity(_ACC))
                for step in T.Pipelined(steps, num_stages=config.num_stages):
                    token0 = first + step * bn
                    T.copy(k[bz, token0 : token0 + bn, kv_head, 0:depth], k_shared)
                    T.copy(v[bz, token0 : token0 + bn, kv_head, 0:depth], v_shared)
                    attend_tile(
                        q_shared,
                        k_shared,
                        v_shared,
                        (s_frag, p_shared),
                        (o_frag, row_max, row_sum, old_max, shift, part_sum),
                        token0,
                        tokens,
                        capped,
                        scale,
                        cap,
                        config.fma,
                    )
                for i, d in T.Parallel(rows, depth):
                    if first_row + i < group and d < head_dim:
                        part[bz, bx, head0 + i, d] = o_frag[i, d] / T.max(row_sum[i], 1.0e-30)
                for i in T.Parallel(rows):
                    if first_row + i < group:
                        lse[bz, bx, head0 + i] = row_max[i] + T.log2(row_sum[i])

        return decode

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "capped": False}
        return (
            llama,
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
        """Threads of one block, which merges one head."""

        threads: int

    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"cpu": ((None, Config(32)),), "sm_80": ((64, Config(32)), (None, Config(64)))},
    )

    @staticmethod
    def program(*, heads, head_dim, dtype, config):
        batch = T.dynamic("batch")
        splits = T.dynamic("splits")
        width = 1 << (head_dim - 1).bit_length()

        @T.prim_func
        def merge(
            part: T.Tensor((batch, splits, heads, head_dim), _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            o: T.Tensor((batch, heads, head_dim), dtype),
        ):
            with T.Kernel(heads, batch, threads=config.threads) as (head, bz):
                acc = T.alloc_fragment((width,), _ACC)
                top = T.alloc_var(_ACC, init=-T.infinity(_ACC))
                total = T.alloc_var(_ACC, init=0.0)
                weight = T.alloc_var(_ACC, init=0.0)
                T.clear(acc)
                for s in T.serial(splits):
                    top = T.max(top, lse[bz, s, head])
                for s in T.serial(splits):
                    # A split without tokens has lse -inf: weight 0.
                    weight = T.if_then_else(
                        lse[bz, s, head] == -T.infinity(_ACC), 0.0, T.exp2(lse[bz, s, head] - top)
                    )
                    total += weight
                    for d in T.Parallel(width):
                        if d < head_dim:
                            acc[d] += weight * part[bz, s, head, d]
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
