"""Gradients of attention as Hopper runs them fastest: one launch, an explicit schedule in each block.

The same functions as in `attention_backward.py`, whose tile programs are the ones that the CPU verifies. A
block owns 128 keys and walks the queries that see them (dk, dv), or owns 128 queries and walks the keys that
they see (dq). Both kinds are one grid, the longest blocks first: where there are few key heads, blocks of
keys are too few and too uneven to fill the multiprocessors, and those of queries take what they leave.

In a block a warp fetches and two warp groups compute (`attention_hopper_parts.py`):

* They form probabilities while the tensor cores multiply gradients by values; where dq is summed, also ds of
  the last step by its keys.
* No product is under way where a step ends, and a thread has less than 210 values under way: otherwise the
  compiler waits for every instruction of the tensor cores. Without `-w`, nvcc says so (C7512, C7515).

Source: arXiv:2307.08691, arXiv:2407.08608.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.errors import ConfigError
from tileops_kernels.kernels.attention_backward import STATISTICS_ROWS
from tileops_kernels.kernels.attention_hopper_parts import (
    GROUP,
    GROUPS,
    OWN_ROWS,
    PRODUCER,
    ROWS,
    HopperAttentionKernel,
    fetch,
    fetch_own,
    fetch_step,
    give_back,
    registers,
    scores,
    store,
    take_roles,
)
from tileops_kernels.kernels.attention_parts import hide_keys, hide_queries
from tileops_kernels.kernels.base import ConfigTable

__all__ = ["AttentionBackwardHopperConfig", "AttentionGradientHopperKernel"]

_ACC = "float32"
_VALUES = 2  # buffers for values: those of the last step are not needed
_LOG2_E = math.log2(math.e)
_REGISTERS = (24, 240)  # of a thread that loads, and of one that computes


@dataclass(frozen=True)
class AttentionBackwardHopperConfig:
    """How far a block walks at a time, and how many buffers it has for that.

    Attributes:
        keys: of a step, where a block owns queries.
        queries: of a step, where a block owns keys.
        num_stages: buffers: those of the last step, of this one, and the ones that are fetched.

    Raises:
        ConfigError: there are fewer than three stages, with which a block would wait for itself.
    """

    keys: int
    queries: int
    num_stages: int

    def __post_init__(self):
        if self.num_stages < 3:
            raise ConfigError(f"num_stages is {self.num_stages}, expected at least 3")


@T.macro
def _add_product(a, b, sum_frag):
    """Issue `sum_frag += a b`."""
    T.wgmma_gemm(a, b, sum_frag, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def _locate(place, block, heads, batch):
    """Set (tile, head, request) of a block; a tile's blocks of all heads and requests lie side by side."""
    place[0] = T.truncdiv(block, batch * heads)
    place[1] = T.truncmod(T.truncmod(block, batch * heads), heads)
    place[2] = T.truncdiv(T.truncmod(block, batch * heads), heads)


def _walk_of_queries(share, head_dim, dtype, causal, bn, stages):
    """Return how a block that owns queries walks the keys that they see, and sums dq: the macros that
    `take_roles` takes."""
    scale = _LOG2_E / math.sqrt(head_dim)

    def steps_of(row0, seq):
        return T.ceildiv(T.min(seq, row0 + OWN_ROWS) if causal else seq, bn)

    @T.macro
    def weigh(p_frag, lse, first, col0, seq):
        hide_keys(p_frag, first, col0, 0, seq, causal)
        for i, j in T.Parallel(ROWS, bn):
            p_frag[i, j] = T.exp2(p_frag[i, j] * scale - lse[i])

    @T.macro
    def differ(p_frag, ds_frag, ds, delta):
        for i, j in T.Parallel(ROWS, bn):
            ds_frag[i, j] = p_frag[i, j] * (ds_frag[i, j] - delta[i])
        T.copy(ds_frag, ds)

    @T.macro
    def compute(group, tx, place, buffers, barriers, operands):
        row0, head, request, seq = place[0], place[1], place[2], place[3]
        statistics, dq = operands[4], operands[5]
        q_shared, grad_shared, k_shared, v_shared = buffers
        q_full, grad_full, k_full, v_full, k_empty, v_empty = barriers
        first = row0 + group * ROWS
        steps = steps_of(row0, seq)
        p_frag = T.alloc_fragment((ROWS, bn), _ACC)
        ds_frag = T.alloc_fragment((ROWS, bn), _ACC)
        ds = T.alloc_fragment((ROWS, bn), dtype)
        dq_frag = T.alloc_fragment((ROWS, head_dim), _ACC)
        lse = T.alloc_fragment((ROWS,), _ACC)
        delta = T.alloc_fragment((ROWS,), _ACC)
        for i in T.Parallel(ROWS):
            # The second warp group may lie past the end.
            if first < seq:
                lse[i] = statistics[request, head, T.truncdiv(first, STATISTICS_ROWS), 0, i]
                delta[i] = statistics[request, head, T.truncdiv(first, STATISTICS_ROWS), 1, i]
            else:
                lse[i] = T.infinity(_ACC)
                delta[i] = 0.0
        T.clear(dq_frag)
        T.barrier_wait(q_full[0], 0)
        T.barrier_wait(k_full[0], 0)
        scores(q_shared[group, :, :], k_shared[0, :, :], p_frag)
        T.barrier_wait(grad_full[0], 0)
        T.barrier_wait(v_full[0], 0)
        scores(grad_shared[group, :, :], v_shared[0, :, :], ds_frag)
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(p_frag, num_regs=registers(bn))
        T.warpgroup_fence_operand(ds_frag, num_regs=registers(bn))
        give_back(tx, v_empty, 0)
        weigh(p_frag, lse, first, 0, seq)
        differ(p_frag, ds_frag, ds, delta)
        if steps > 1:
            T.barrier_wait(k_full[1], 0)
        for step in T.serial(steps - 1):
            scores(q_shared[group, :, :], k_shared[(step + 1) % stages, :, :], p_frag)
            _add_product(ds, k_shared[step % stages, :, :], dq_frag)
            T.barrier_wait(v_full[(step + 1) % _VALUES], (step + 1) // _VALUES % 2)
            scores(grad_shared[group, :, :], v_shared[(step + 1) % _VALUES, :, :], ds_frag)
            T.wait_wgmma(2)
            T.warpgroup_fence_operand(p_frag, num_regs=registers(bn))
            weigh(p_frag, lse, first, (step + 1) * bn, seq)
            # Between here and the wait stands a branch, which the compiler does not move code over:
            # without it the exponentials above would wait for the other products too.
            T.warpgroup_fence_operand(p_frag, num_regs=registers(bn))
            if step < steps - 2:
                T.barrier_wait(k_full[(step + 2) % stages], (step + 2) // stages % 2)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(dq_frag, num_regs=registers(head_dim))
            T.warpgroup_fence_operand(ds_frag, num_regs=registers(bn))
            give_back(tx, k_empty, step % stages)
            give_back(tx, v_empty, (step + 1) % _VALUES)
            differ(p_frag, ds_frag, ds, delta)
        _add_product(ds, k_shared[(steps - 1) % stages, :, :], dq_frag)
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(dq_frag, num_regs=registers(head_dim))
        for i, d in T.Parallel(ROWS, head_dim):
            dq_frag[i, d] *= 1 / math.sqrt(head_dim)
        # The queries of a warp group are its own, and no longer needed.
        store(dq_frag, q_shared[group, :, :], dq, request, first, head)
        T.tma_store_wait(0)

    @T.macro
    def load(place, buffers, barriers, operands):
        row0, head, request, seq = place[0], place[1], place[2], place[3]
        q, k, v, grad_o = operands[0], operands[1], operands[2], operands[3]
        q_shared, grad_shared, k_shared, v_shared = buffers
        q_full, grad_full, k_full, v_full, k_empty, v_empty = barriers
        kv_head = head // share
        fetch_own(q, request, row0, head, q_shared, q_full)
        for step in T.serial(steps_of(row0, seq)):
            slot, lap = step % stages, step // stages
            fetch_step(k, request, step * bn, bn, kv_head, k_shared, k_full, k_empty, slot, lap)
            if step == 0:
                fetch_own(grad_o, request, row0, head, grad_shared, grad_full)
            slot, lap = step % _VALUES, step // _VALUES
            fetch_step(v, request, step * bn, bn, kv_head, v_shared, v_full, v_empty, slot, lap)

    return SimpleNamespace(fetch=load, compute=compute)


def _walk_of_keys(share, head_dim, dtype, causal, bn, stages):
    """Return how a block that owns keys walks the queries that see them, head by head of those that share the
    keys, and sums dk and dv: the macros that `take_roles` takes."""
    scale = _LOG2_E / math.sqrt(head_dim)
    per_tile = STATISTICS_ROWS // bn

    def turns_of(row0, seq):
        """Steps that no query takes part in, and turns of the loop: a step of one head each."""
        skipped = T.truncdiv(row0, bn) if causal else 0
        return skipped, (T.ceildiv(seq, bn) - skipped) * share

    @T.macro
    def weigh(p_frag, of_queries, slot, first, col0):
        for i, j in T.Parallel(ROWS, bn):
            p_frag[i, j] = T.exp2(p_frag[i, j] * scale - of_queries[slot, 0, j])
        if causal:
            hide_queries(p_frag, first, col0)

    @T.macro
    def differ(p_frag, ds_frag, ds, of_queries, slot):
        for i, j in T.Parallel(ROWS, bn):
            ds_frag[i, j] = p_frag[i, j] * (ds_frag[i, j] - of_queries[slot, 1, j])
        T.copy(ds_frag, ds)

    @T.macro
    def compute(group, tx, place, buffers, barriers, operands):
        row0, kv_head, request, seq = place[0], place[1], place[2], place[3]
        dk, dv = operands[5], operands[6]
        k_shared, v_shared, q_shared, grad_shared, of_queries = buffers
        k_full, v_full, q_full, grad_full, q_empty, grad_empty = barriers
        first = row0 + group * ROWS
        skipped, turns = turns_of(row0, seq)
        p_frag = T.alloc_fragment((ROWS, bn), _ACC)
        ds_frag = T.alloc_fragment((ROWS, bn), _ACC)
        p = T.alloc_fragment((ROWS, bn), dtype)
        ds = T.alloc_fragment((ROWS, bn), dtype)
        dk_frag = T.alloc_fragment((ROWS, head_dim), _ACC)
        dv_frag = T.alloc_fragment((ROWS, head_dim), _ACC)
        T.clear(dk_frag)
        T.clear(dv_frag)
        T.barrier_wait(k_full[0], 0)
        T.barrier_wait(v_full[0], 0)
        T.barrier_wait(q_full[0], 0)
        T.barrier_wait(grad_full[0], 0)
        for turn in T.serial(turns):
            scores(k_shared[group, :, :], q_shared[turn % stages, :, :], p_frag)
            scores(v_shared[group, :, :], grad_shared[turn % stages, :, :], ds_frag)
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(p_frag, num_regs=registers(bn))
            weigh(p_frag, of_queries, turn % stages, first, (skipped + T.truncdiv(turn, share)) * bn)
            T.copy(p_frag, p)
            # As in the other walk, a branch between here and the wait.
            T.warpgroup_fence_operand(p_frag, num_regs=registers(bn))
            if turn < turns - 1:
                T.barrier_wait(q_full[(turn + 1) % stages], (turn + 1) // stages % 2)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(ds_frag, num_regs=registers(bn))
            _add_product(p, grad_shared[turn % stages, :, :], dv_frag)
            differ(p_frag, ds_frag, ds, of_queries, turn % stages)
            _add_product(ds, q_shared[turn % stages, :, :], dk_frag)
            if turn < turns - 1:
                T.barrier_wait(grad_full[(turn + 1) % stages], (turn + 1) // stages % 2)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(dv_frag, num_regs=registers(head_dim))
            T.warpgroup_fence_operand(dk_frag, num_regs=registers(head_dim))
            give_back(tx, q_empty, turn % stages)
            give_back(tx, grad_empty, turn % stages)
        # The keys and values of a warp group are its own, and no longer needed.
        store(dv_frag, v_shared[group, :, :], dv, request, first, kv_head)
        for i, d in T.Parallel(ROWS, head_dim):
            dk_frag[i, d] *= 1 / math.sqrt(head_dim)
        store(dk_frag, k_shared[group, :, :], dk, request, first, kv_head)
        T.tma_store_wait(0)

    @T.macro
    def load(place, buffers, barriers, operands):
        row0, kv_head, request, seq = place[0], place[1], place[2], place[3]
        q, k, v, grad_o, statistics = operands[0], operands[1], operands[2], operands[3], operands[4]
        skipped, turns = turns_of(row0, seq)
        k_shared, v_shared, q_shared, grad_shared, of_queries = buffers
        k_full, v_full, q_full, grad_full, q_empty, grad_empty = barriers
        fetch_own(k, request, row0, kv_head, k_shared, k_full)
        for turn in T.serial(turns):
            slot, lap = turn % stages, turn // stages
            step = skipped + T.truncdiv(turn, share)
            head = kv_head * share + T.truncmod(turn, share)
            T.barrier_wait(q_empty[slot], (lap + 1) % 2)
            fetch(q, request, step * bn, bn, head, q_shared[slot, :, :], q_full, slot)
            T.tma_copy(
                statistics[
                    request,
                    head,
                    T.truncdiv(step, per_tile),
                    0:2,
                    T.truncmod(step, per_tile) * bn : T.truncmod(step, per_tile) * bn + bn,
                ],
                of_queries[slot, :, :],
                barrier=q_full[slot],
                leader_scope_threads=32,
            )
            T.barrier_arrive(q_full[slot])
            if turn == 0:
                fetch_own(v, request, row0, kv_head, v_shared, v_full)
            fetch_step(grad_o, request, step * bn, bn, head, grad_shared, grad_full, grad_empty, slot, lap)

    return SimpleNamespace(fetch=load, compute=compute)


class AttentionGradientHopperKernel(HopperAttentionKernel):
    """`dq = ds k / sqrt(D)`, `dk = ds^T q / sqrt(D)` and `dv = p^T do`.

    Program arguments: q, k, v, grad_o, statistics of `AttentionStatisticsKernel`, dq, dk, dv; sequence length
    and batch are symbolic.
    """

    # A block is of one kind or the other: the buffers of both kinds may lie in the same memory.
    PASS_CONFIGS: ClassVar = {
        **HopperAttentionKernel.PASS_CONFIGS,
        "tl.enable_aggressive_shared_memory_merge": True,
    }
    Config = AttentionBackwardHopperConfig
    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"sm_90a": ((None, AttentionBackwardHopperConfig(112, STATISTICS_ROWS, 3)),)},
        everywhere=False,
    )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, causal, config):
        batch, seq, tiles = T.dynamic("batch"), T.dynamic("seq"), T.dynamic("tiles")
        stages, share = config.num_stages, heads // kv_heads
        own, of_keys, of_queries = (GROUPS, ROWS, head_dim), config.keys, config.queries
        walk_of_keys = _walk_of_keys(share, head_dim, dtype, causal, of_queries, stages)
        walk_of_queries = _walk_of_queries(share, head_dim, dtype, causal, of_keys, stages)

        @T.prim_func
        def attention_gradient_hopper(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            grad_o: T.Tensor((batch, seq, heads, head_dim), dtype),
            statistics: T.Tensor((batch, heads, tiles, 2, STATISTICS_ROWS), _ACC),
            dq: T.Tensor((batch, seq, heads, head_dim), dtype),
            dk: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            dv: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
        ):
            # Blocks start in the order of `place[4]`. Where threads have to meet, TileLang counts them with a
            # solver, which products of sizes in what it knows of a block can make give up and miscount: none
            # stand in the grid's axes, and a block's place is read from memory.
            with T.Kernel(batch * (kv_heads + heads), T.ceildiv(seq, OWN_ROWS), threads=PRODUCER + GROUP) as (
                bx,
                by,
            ):
                # Of the two tensors whose rows a block owns, and of the two that it walks.
                own_full = T.alloc_barrier([32])
                other_own_full = T.alloc_barrier([32])
                full = T.alloc_barrier([32] * stages)
                other_full = T.alloc_barrier([32] * stages)
                empty = T.alloc_barrier([4 * GROUPS] * stages)
                other_empty = T.alloc_barrier([4 * GROUPS] * stages)
                barriers = (own_full, other_own_full, full, other_full, empty, other_empty)
                # First row, head, request, the sequence's length, the block and how many own keys.
                place = T.alloc_local((6,), "int32")
                tx = T.get_thread_binding()
                row_tiles = T.ceildiv(seq, OWN_ROWS)
                place[3] = seq
                place[4] = by * (batch * (kv_heads + heads)) + bx
                place[5] = row_tiles * batch * kv_heads

                if place[4] < place[5]:
                    k_own = T.alloc_shared(own, dtype)
                    v_own = T.alloc_shared(own, dtype)
                    q_ring = T.alloc_shared((stages, of_queries, head_dim), dtype)
                    grad_ring = T.alloc_shared((stages, of_queries, head_dim), dtype)
                    statistics_ring = T.alloc_shared((stages, 2, of_queries), _ACC)
                    _locate(place, place[4], kv_heads, batch)
                    # Under a causal mask the first keys are seen by the most queries, and start first.
                    place[0] = place[0] * OWN_ROWS
                    buffers = (k_own, v_own, q_ring, grad_ring, statistics_ring)
                    operands = (q, k, v, grad_o, statistics, dk, dv)
                    take_roles(walk_of_keys, _REGISTERS, tx, place, buffers, barriers, operands)
                else:
                    q_own = T.alloc_shared(own, dtype)
                    grad_own = T.alloc_shared(own, dtype)
                    k_ring = T.alloc_shared((stages, of_keys, head_dim), dtype)
                    v_ring = T.alloc_shared((_VALUES, of_keys, head_dim), dtype)
                    _locate(place, place[4] - place[5], heads, batch)
                    # Bottom rows first: under a causal mask they have the most keys.
                    place[0] = (row_tiles - 1 - place[0]) * OWN_ROWS
                    buffers = (q_own, grad_own, k_ring, v_ring)
                    operands = (q, k, v, grad_o, statistics, dq)
                    take_roles(walk_of_queries, _REGISTERS, tx, place, buffers, barriers, operands)

        return attention_gradient_hopper

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "causal": True}
        return (
            llama,
            {**llama, "causal": False, "dtype": "float16"},
            {**llama, "kv_heads": 32},
            {**llama, "head_dim": 64},
        )
