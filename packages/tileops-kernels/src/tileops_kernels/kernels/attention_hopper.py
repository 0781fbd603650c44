"""Attention forward as Hopper runs it fastest: one warp loads, two warp groups compute, each its own rows.

The same function as `attention.py`, whose tile program is the one that the CPU verifies. Here the schedule is
explicit:

* The warp that fetches queries, keys and values (`attention_hopper_parts.py`) runs ahead over the borders of
  tiles, so a block never waits for the first keys of its next tile.
* A computing warp group issues the scores of the next keys and the values of the last ones together, and
  forms probabilities while the tensor cores are at work.
* `turns`: the computing warp groups issue one after the other, so that one forms probabilities while another
  keeps the tensor cores busy.

Source: arXiv:2307.08691, arXiv:2407.08608.
"""

import dataclasses
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.attention_hopper_parts import (
    GROUP,
    GROUPS,
    OWN_ROWS,
    PRODUCER,
    ROWS,
    HopperAttentionKernel,
    fetch,
    fetch_step,
    fold,
    give_back,
    registers,
    scores,
    store,
    take_roles,
)
from tileops_kernels.kernels.base import ConfigTable

__all__ = ["AttentionHopperConfig", "AttentionHopperKernel"]

_ACC = "float32"
_REGISTERS = (40, 232)  # of a thread that loads, and of one that computes
_QUERIES = 2  # buffers for the queries of a tile
_FIRST_TURN = 8  # named barriers from here on are the warp groups' turns; TileLang uses those below


@dataclass(frozen=True)
class AttentionHopperConfig:
    """Schedule of one attention program.

    Attributes:
        block_n: keys of a step.
        num_stages: buffers for keys, and for values.
        blocks: blocks of the grid, which share out the tiles.
        turns: make the warp groups issue one after the other.
        by_head: walk the row tiles of a head side by side, so that a head's keys and values are fetched once
            and all heads take turns at it; otherwise the longest row tiles of all heads come first. For
            sequences of at most `blocks` row tiles.
    """

    block_n: int
    num_stages: int
    blocks: int = 132
    turns: bool = True
    by_head: bool = False


class AttentionHopperKernel(HopperAttentionKernel):
    """`o = softmax(q k^T / sqrt(D)) v` over `[B, S, H, D]`; batch and sequence are symbolic.

    Query i sees keys `i - left .. i + right`, each side bounded or not; `left` and `right` are run-time
    scalars, and not negative.
    """

    # Tokens up to which a sequence's tiles are walked head by head, by head dim and whether it is causal.
    BY_HEAD_UP_TO: ClassVar = {(128, True): 2048, (128, False): 4096}
    Config = AttentionHopperConfig
    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "sm_90a": (
                (64, AttentionHopperConfig(128, 2, turns=False)),
                (None, AttentionHopperConfig(128, 2)),
            )
        },
        everywhere=False,
    )

    @classmethod
    def default_config(
        cls, *, target, arch, heads, kv_heads, head_dim, left_bounded, right_bounded, seq=None, **sizes
    ):
        """The table's config; `seq`, where it is known, decides the order of the tiles.

        The longest-first order fetches keys and values of all heads in its first round, and waits for them; a
        long sequence computes enough to hide that. Where query heads share keys there is less to wait for:
        under a causal mask, whose tiles are of all lengths, an even share of work then counts for more. Under
        a window there is little to fetch.
        """
        config = super().default_config(target=target, arch=arch, head_dim=head_dim, **sizes)
        limit = 0 if left_bounded else cls.BY_HEAD_UP_TO.get((head_dim, right_bounded), 0)
        uneven = right_bounded and heads > kv_heads
        return dataclasses.replace(config, by_head=seq is not None and seq <= limit and not uneven)

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, left_bounded, right_bounded, config):
        batch = T.dynamic("batch")
        seq = T.dynamic("seq")
        bn, stages, blocks = config.block_n, config.num_stages, config.blocks
        bm = OWN_ROWS
        share = heads // kv_heads
        scale = math.log2(math.e) / math.sqrt(head_dim)
        neg_inf = -T.infinity(_ACC)

        def in_round(r, block):
            """A block's place in round r: odd rounds go the other way, so that no block is always first."""
            return T.if_then_else(r % 2 == 1, blocks - 1 - block, block)

        def rounds_of(block, row_tiles, lanes):
            """How many tiles a block takes."""
            if config.by_head:
                at_once = T.truncdiv(blocks, row_tiles)
                mine = T.ceildiv(lanes - T.truncdiv(block, row_tiles), at_once)
                return T.if_then_else(block < at_once * row_tiles, mine, 0)
            tiles = row_tiles * lanes
            whole = T.truncdiv(tiles, blocks)
            return whole + T.cast(in_round(whole, block) < tiles - whole * blocks, "int32")

        @T.macro
        def locate(block, r, tile, left, right, seq):
            """Set (row, head, batch, first and past-the-last step) of a tile."""
            row_tiles = T.ceildiv(seq, bm)
            if config.by_head:
                # Odd rounds take the row tiles in reverse: every two rounds are as long for each block.
                lane = r * T.truncdiv(blocks, row_tiles) + T.truncdiv(block, row_tiles)
                row_tile = T.truncmod(block, row_tiles)
                tile[0] = T.if_then_else(r % 2 == 1, row_tile, row_tiles - 1 - row_tile) * bm
                tile[1] = T.truncmod(lane, heads)
                tile[2] = T.truncdiv(lane, heads)
            else:
                lanes = heads * batch
                number = r * blocks + in_round(r, block)
                tile[0] = (row_tiles - 1 - T.truncdiv(number, lanes)) * bm
                tile[1] = T.truncmod(number, heads)
                tile[2] = T.truncdiv(T.truncmod(number, lanes), heads)
            tile[3] = T.truncdiv(T.max(tile[0] - left, 0), bn) if left_bounded else 0
            tile[4] = T.ceildiv(T.min(seq, tile[0] + bm + right), bn) if right_bounded else T.ceildiv(seq, bn)

        def crosses_an_edge(row0, col0, left, right):
            """Of keys that are not the last: True if a query of a warp group may not see all of them."""
            past_right = col0 + bn > row0 + right + 1
            past_left = col0 < row0 + ROWS - 1 - left
            if right_bounded and left_bounded:
                return T.Or(past_right, past_left)
            return past_right if right_bounded else left_bounded and past_left

        @T.macro
        def mask(s_frag, row0, col0, left, right, seq):
            for i, j in T.Parallel(ROWS, bn):
                if right_bounded:
                    s_frag[i, j] = T.if_then_else(
                        col0 + j <= T.min(row0 + i + right, seq - 1), s_frag[i, j], neg_inf
                    )
                else:
                    s_frag[i, j] = T.if_then_else(col0 + j < seq, s_frag[i, j], neg_inf)
            if left_bounded:  # noqa: SIM102 (a choice of program, around a branch of it)
                if col0 < row0 + ROWS - 1 - left:
                    for i, j in T.Parallel(ROWS, bn):
                        s_frag[i, j] = T.if_then_else(col0 + j >= row0 + i - left, s_frag[i, j], neg_inf)

        @T.macro
        def take_turn(group):
            if config.turns:
                T.sync_threads(_FIRST_TURN + group, 2 * GROUP)

        @T.macro
        def pass_turn(group):
            if config.turns:
                T.named_barrier_arrive(_FIRST_TURN + 1 - group, 2 * GROUP)

        @T.macro
        def compute(group, tx, place, buffers, barriers, operands):
            block, rounds, left, right, seq = place
            o = operands[3]
            q_shared, k_shared, v_shared, o_shared = buffers
            q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
            s_frag = T.alloc_fragment((ROWS, bn), _ACC)
            probs = T.alloc_fragment((ROWS, bn), dtype)
            o_frag = T.alloc_fragment((ROWS, head_dim), _ACC)
            row_max = T.alloc_fragment((ROWS,), _ACC)
            row_sum = T.alloc_fragment((ROWS,), _ACC)
            old_max = T.alloc_fragment((ROWS,), _ACC)
            shift = T.alloc_fragment((ROWS,), _ACC)
            rescale = T.alloc_fragment((ROWS,), _ACC)
            sums = T.alloc_fragment((ROWS, 8), _ACC)
            tile = T.alloc_local((5,), "int32")
            # Values lag one step behind keys: `at` is the step of the values, `at + 1` that of the keys.
            at = T.alloc_var("int32", init=0)
            if group == GROUPS - 1:
                pass_turn(group)
            for r in T.serial(rounds):
                locate(block, r, tile, left, right, seq)
                row0 = tile[0] + group * ROWS
                steps = tile[4] - tile[3]
                T.clear(o_frag)
                T.clear(sums)
                T.fill(row_max, neg_inf)

                T.barrier_wait(q_full[r % _QUERIES], r // _QUERIES % 2)
                T.barrier_wait(k_full[at % stages], at // stages % 2)
                take_turn(group)
                scores(q_shared[r % _QUERIES, group, :, :], k_shared[at % stages, :, :], s_frag)
                pass_turn(group)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(s_frag, num_regs=registers(bn))
                give_back(tx, k_empty, at % stages)
                mask(s_frag, row0, (tile[4] - 1) * bn, left, right, seq)
                fold(s_frag, row_max, sums, old_max, shift, rescale, scale)
                T.copy(s_frag, probs)
                if steps > 1:
                    T.barrier_wait(k_full[(at + 1) % stages], (at + 1) // stages % 2)

                for step in T.serial(steps - 1):
                    col0 = (tile[4] - 2 - step) * bn
                    take_turn(group)
                    scores(q_shared[r % _QUERIES, group, :, :], k_shared[(at + 1) % stages, :, :], s_frag)
                    T.barrier_wait(v_full[at % stages], at // stages % 2)
                    T.wgmma_gemm(probs, v_shared[at % stages, :, :], o_frag, policy=T.GemmWarpPolicy.FullRow)
                    pass_turn(group)
                    T.wait_wgmma(1)
                    T.warpgroup_fence_operand(s_frag, num_regs=registers(bn))
                    give_back(tx, k_empty, (at + 1) % stages)
                    if crosses_an_edge(row0, col0, left, right):
                        mask(s_frag, row0, col0, left, right, seq)
                    fold(s_frag, row_max, sums, old_max, shift, rescale, scale)
                    # Between here and the wait stands a branch, which the compiler does not move code over:
                    # without it the exponentials above would wait for the values' product too.
                    T.warpgroup_fence_operand(s_frag, num_regs=registers(bn))
                    if step < steps - 2:
                        T.barrier_wait(k_full[(at + 2) % stages], (at + 2) // stages % 2)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(o_frag, num_regs=registers(head_dim))
                    give_back(tx, v_empty, at % stages)
                    for i, d in T.Parallel(ROWS, head_dim):
                        o_frag[i, d] *= rescale[i]
                    T.copy(s_frag, probs)
                    at = at + 1

                give_back(tx, q_empty, r % _QUERIES)
                T.barrier_wait(v_full[at % stages], at // stages % 2)
                T.wgmma_gemm(probs, v_shared[at % stages, :, :], o_frag, policy=T.GemmWarpPolicy.FullRow)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(o_frag, num_regs=registers(head_dim))
                give_back(tx, v_empty, at % stages)
                at = at + 1
                T.reduce_sum(sums, row_sum, dim=1)
                for i in T.Parallel(ROWS):
                    # A query that sees only scores of -inf gets 0, as in PyTorch.
                    rescale[i] = T.if_then_else(row_sum[i] == 0.0, 0.0, 1.0 / row_sum[i])
                for i, d in T.Parallel(ROWS, head_dim):
                    o_frag[i, d] *= rescale[i]
                T.tma_store_wait(0)
                store(o_frag, o_shared[group, :, :], o, tile[2], row0, tile[1])
            T.tma_store_wait(0)

        @T.macro
        def load(place, buffers, barriers, operands):
            block, rounds, left, right, seq = place
            q_shared, k_shared, v_shared = buffers[0], buffers[1], buffers[2]
            q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
            q, k, v = operands[0], operands[1], operands[2]
            tile = T.alloc_local((5,), "int32")
            at = T.alloc_var("int32", init=0)
            for r in T.serial(rounds):
                locate(block, r, tile, left, right, seq)
                head, request = tile[1], tile[2]
                T.barrier_wait(q_empty[r % _QUERIES], (r // _QUERIES + 1) % 2)
                for group in T.unroll(GROUPS):
                    queries = q_shared[r % _QUERIES, group, :, :]
                    fetch(q, request, tile[0] + group * ROWS, ROWS, head, queries, q_full, r % _QUERIES)
                T.barrier_arrive(q_full[r % _QUERIES])
                for step in T.serial(tile[4] - tile[3]):
                    col0 = (tile[4] - 1 - step) * bn
                    slot, lap = at % stages, at // stages
                    fetch_step(k, request, col0, bn, head // share, k_shared, k_full, k_empty, slot, lap)
                    fetch_step(v, request, col0, bn, head // share, v_shared, v_full, v_empty, slot, lap)
                    at = at + 1

        walk = SimpleNamespace(fetch=load, compute=compute)

        @T.prim_func
        def attention_hopper(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            o: T.Tensor((batch, seq, heads, head_dim), dtype),
            left: T.int32,
            right: T.int32,
        ):
            with T.Kernel(blocks, threads=PRODUCER + GROUP) as (block,):
                q_shared = T.alloc_shared((_QUERIES, GROUPS, ROWS, head_dim), dtype)
                k_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                v_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                o_shared = T.alloc_shared((GROUPS, ROWS, head_dim), dtype)
                q_full = T.alloc_barrier([32] * _QUERIES)
                q_empty = T.alloc_barrier([4 * GROUPS] * _QUERIES)
                k_full = T.alloc_barrier([32] * stages)
                v_full = T.alloc_barrier([32] * stages)
                k_empty = T.alloc_barrier([4 * GROUPS] * stages)
                v_empty = T.alloc_barrier([4 * GROUPS] * stages)
                tx = T.get_thread_binding()
                rounds = rounds_of(block, T.ceildiv(seq, bm), heads * batch)
                place = (block, rounds, left, right, seq)
                buffers = (q_shared, k_shared, v_shared, o_shared)
                barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
                take_roles(walk, _REGISTERS, tx, place, buffers, barriers, (q, k, v, o))

        return attention_hopper

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
        causal = {"left_bounded": False, "right_bounded": True}
        return (
            {**llama, **causal},
            {**llama, "left_bounded": False, "right_bounded": False},
            {**llama, "left_bounded": True, "right_bounded": True, "dtype": "float16"},
            {**llama, **causal, "kv_heads": 32},
            {**llama, **causal, "head_dim": 64},
        )
