"""Attention forward over sequences of one length: multi-head, grouped-query, causal, sliding window.

Flash attention: one block owns `block_m` query rows of one head and walks the keys once, keeping a running
row maximum and row sum in float32. Scores are scaled into base 2 so that the exponential is one instruction;
probabilities are rounded to the input dtype for the second product, which accumulates in float32.

Source: arXiv:2205.14135, arXiv:2307.08691.
"""

import math
from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.attention_parts import (
    AttentionProgramKernel,
    hide_keys,
    padded_depth,
    store_rows,
)
from tileops_kernels.kernels.base import ConfigTable
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = ["AttentionConfig", "AttentionForwardKernel"]

_ACC = "float32"


@dataclass(frozen=True)
class AttentionConfig:
    """`block_m` query rows, `block_n` keys a step, `threads` that compute, `num_stages` of copies.

    `fma`: form the products on the ordinary cores.
    """

    block_m: int
    block_n: int
    threads: int
    num_stages: int
    fma: bool = False


class AttentionForwardKernel(AttentionProgramKernel):
    """`o = softmax(q k^T / sqrt(D)) v` over `[B, S, H, D]`; batch and sequence are symbolic.

    Query i sees keys `i - left .. i + right`, each side bounded or not; causal is `right = 0`. `left` and
    `right` are run-time scalars: one compiled program serves every window.
    """

    Config = AttentionConfig
    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": ((None, AttentionConfig(64, 64, 128, 0)),),
            # One stage: two do not lower for a masked loop on architectures without the bulk copy engine.
            "sm_80": ((96, AttentionConfig(64, 64, 128, 1)), (None, AttentionConfig(64, 32, 128, 1))),
            "sm_90a": ((128, AttentionConfig(128, 128, 256, 1)), (None, AttentionConfig(128, 64, 256, 1))),
        },
    )
    UNALIGNED_CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": ((None, AttentionConfig(64, 64, 128, 0)),),
            "sm_80": ((192, AttentionConfig(64, 32, 128, 1)), (None, AttentionConfig(64, 16, 128, 1))),
        },
    )

    EXACT_CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": ((None, AttentionConfig(64, 64, 128, 0)),),
            "sm_80": (
                (128, AttentionConfig(32, 32, 128, 1, fma=True)),
                (None, AttentionConfig(32, 16, 256, 1, fma=True)),
            ),
        },
    )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, left_bounded, right_bounded, config):
        batch = T.dynamic("batch")
        seq = T.dynamic("seq")
        bm, bn = config.block_m, config.block_n
        group = heads // kv_heads
        depth = padded_depth(head_dim)
        scale = math.log2(math.e) / math.sqrt(head_dim)
        neg_inf = -T.infinity(_ACC)

        @T.prim_func
        def attention(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            o: T.Tensor((batch, seq, heads, head_dim), dtype),
            left: T.int32,
            right: T.int32,
        ):
            with T.Kernel(T.ceildiv(seq, bm), heads, batch, threads=config.threads) as (bx, by, bz):
                q_shared = T.alloc_shared((bm, depth), dtype)
                k_shared = T.alloc_shared((bn, depth), dtype)
                v_shared = T.alloc_shared((bn, depth), dtype)
                o_shared = T.alloc_shared((bm, depth), dtype)
                s_frag = T.alloc_fragment((bm, bn), _ACC)
                # Tensor cores take the probabilities from registers, ordinary cores from shared memory.
                if config.fma:
                    probs = T.alloc_shared((bm, bn), dtype)
                else:
                    probs = T.alloc_fragment((bm, bn), dtype)
                o_frag = T.alloc_fragment((bm, depth), _ACC)
                row_max = T.alloc_fragment((bm,), _ACC)
                old_max = T.alloc_fragment((bm,), _ACC)
                shift = T.alloc_fragment((bm,), _ACC)
                rescale = T.alloc_fragment((bm,), _ACC)
                part_sum = T.alloc_fragment((bm,), _ACC)
                row_sum = T.alloc_fragment((bm,), _ACC)

                # Bottom rows first: under a causal mask they have the most keys.
                row0 = (T.ceildiv(seq, bm) - 1 - bx) * bm
                first = T.max(row0 - left, 0) // bn if left_bounded else 0
                last = T.ceildiv(T.min(seq, row0 + bm + right), bn) if right_bounded else T.ceildiv(seq, bn)

                T.copy(q[bz, row0 : row0 + bm, by, 0:depth], q_shared)
                T.clear(o_frag)
                T.clear(row_sum)
                T.fill(row_max, neg_inf)

                for step in T.Pipelined(first, last, num_stages=config.num_stages):
                    T.copy(k[bz, step * bn : (step + 1) * bn, by // group, 0:depth], k_shared)
                    T.clear(s_frag)
                    tile_product(
                        q_shared, k_shared, s_frag, False, True, T.GemmWarpPolicy.FullRow, config.fma
                    )
                    hide_keys(s_frag, row0, step * bn, right, seq, right_bounded)
                    if left_bounded:  # noqa: SIM102 (a choice of program, around a branch of it)
                        if step * bn < row0 + bm - 1 - left:
                            for i, j in T.Parallel(bm, bn):
                                s_frag[i, j] = T.if_then_else(
                                    step * bn + j >= row0 + i - left, s_frag[i, j], neg_inf
                                )

                    T.copy(row_max, old_max)
                    T.reduce_max(s_frag, row_max, dim=1, clear=False)
                    for i in T.Parallel(bm):
                        # A row that has seen no key yet has maximum -inf, and -inf - -inf is not 0.
                        shift[i] = T.if_then_else(row_max[i] == neg_inf, 0.0, row_max[i] * scale)
                        rescale[i] = T.exp2(old_max[i] * scale - shift[i])
                    for i, j in T.Parallel(bm, bn):
                        s_frag[i, j] = T.exp2(s_frag[i, j] * scale - shift[i])
                    T.reduce_sum(s_frag, part_sum, dim=1)
                    for i in T.Parallel(bm):
                        row_sum[i] = row_sum[i] * rescale[i] + part_sum[i]
                    T.copy(s_frag, probs)
                    for i, d in T.Parallel(bm, depth):
                        o_frag[i, d] *= rescale[i]
                    T.copy(v[bz, step * bn : (step + 1) * bn, by // group, 0:depth], v_shared)
                    tile_product(probs, v_shared, o_frag, False, False, T.GemmWarpPolicy.FullRow, config.fma)

                for i, d in T.Parallel(bm, depth):
                    # A query that sees only scores of -inf gets 0, as in PyTorch.
                    o_frag[i, d] = T.if_then_else(row_sum[i] == 0.0, 0.0, o_frag[i, d] / row_sum[i])
                store_rows(o_frag, o_shared, o, bz, row0, by, config.fma)

        return attention

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
        causal = {"left_bounded": False, "right_bounded": True}
        return (
            {**llama, **causal},
            {**llama, "left_bounded": False, "right_bounded": False},
            {**llama, "left_bounded": True, "right_bounded": True},
            {**llama, **causal, "dtype": "float32"},
            {**llama, **causal, "dtype": "float32", "head_dim": 256},
            *(
                {**llama, **causal, "head_dim": d, "dtype": "float16"}
                for d in (64, 72, 80, 96, 100, 192, 250, 256)
            ),
        )
