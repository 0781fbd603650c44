"""Gradients of attention, each summed by the block that owns it: no atomics, the same bits every time.

With s = q k / sqrt(D), p = exp(s - lse) and ds = p (do v - do o), three programs run in turn:

* `AttentionStatisticsKernel`: per query the two numbers that the others need, do o and lse in base 2.
* `AttentionQueryGradientKernel`: a block owns queries and walks the keys that they see; dq = ds k.
* `AttentionKeyGradientKernel`: a block owns keys and walks the queries that see them, head by head where
  query heads share keys; dv = p^T do, dk = ds^T q.

Scores are formed twice, so seven products stand for the five of the definition. In exchange neither program
exchanges anything between blocks, and p and ds go from registers to the tensor cores: the keys' program forms
scores transposed, keys by queries.

Source: arXiv:2205.14135, arXiv:2307.08691.
"""

import math
from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.attention_parts import (
    AttentionProgramKernel,
    hide_keys,
    hide_queries,
    padded_depth,
    store_rows,
)
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = [
    "STATISTICS_ROWS",
    "AttentionBackwardConfig",
    "AttentionKeyGradientKernel",
    "AttentionQueryGradientKernel",
    "AttentionStatisticsKernel",
]

_ACC = "float32"
_LOG2_E = math.log2(math.e)

STATISTICS_ROWS = 64
"""Queries whose statistics lie side by side, in rows of `[B, H, ceil(S / 64), 2, 64]`."""


@dataclass(frozen=True)
class StatisticsConfig:
    """`threads` of a block."""

    threads: int


class AttentionStatisticsKernel(Kernel):
    """Per query lse in base 2 and `do o`, in tiles of `STATISTICS_ROWS` of a head.

    Past the end of the sequence lse is infinite, so that a query there has probability 0.

    Program arguments: o, grad_o `[B, S, H, D]`, lse `[B, H, S]`, statistics
    `[B, H, tiles, 2, STATISTICS_ROWS]`.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    Config = StatisticsConfig
    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"cpu": ((None, StatisticsConfig(128)),), "sm_80": ((None, StatisticsConfig(256)),)},
    )

    @staticmethod
    def program(*, heads, head_dim, dtype, config):
        batch, seq, tiles = T.dynamic("batch"), T.dynamic("seq"), T.dynamic("tiles")
        rows = STATISTICS_ROWS
        width = 1 << (head_dim - 1).bit_length()  # a row of a fragment is added up in halves

        @T.prim_func
        def attention_statistics(
            o: T.Tensor((batch, seq, heads, head_dim), dtype),
            grad_o: T.Tensor((batch, seq, heads, head_dim), dtype),
            lse: T.Tensor((batch, heads, seq), _ACC),
            statistics: T.Tensor((batch, heads, tiles, 2, rows), _ACC),
        ):
            with T.Kernel(tiles, heads, batch, threads=config.threads) as (bx, by, bz):
                o_frag = T.alloc_fragment((rows, width), dtype)
                grad_frag = T.alloc_fragment((rows, width), dtype)
                product = T.alloc_fragment((rows, width), _ACC)
                delta = T.alloc_fragment((rows,), _ACC)

                T.copy(o[bz, bx * rows : (bx + 1) * rows, by, 0:width], o_frag)
                T.copy(grad_o[bz, bx * rows : (bx + 1) * rows, by, 0:width], grad_frag)
                for i, d in T.Parallel(rows, width):
                    product[i, d] = T.cast(o_frag[i, d], _ACC) * T.cast(grad_frag[i, d], _ACC)
                T.reduce_sum(product, delta, dim=1)
                T.copy(delta, statistics[bz, by, bx, 1, 0:rows])
                for i in T.Parallel(rows):
                    if bx * rows + i < seq:
                        statistics[bz, by, bx, 0, i] = lse[bz, by, bx * rows + i] * _LOG2_E
                    else:
                        statistics[bz, by, bx, 0, i] = T.infinity(_ACC)

        return attention_statistics

    @classmethod
    def samples(cls):
        return (
            {"heads": 32, "head_dim": 128, "dtype": "bfloat16"},
            {"heads": 3, "head_dim": 40, "dtype": "float16"},
            {"heads": 32, "head_dim": 256, "dtype": "float32"},
        )


@dataclass(frozen=True)
class AttentionBackwardConfig:
    """A block owns `block` rows and walks `step` at a time (at most `STATISTICS_ROWS` queries).

    Attributes:
        threads: that compute.
        num_stages: of copies.
        fma: form the products on the ordinary cores.
    """

    block: int
    step: int
    threads: int
    num_stages: int
    fma: bool = False


_CPU = ((None, AttentionBackwardConfig(64, 64, 128, 0)),)


class AttentionGradientKernel(AttentionProgramKernel):
    """What the two programs of gradients share."""

    Config = AttentionBackwardConfig
    UNALIGNED_CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"cpu": _CPU, "sm_80": ((None, AttentionBackwardConfig(64, 16, 128, 1)),)},
    )
    EXACT_CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": _CPU,
            "sm_80": (
                (128, AttentionBackwardConfig(32, 32, 128, 1, fma=True)),
                (None, AttentionBackwardConfig(32, 16, 256, 1, fma=True)),
            ),
        },
    )


class AttentionQueryGradientKernel(AttentionGradientKernel):
    """`dq = ds k / sqrt(D)`.

    Program arguments: q, k, v, grad_o, statistics of `AttentionStatisticsKernel`, dq; sequence length and
    batch are symbolic.
    """

    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": _CPU,
            "sm_80": (
                (128, AttentionBackwardConfig(64, 32, 128, 1)),
                (None, AttentionBackwardConfig(64, 16, 128, 1)),
            ),
            # Two stages lower only where the copy engine is used.
            "sm_90a": (
                (64, AttentionBackwardConfig(128, 128, 256, 2)),
                (128, AttentionBackwardConfig(128, 64, 256, 2)),
                (None, AttentionBackwardConfig(128, 32, 256, 2)),
            ),
        },
    )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, causal, config):
        batch, seq, tiles = T.dynamic("batch"), T.dynamic("seq"), T.dynamic("tiles")
        bm, bn, fma = config.block, config.step, config.fma
        rows = STATISTICS_ROWS
        group = heads // kv_heads
        depth = padded_depth(head_dim)
        scale = _LOG2_E / math.sqrt(head_dim)
        policy = T.GemmWarpPolicy.FullRow

        @T.prim_func
        def attention_query_gradient(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            grad_o: T.Tensor((batch, seq, heads, head_dim), dtype),
            statistics: T.Tensor((batch, heads, tiles, 2, rows), _ACC),
            dq: T.Tensor((batch, seq, heads, head_dim), dtype),
        ):
            with T.Kernel(T.ceildiv(seq, bm), heads, batch, threads=config.threads) as (bx, by, bz):
                q_shared = T.alloc_shared((bm, depth), dtype)
                grad_shared = T.alloc_shared((bm, depth), dtype)
                k_shared = T.alloc_shared((bn, depth), dtype)
                v_shared = T.alloc_shared((bn, depth), dtype)
                dq_shared = T.alloc_shared((bm, depth), dtype)
                s_frag = T.alloc_fragment((bm, bn), _ACC)
                ds_frag = T.alloc_fragment((bm, bn), _ACC)
                # Tensor cores take ds from registers, ordinary cores from shared memory.
                if fma:
                    ds = T.alloc_shared((bm, bn), dtype)
                else:
                    ds = T.alloc_fragment((bm, bn), dtype)
                dq_frag = T.alloc_fragment((bm, depth), _ACC)
                lse = T.alloc_fragment((bm,), _ACC)
                delta = T.alloc_fragment((bm,), _ACC)

                # Bottom rows first: under a causal mask they have the most keys.
                row0 = (T.ceildiv(seq, bm) - 1 - bx) * bm
                last = T.ceildiv(T.min(seq, row0 + bm), bn) if causal else T.ceildiv(seq, bn)

                T.copy(q[bz, row0 : row0 + bm, by, 0:depth], q_shared)
                T.copy(grad_o[bz, row0 : row0 + bm, by, 0:depth], grad_shared)
                for i in T.Parallel(bm):
                    # Queries past the end have no statistics in the last tile but one of 64.
                    if T.truncdiv(row0 + i, rows) < tiles:
                        lse[i] = statistics[bz, by, T.truncdiv(row0 + i, rows), 0, T.truncmod(row0 + i, rows)]
                        delta[i] = statistics[
                            bz, by, T.truncdiv(row0 + i, rows), 1, T.truncmod(row0 + i, rows)
                        ]
                    else:
                        lse[i] = T.infinity(_ACC)
                        delta[i] = 0.0
                T.clear(dq_frag)

                for step in T.Pipelined(0, last, num_stages=config.num_stages):
                    T.copy(k[bz, step * bn : (step + 1) * bn, by // group, 0:depth], k_shared)
                    T.clear(s_frag)
                    tile_product(q_shared, k_shared, s_frag, False, True, policy, fma)
                    hide_keys(s_frag, row0, step * bn, 0, seq, causal)
                    T.copy(v[bz, step * bn : (step + 1) * bn, by // group, 0:depth], v_shared)
                    T.clear(ds_frag)
                    tile_product(grad_shared, v_shared, ds_frag, False, True, policy, fma)
                    for i, j in T.Parallel(bm, bn):
                        ds_frag[i, j] = T.exp2(s_frag[i, j] * scale - lse[i]) * (ds_frag[i, j] - delta[i])
                    T.copy(ds_frag, ds)
                    tile_product(ds, k_shared, dq_frag, False, False, policy, fma)

                for i, d in T.Parallel(bm, depth):
                    dq_frag[i, d] *= 1 / math.sqrt(head_dim)
                store_rows(dq_frag, dq_shared, dq, bz, row0, by, fma)

        return attention_query_gradient

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "causal": True}
        return (
            llama,
            {**llama, "causal": False},
            {**llama, "dtype": "float32"},
            {**llama, "dtype": "float32", "head_dim": 256},
            *({**llama, "head_dim": d, "dtype": "float16"} for d in (40, 64, 96, 100, 192, 250, 256)),
        )


class AttentionKeyGradientKernel(AttentionGradientKernel):
    """`dk = ds^T q / sqrt(D)` and `dv = p^T do`, or one of them.

    Program arguments: q, k, v, grad_o, statistics of `AttentionStatisticsKernel`, dk, dv; sequence length and
    batch are symbolic.
    """

    # Two accumulators of a wider head do not fit the registers: a launch for each gradient.
    BOTH_UP_TO = 128
    UNALIGNED_BOTH_UP_TO = 64
    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": _CPU,
            "sm_80": (
                (128, AttentionBackwardConfig(64, 32, 128, 1)),
                (None, AttentionBackwardConfig(64, 16, 128, 1)),
            ),
            "sm_90a": (
                (128, AttentionBackwardConfig(128, 64, 256, 2)),
                (None, AttentionBackwardConfig(128, 32, 256, 2)),
            ),
        },
    )

    @classmethod
    def launches(cls, head_dim):
        """Return the `gradients` of the programs that together write dk and dv.

        >>> [AttentionKeyGradientKernel.launches(head_dim) for head_dim in (128, 136, 100)]
        [('both',), ('dk', 'dv'), ('dk', 'dv')]
        """
        limit = cls.BOTH_UP_TO if head_dim % 8 == 0 else cls.UNALIGNED_BOTH_UP_TO
        return ("both",) if head_dim <= limit else ("dk", "dv")

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, causal, gradients, config):
        """Return the tile program; `gradients` is "both", "dk" or "dv"."""
        batch, seq, tiles = T.dynamic("batch"), T.dynamic("seq"), T.dynamic("tiles")
        bm, bn, fma = config.block, config.step, config.fma
        per_tile = STATISTICS_ROWS // bn
        group = heads // kv_heads
        depth = padded_depth(head_dim)
        scale = _LOG2_E / math.sqrt(head_dim)
        policy = T.GemmWarpPolicy.FullRow
        of_keys, of_values = gradients != "dv", gradients != "dk"

        @T.prim_func
        def attention_key_gradient(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            grad_o: T.Tensor((batch, seq, heads, head_dim), dtype),
            statistics: T.Tensor((batch, heads, tiles, 2, STATISTICS_ROWS), _ACC),
            dk: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            dv: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
        ):
            with T.Kernel(T.ceildiv(seq, bm), kv_heads, batch, threads=config.threads) as (bx, by, bz):
                k_shared = T.alloc_shared((bm, depth), dtype)
                v_shared = T.alloc_shared((bm, depth), dtype)
                q_shared = T.alloc_shared((bn, depth), dtype)
                grad_shared = T.alloc_shared((bn, depth), dtype)
                of_queries = T.alloc_shared((2, bn), _ACC)
                out_shared = T.alloc_shared((bm, depth), dtype)
                p_frag = T.alloc_fragment((bm, bn), _ACC)
                ds_frag = T.alloc_fragment((bm, bn), _ACC)
                # Tensor cores take p and ds from registers, ordinary cores from shared memory.
                if fma:
                    p = T.alloc_shared((bm, bn), dtype)
                    ds = T.alloc_shared((bm, bn), dtype)
                else:
                    p = T.alloc_fragment((bm, bn), dtype)
                    ds = T.alloc_fragment((bm, bn), dtype)
                dk_frag = T.alloc_fragment((bm, depth), _ACC)
                dv_frag = T.alloc_fragment((bm, depth), _ACC)

                # Under a causal mask the first keys are seen by the most queries, and start first.
                row0 = bx * bm
                first = T.truncdiv(row0, bn) if causal else 0

                T.copy(k[bz, row0 : row0 + bm, by, 0:depth], k_shared)
                if of_keys:
                    T.copy(v[bz, row0 : row0 + bm, by, 0:depth], v_shared)
                    T.clear(dk_frag)
                if of_values:
                    T.clear(dv_frag)

                # One loop for queries and the heads that share the keys: what is set up before an inner loop
                # would be set anew. It starts at 0: phases of barriers count from there.
                for turn in T.Pipelined((T.ceildiv(seq, bn) - first) * group, num_stages=config.num_stages):
                    step = first + T.truncdiv(turn, group)
                    head = by * group + T.truncmod(turn, group)
                    T.copy(q[bz, step * bn : (step + 1) * bn, head, 0:depth], q_shared)
                    T.copy(
                        statistics[
                            bz,
                            head,
                            T.truncdiv(step, per_tile),
                            0:2,
                            T.truncmod(step, per_tile) * bn : T.truncmod(step, per_tile) * bn + bn,
                        ],
                        of_queries,
                    )
                    T.clear(p_frag)
                    tile_product(k_shared, q_shared, p_frag, False, True, policy, fma)
                    for i, j in T.Parallel(bm, bn):
                        p_frag[i, j] = T.exp2(p_frag[i, j] * scale - of_queries[0, j])
                    if causal:
                        hide_queries(p_frag, row0, step * bn)
                    T.copy(grad_o[bz, step * bn : (step + 1) * bn, head, 0:depth], grad_shared)
                    if of_keys:
                        T.clear(ds_frag)
                        tile_product(v_shared, grad_shared, ds_frag, False, True, policy, fma)
                        for i, j in T.Parallel(bm, bn):
                            ds_frag[i, j] = p_frag[i, j] * (ds_frag[i, j] - of_queries[1, j])
                    if of_values:
                        T.copy(p_frag, p)
                        tile_product(p, grad_shared, dv_frag, False, False, policy, fma)
                    if of_keys:
                        T.copy(ds_frag, ds)
                        tile_product(ds, q_shared, dk_frag, False, False, policy, fma)

                if of_values:
                    store_rows(dv_frag, out_shared, dv, bz, row0, by, fma)
                if of_keys:
                    for i, d in T.Parallel(bm, depth):
                        dk_frag[i, d] *= 1 / math.sqrt(head_dim)
                    store_rows(dk_frag, out_shared, dk, bz, row0, by, fma)

        return attention_key_gradient

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "causal": True}
        wide = {**llama, "dtype": "float16", "head_dim": 256}
        return (
            {**llama, "gradients": "both"},
            {**llama, "gradients": "both", "causal": False},
            {**llama, "gradients": "both", "dtype": "float32"},
            *({**wide, "gradients": g, "dtype": t} for g in ("dk", "dv") for t in ("float16", "float32")),
            *({**wide, "gradients": "dk", "head_dim": d} for d in (100, 192, 250)),
            *({**wide, "gradients": "both", "head_dim": d} for d in (40, 50, 64, 96)),
        )
