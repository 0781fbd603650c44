"""Attention forward as Hopper runs it fastest: one warp loads, two warp groups compute, each its own rows.

The same function as `attention.py`, whose tile program is the one that the CPU verifies. Here the schedule is
explicit:

* A warp of the last warp group fetches queries, keys and values with the copy engine into rings of buffers;
  `full` and `empty` barriers pass the buffers to and fro. It runs ahead over the borders of tiles, so a block
  never waits for the first keys of its next tile.
* A computing warp group owns 64 query rows. It issues the scores of the next keys and the values of the last
  ones together, and forms probabilities while the tensor cores are at work.
* `turns`: the computing warp groups issue one after the other, so that one forms probabilities while another
  keeps the tensor cores busy.

Source: arXiv:2307.08691, arXiv:2407.08608.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["AttentionHopperConfig", "AttentionHopperKernel", "fold", "give_back"]

_ACC = "float32"
_GROUP = 128  # threads of a warp group
_GROUPS = 2  # that compute
_ROWS = 64  # rows of the tensor core's tile, one per warp group
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


@T.macro
def give_back(tx, barrier, slot):
    """Let the warp say that it needs a buffer no more."""
    if tx % 32 == 0:
        T.barrier_arrive(barrier[slot])


@T.macro
def fold(s_frag, row_max, sums, old_max, shift, rescale, scale):
    """Turn scores, times `scale` in base 2, into probabilities against the running maximum.

    `rescale` is for the result. `sums` has the 8 columns that recur in the tensor core's tile: a thread adds
    to its own, and what threads have is added up when the tile is done.
    """
    rows, bn = s_frag.shape
    T.copy(row_max, old_max)
    T.reduce_max(s_frag, row_max, dim=1, clear=False)
    for i in T.Parallel(rows):
        # A row that has seen no key yet has maximum -inf, and -inf - -inf is not 0.
        shift[i] = T.if_then_else(row_max[i] == -T.infinity(_ACC), 0.0, row_max[i] * scale)
        rescale[i] = T.exp2(old_max[i] * scale - shift[i])
    for i, j in T.Parallel(rows, bn):
        s_frag[i, j] = T.exp2(s_frag[i, j] * scale - shift[i])
    for i, j in T.Parallel(rows, 8):
        sums[i, j] *= rescale[i]
    for c in T.unroll(bn // 8):
        for i, j in T.Parallel(rows, 8):
            sums[i, j] += s_frag[i, c * 8 + j]


class AttentionHopperKernel(Kernel):
    """`o = softmax(q k^T / sqrt(D)) v` over `[B, S, H, D]`; batch and sequence are symbolic.

    Query i sees keys `i - left .. i + right`, each side bounded or not; `left` and `right` are run-time
    scalars, and not negative.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    ARCHS = frozenset({"sm_90a"})
    HEAD_DIMS = frozenset({64, 128})
    # Tokens up to which a sequence's tiles are walked head by head, by head dim and whether it is causal.
    BY_HEAD_UP_TO: ClassVar = {(128, True): 2048, (128, False): 4096}
    # Roles are explicit. Without the flag every exp2 carries a rescue path for results below 2^-126.
    PASS_CONFIGS: ClassVar = {
        "tl.disable_warp_specialized": True,
        "tl.device_compile_flags": ["-ftz=true"],
    }
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

    @classmethod
    def fits(cls, device, head_dim, dtype):
        """True if this kernel is written for the device, the head dim and the dtype."""
        return cls.serves_device(device) and head_dim in cls.HEAD_DIMS and dtype in cls.SUPPORTED_DTYPES

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, left_bounded, right_bounded, config):
        batch = T.dynamic("batch")
        seq = T.dynamic("seq")
        bn, stages, blocks = config.block_n, config.num_stages, config.blocks
        bm = _ROWS * _GROUPS
        producer = _GROUP * _GROUPS
        share = heads // kv_heads
        score_registers, output_registers = bn * _ROWS // _GROUP, head_dim * _ROWS // _GROUP
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
        def locate(block, r, place, left, right, seq):
            """Set (row, head, batch, first and past-the-last step) of a tile."""
            row_tiles = T.ceildiv(seq, bm)
            if config.by_head:
                # Odd rounds take the row tiles in reverse: every two rounds are as long for each block.
                lane = r * T.truncdiv(blocks, row_tiles) + T.truncdiv(block, row_tiles)
                row_tile = T.truncmod(block, row_tiles)
                place[0] = T.if_then_else(r % 2 == 1, row_tile, row_tiles - 1 - row_tile) * bm
                place[1] = T.truncmod(lane, heads)
                place[2] = T.truncdiv(lane, heads)
            else:
                lanes = heads * batch
                tile = r * blocks + in_round(r, block)
                place[0] = (row_tiles - 1 - T.truncdiv(tile, lanes)) * bm
                place[1] = T.truncmod(tile, heads)
                place[2] = T.truncdiv(T.truncmod(tile, lanes), heads)
            place[3] = T.truncdiv(T.max(place[0] - left, 0), bn) if left_bounded else 0
            place[4] = (
                T.ceildiv(T.min(seq, place[0] + bm + right), bn) if right_bounded else T.ceildiv(seq, bn)
            )

        def crosses_an_edge(row0, col0, left, right):
            """Of keys that are not the last: True if a query of a warp group may not see all of them."""
            past_right = col0 + bn > row0 + right + 1
            past_left = col0 < row0 + _ROWS - 1 - left
            if right_bounded and left_bounded:
                return T.Or(past_right, past_left)
            return past_right if right_bounded else left_bounded and past_left

        @T.macro
        def mask(s_frag, row0, col0, left, right, seq):
            for i, j in T.Parallel(_ROWS, bn):
                if right_bounded:
                    s_frag[i, j] = T.if_then_else(
                        col0 + j <= T.min(row0 + i + right, seq - 1), s_frag[i, j], neg_inf
                    )
                else:
                    s_frag[i, j] = T.if_then_else(col0 + j < seq, s_frag[i, j], neg_inf)
            if left_bounded:  # noqa: SIM102 (a choice of program, around a branch of it)
                if col0 < row0 + _ROWS - 1 - left:
                    for i, j in T.Parallel(_ROWS, bn):
                        s_frag[i, j] = T.if_then_else(col0 + j >= row0 + i - left, s_frag[i, j], neg_inf)

        @T.macro
        def take_turn(group):
            if config.turns:
                T.sync_threads(_FIRST_TURN + group, 2 * _GROUP)

        @T.macro
        def pass_turn(group):
            if config.turns:
                T.named_barrier_arrive(_FIRST_TURN + 1 - group, 2 * _GROUP)

        @T.macro
        def compute(group, tx, block, rounds, window, buffers, barriers, o):
            left, right, seq = window
            q_shared, k_shared, v_shared, o_shared = buffers
            q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
            s_frag = T.alloc_fragment((_ROWS, bn), _ACC)
            probs = T.alloc_fragment((_ROWS, bn), dtype)
            o_frag = T.alloc_fragment((_ROWS, head_dim), _ACC)
            row_max = T.alloc_fragment((_ROWS,), _ACC)
            row_sum = T.alloc_fragment((_ROWS,), _ACC)
            old_max = T.alloc_fragment((_ROWS,), _ACC)
            shift = T.alloc_fragment((_ROWS,), _ACC)
            rescale = T.alloc_fragment((_ROWS,), _ACC)
            sums = T.alloc_fragment((_ROWS, 8), _ACC)
            place = T.alloc_local((5,), "int32")
            # Values lag one step behind keys: `at` is the step of the values, `at + 1` that of the keys.
            at = T.alloc_var("int32", init=0)
            T.set_max_nreg(_REGISTERS[1], 1)
            if group == _GROUPS - 1:
                pass_turn(group)
            for r in T.serial(rounds):
                locate(block, r, place, left, right, seq)
                row0 = place[0] + group * _ROWS
                steps = place[4] - place[3]
                T.clear(o_frag)
                T.clear(sums)
                T.fill(row_max, neg_inf)

                T.barrier_wait(q_full[r % _QUERIES], r // _QUERIES % 2)
                T.barrier_wait(k_full[at % stages], at // stages % 2)
                take_turn(group)
                T.wgmma_gemm(
                    q_shared[r % _QUERIES, group, :, :],
                    k_shared[at % stages, :, :],
                    s_frag,
                    transpose_B=True,
                    policy=T.GemmWarpPolicy.FullRow,
                    clear_accum=True,
                )
                pass_turn(group)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(s_frag, num_regs=score_registers)
                give_back(tx, k_empty, at % stages)
                mask(s_frag, row0, (place[4] - 1) * bn, left, right, seq)
                fold(s_frag, row_max, sums, old_max, shift, rescale, scale)
                T.copy(s_frag, probs)
                if steps > 1:
                    T.barrier_wait(k_full[(at + 1) % stages], (at + 1) // stages % 2)

                for step in T.serial(steps - 1):
                    col0 = (place[4] - 2 - step) * bn
                    take_turn(group)
                    T.wgmma_gemm(
                        q_shared[r % _QUERIES, group, :, :],
                        k_shared[(at + 1) % stages, :, :],
                        s_frag,
                        transpose_B=True,
                        policy=T.GemmWarpPolicy.FullRow,
                        clear_accum=True,
                    )
                    T.barrier_wait(v_full[at % stages], at // stages % 2)
                    T.wgmma_gemm(probs, v_shared[at % stages, :, :], o_frag, policy=T.GemmWarpPolicy.FullRow)
                    pass_turn(group)
                    T.wait_wgmma(1)
                    T.warpgroup_fence_operand(s_frag, num_regs=score_registers)
                    give_back(tx, k_empty, (at + 1) % stages)
                    if crosses_an_edge(row0, col0, left, right):
                        mask(s_frag, row0, col0, left, right, seq)
                    fold(s_frag, row_max, sums, old_max, shift, rescale, scale)
                    # Between here and the wait stands a branch, which the compiler does not move code over:
                    # without it the exponentials above would wait for the values' product too.
                    T.warpgroup_fence_operand(s_frag, num_regs=score_registers)
                    if step < steps - 2:
                        T.barrier_wait(k_full[(at + 2) % stages], (at + 2) // stages % 2)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(o_frag, num_regs=output_registers)
                    give_back(tx, v_empty, at % stages)
                    for i, d in T.Parallel(_ROWS, head_dim):
                        o_frag[i, d] *= rescale[i]
                    T.copy(s_frag, probs)
                    at = at + 1

                give_back(tx, q_empty, r % _QUERIES)
                T.barrier_wait(v_full[at % stages], at // stages % 2)
                T.wgmma_gemm(probs, v_shared[at % stages, :, :], o_frag, policy=T.GemmWarpPolicy.FullRow)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(o_frag, num_regs=output_registers)
                give_back(tx, v_empty, at % stages)
                at = at + 1
                T.reduce_sum(sums, row_sum, dim=1)
                for i in T.Parallel(_ROWS):
                    # A query that sees only scores of -inf gets 0, as in PyTorch.
                    rescale[i] = T.if_then_else(row_sum[i] == 0.0, 0.0, 1.0 / row_sum[i])
                for i, d in T.Parallel(_ROWS, head_dim):
                    o_frag[i, d] *= rescale[i]
                T.tma_store_wait(0)
                T.copy(o_frag, o_shared[group, :, :])
                T.fence_proxy_async()
                T.tma_copy(o_shared[group, :, :], o[place[2], row0 : row0 + _ROWS, place[1], 0:head_dim])
            T.tma_store_wait(0)

        @T.macro
        def fetch(block, rounds, window, buffers, barriers, q, k, v):
            left, right, seq = window
            q_shared, k_shared, v_shared = buffers[0], buffers[1], buffers[2]
            q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
            place = T.alloc_local((5,), "int32")
            at = T.alloc_var("int32", init=0)
            for r in T.serial(rounds):
                locate(block, r, place, left, right, seq)
                head, request = place[1], place[2]
                T.barrier_wait(q_empty[r % _QUERIES], (r // _QUERIES + 1) % 2)
                for group in T.unroll(_GROUPS):
                    T.tma_copy(
                        q[
                            request,
                            place[0] + group * _ROWS : place[0] + (group + 1) * _ROWS,
                            head,
                            0:head_dim,
                        ],
                        q_shared[r % _QUERIES, group, :, :],
                        barrier=q_full[r % _QUERIES],
                        leader_scope_threads=32,
                    )
                T.barrier_arrive(q_full[r % _QUERIES])
                for step in T.serial(place[4] - place[3]):
                    col0 = (place[4] - 1 - step) * bn
                    T.barrier_wait(k_empty[at % stages], (at // stages + 1) % 2)
                    T.tma_copy(
                        k[request, col0 : col0 + bn, head // share, 0:head_dim],
                        k_shared[at % stages, :, :],
                        barrier=k_full[at % stages],
                        leader_scope_threads=32,
                    )
                    T.barrier_arrive(k_full[at % stages])
                    T.barrier_wait(v_empty[at % stages], (at // stages + 1) % 2)
                    T.tma_copy(
                        v[request, col0 : col0 + bn, head // share, 0:head_dim],
                        v_shared[at % stages, :, :],
                        barrier=v_full[at % stages],
                        leader_scope_threads=32,
                    )
                    T.barrier_arrive(v_full[at % stages])
                    at = at + 1

        @T.prim_func
        def attention_hopper(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            o: T.Tensor((batch, seq, heads, head_dim), dtype),
            left: T.int32,
            right: T.int32,
        ):
            with T.Kernel(blocks, threads=producer + _GROUP) as (block,):
                q_shared = T.alloc_shared((_QUERIES, _GROUPS, _ROWS, head_dim), dtype)
                k_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                v_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                o_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                q_full = T.alloc_barrier([32] * _QUERIES)
                q_empty = T.alloc_barrier([4 * _GROUPS] * _QUERIES)
                k_full = T.alloc_barrier([32] * stages)
                v_full = T.alloc_barrier([32] * stages)
                k_empty = T.alloc_barrier([4 * _GROUPS] * stages)
                v_empty = T.alloc_barrier([4 * _GROUPS] * stages)
                tx = T.get_thread_binding()
                rounds = rounds_of(block, T.ceildiv(seq, bm), heads * batch)
                window = (left, right, seq)
                buffers = (q_shared, k_shared, v_shared, o_shared)
                barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)

                if tx >= producer:
                    T.set_max_nreg(_REGISTERS[0], 0)
                    if tx < producer + 32:
                        fetch(block, rounds, window, buffers, barriers, q, k, v)
                elif tx < _GROUP:
                    compute(0, tx, block, rounds, window, buffers, barriers, o)
                else:
                    compute(1, tx, block, rounds, window, buffers, barriers, o)

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
