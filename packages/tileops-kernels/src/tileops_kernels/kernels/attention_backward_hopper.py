"""Gradients of attention as Hopper runs them fastest: one warp loads, two warp groups compute.

The same functions as in `attention_backward.py`, whose tile programs are the ones that the CPU verifies. Here
the schedule is explicit:

* A warp of the last warp group fetches what a block walks into rings of buffers; `full` and `empty` barriers
  pass the buffers to and fro.
* A computing warp group owns 64 rows, and forms probabilities while the tensor cores multiply gradients by
  values; where dq is summed, also ds of the last step by its keys.
* No product is under way where a step ends, and a thread has less than 210 values under way: otherwise the
  compiler waits for every instruction of the tensor cores. Without `-w`, nvcc says so (C7512, C7515).

Source: arXiv:2307.08691, arXiv:2407.08608.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.errors import ConfigError
from tileops_kernels.kernels.attention_backward import STATISTICS_ROWS
from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = [
    "AttentionBackwardHopperConfig",
    "AttentionKeyGradientHopperKernel",
    "AttentionQueryGradientHopperKernel",
]

_ACC = "float32"
_VALUES = 2  # buffers for values: those of the last step are not needed
_LOG2_E = math.log2(math.e)
_GROUP = 128  # threads of a warp group
_GROUPS = 2  # that compute
_ROWS = 64  # rows of the tensor core's tile, one per warp group
_PRODUCER = _GROUP * _GROUPS  # first thread that loads
_REGISTERS = (24, 240)  # of a thread that loads, and of one that computes


@dataclass(frozen=True)
class AttentionBackwardHopperConfig:
    """A block walks `step` rows at a time, and has `num_stages` buffers for them: those of the last step, of
    this one, and the ones that are fetched.

    Raises:
        ConfigError: there are fewer than three stages, with which a block would wait for itself.
    """

    step: int
    num_stages: int

    def __post_init__(self):
        if self.num_stages < 3:
            raise ConfigError(f"num_stages is {self.num_stages}, expected at least 3")


class AttentionGradientHopperKernel(Kernel):
    """What the two programs share."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    ARCHS = frozenset({"sm_90a"})
    HEAD_DIMS = frozenset({64, 128})
    # Roles are explicit. Without the flag every exp2 carries a rescue path for results below 2^-126.
    PASS_CONFIGS: ClassVar = {
        "tl.disable_warp_specialized": True,
        "tl.device_compile_flags": ["-ftz=true"],
    }
    Config = AttentionBackwardHopperConfig

    @classmethod
    def fits(cls, device, head_dim, dtype):
        """True if this kernel is written for the device, the head dim and the dtype."""
        return cls.serves_device(device) and head_dim in cls.HEAD_DIMS and dtype in cls.SUPPORTED_DTYPES

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "causal": True}
        return (
            llama,
            {**llama, "causal": False, "dtype": "float16"},
            {**llama, "kv_heads": 32},
            {**llama, "head_dim": 64},
        )


@T.macro
def _give_back(tx, barrier, slot):
    if tx % 32 == 0:
        T.barrier_arrive(barrier[slot])


@T.macro
def _scores(a, b, s_frag):
    """Issue `s_frag = a b^T`."""
    T.wgmma_gemm(a, b, s_frag, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)


@T.macro
def _store(gradient, through, out, request, row0, head):
    """Write a warp group's rows, once its last store has left `through`."""
    T.tma_store_wait(0)
    T.copy(gradient, through)
    T.fence_proxy_async()
    T.tma_copy(through, out[request, row0 : row0 + _ROWS, head, 0 : gradient.shape[1]])


class AttentionQueryGradientHopperKernel(AttentionGradientHopperKernel):
    """`dq = ds k / sqrt(D)`; arguments as those of `AttentionQueryGradientKernel`."""

    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"sm_90a": ((None, AttentionBackwardHopperConfig(112, 3)),)},
        everywhere=False,
    )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, causal, config):
        batch, seq, tiles = T.dynamic("batch"), T.dynamic("seq"), T.dynamic("tiles")
        bm, bn, stages = _ROWS * _GROUPS, config.step, config.num_stages
        share = heads // kv_heads
        scale = _LOG2_E / math.sqrt(head_dim)
        score_registers, output_registers = bn * _ROWS // _GROUP, head_dim * _ROWS // _GROUP
        policy = T.GemmWarpPolicy.FullRow

        @T.macro
        def weigh(p_frag, lse, first, col0, seq):
            if col0 + bn > (T.min(first + 1, seq) if causal else seq):
                for i, j in T.Parallel(_ROWS, bn):
                    p_frag[i, j] = T.if_then_else(
                        col0 + j <= (T.min(first + i, seq - 1) if causal else seq - 1),
                        p_frag[i, j],
                        -T.infinity(_ACC),
                    )
            for i, j in T.Parallel(_ROWS, bn):
                p_frag[i, j] = T.exp2(p_frag[i, j] * scale - lse[i])

        @T.macro
        def differ(p_frag, ds_frag, ds, delta):
            for i, j in T.Parallel(_ROWS, bn):
                ds_frag[i, j] = p_frag[i, j] * (ds_frag[i, j] - delta[i])
            T.copy(ds_frag, ds)

        @T.macro
        def compute(group, tx, place, steps, buffers, barriers, statistics, dq):
            row0, head, request, seq = place
            q_shared, grad_shared, k_shared, v_shared = buffers
            q_full, grad_full, k_full, v_full, k_empty, v_empty = barriers
            first = row0 + group * _ROWS
            p_frag = T.alloc_fragment((_ROWS, bn), _ACC)
            ds_frag = T.alloc_fragment((_ROWS, bn), _ACC)
            ds = T.alloc_fragment((_ROWS, bn), dtype)
            dq_frag = T.alloc_fragment((_ROWS, head_dim), _ACC)
            lse = T.alloc_fragment((_ROWS,), _ACC)
            delta = T.alloc_fragment((_ROWS,), _ACC)
            T.set_max_nreg(_REGISTERS[1], 1)
            for i in T.Parallel(_ROWS):
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
            _scores(q_shared[group, :, :], k_shared[0, :, :], p_frag)
            T.barrier_wait(grad_full[0], 0)
            T.barrier_wait(v_full[0], 0)
            _scores(grad_shared[group, :, :], v_shared[0, :, :], ds_frag)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(p_frag, num_regs=score_registers)
            T.warpgroup_fence_operand(ds_frag, num_regs=score_registers)
            _give_back(tx, v_empty, 0)
            weigh(p_frag, lse, first, 0, seq)
            differ(p_frag, ds_frag, ds, delta)
            if steps > 1:
                T.barrier_wait(k_full[1], 0)
            for step in T.serial(steps - 1):
                _scores(q_shared[group, :, :], k_shared[(step + 1) % stages, :, :], p_frag)
                T.wgmma_gemm(ds, k_shared[step % stages, :, :], dq_frag, policy=policy)
                T.barrier_wait(v_full[(step + 1) % _VALUES], (step + 1) // _VALUES % 2)
                _scores(grad_shared[group, :, :], v_shared[(step + 1) % _VALUES, :, :], ds_frag)
                T.wait_wgmma(2)
                T.warpgroup_fence_operand(p_frag, num_regs=score_registers)
                weigh(p_frag, lse, first, (step + 1) * bn, seq)
                # Between here and the wait stands a branch, which the compiler does not move code over:
                # without it the exponentials above would wait for the other products too.
                T.warpgroup_fence_operand(p_frag, num_regs=score_registers)
                if step < steps - 2:
                    T.barrier_wait(k_full[(step + 2) % stages], (step + 2) // stages % 2)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(dq_frag, num_regs=output_registers)
                T.warpgroup_fence_operand(ds_frag, num_regs=score_registers)
                _give_back(tx, k_empty, step % stages)
                _give_back(tx, v_empty, (step + 1) % _VALUES)
                differ(p_frag, ds_frag, ds, delta)
            T.wgmma_gemm(ds, k_shared[(steps - 1) % stages, :, :], dq_frag, policy=policy)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(dq_frag, num_regs=output_registers)
            for i, d in T.Parallel(_ROWS, head_dim):
                dq_frag[i, d] *= 1 / math.sqrt(head_dim)
            # The queries of a warp group are its own, and no longer needed.
            _store(dq_frag, q_shared[group, :, :], dq, request, first, head)
            T.tma_store_wait(0)

        @T.macro
        def fetch_keys(step, place, k_shared, k_full, k_empty, k):
            _, head, request, _ = place
            T.barrier_wait(k_empty[step % stages], (step // stages + 1) % 2)
            T.tma_copy(
                k[request, step * bn : (step + 1) * bn, head // share, 0:head_dim],
                k_shared[step % stages, :, :],
                barrier=k_full[step % stages],
                leader_scope_threads=32,
            )
            T.barrier_arrive(k_full[step % stages])

        @T.macro
        def fetch(place, steps, buffers, barriers, q, k, v, grad_o):
            row0, head, request, _ = place
            q_shared, grad_shared, k_shared, v_shared = buffers
            q_full, grad_full, k_full, v_full, k_empty, v_empty = barriers
            for group in T.unroll(_GROUPS):
                T.tma_copy(
                    q[request, row0 + group * _ROWS : row0 + (group + 1) * _ROWS, head, 0:head_dim],
                    q_shared[group, :, :],
                    barrier=q_full[0],
                    leader_scope_threads=32,
                )
            T.barrier_arrive(q_full[0])
            fetch_keys(0, place, k_shared, k_full, k_empty, k)
            for group in T.unroll(_GROUPS):
                T.tma_copy(
                    grad_o[request, row0 + group * _ROWS : row0 + (group + 1) * _ROWS, head, 0:head_dim],
                    grad_shared[group, :, :],
                    barrier=grad_full[0],
                    leader_scope_threads=32,
                )
            T.barrier_arrive(grad_full[0])
            for step in T.serial(steps):
                if step > 0:
                    fetch_keys(step, place, k_shared, k_full, k_empty, k)
                T.barrier_wait(v_empty[step % _VALUES], (step // _VALUES + 1) % 2)
                T.tma_copy(
                    v[request, step * bn : (step + 1) * bn, head // share, 0:head_dim],
                    v_shared[step % _VALUES, :, :],
                    barrier=v_full[step % _VALUES],
                    leader_scope_threads=32,
                )
                T.barrier_arrive(v_full[step % _VALUES])

        @T.prim_func
        def attention_query_gradient_hopper(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            grad_o: T.Tensor((batch, seq, heads, head_dim), dtype),
            statistics: T.Tensor((batch, heads, tiles, 2, STATISTICS_ROWS), _ACC),
            dq: T.Tensor((batch, seq, heads, head_dim), dtype),
        ):
            with T.Kernel(T.ceildiv(seq, bm), heads, batch, threads=_PRODUCER + _GROUP) as (bx, by, bz):
                q_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                grad_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                k_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                v_shared = T.alloc_shared((_VALUES, bn, head_dim), dtype)
                q_full = T.alloc_barrier([32])
                grad_full = T.alloc_barrier([32])
                k_full = T.alloc_barrier([32] * stages)
                v_full = T.alloc_barrier([32] * _VALUES)
                k_empty = T.alloc_barrier([4 * _GROUPS] * stages)
                v_empty = T.alloc_barrier([4 * _GROUPS] * _VALUES)
                tx = T.get_thread_binding()
                # Bottom rows first: under a causal mask they have the most keys.
                row0 = (T.ceildiv(seq, bm) - 1 - bx) * bm
                steps = T.ceildiv(T.min(seq, row0 + bm), bn) if causal else T.ceildiv(seq, bn)
                place = (row0, by, bz, seq)
                buffers = (q_shared, grad_shared, k_shared, v_shared)
                barriers = (q_full, grad_full, k_full, v_full, k_empty, v_empty)

                if tx >= _PRODUCER:
                    T.set_max_nreg(_REGISTERS[0], 0)
                    if tx < _PRODUCER + 32:
                        fetch(place, steps, buffers, barriers, q, k, v, grad_o)
                elif tx < _GROUP:
                    compute(0, tx, place, steps, buffers, barriers, statistics, dq)
                else:
                    compute(1, tx, place, steps, buffers, barriers, statistics, dq)

        return attention_query_gradient_hopper


class AttentionKeyGradientHopperKernel(AttentionGradientHopperKernel):
    """`dk = ds^T q / sqrt(D)` and `dv = p^T do`; arguments as those of `AttentionKeyGradientKernel`."""

    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"sm_90a": ((None, AttentionBackwardHopperConfig(STATISTICS_ROWS, 3)),)},
        everywhere=False,
    )

    @staticmethod
    def program(*, heads, kv_heads, head_dim, dtype, causal, config):
        batch, seq, tiles = T.dynamic("batch"), T.dynamic("seq"), T.dynamic("tiles")
        bm, bn, stages = _ROWS * _GROUPS, config.step, config.num_stages
        per_tile = STATISTICS_ROWS // bn
        share = heads // kv_heads
        scale = _LOG2_E / math.sqrt(head_dim)
        score_registers, output_registers = bn * _ROWS // _GROUP, head_dim * _ROWS // _GROUP
        policy = T.GemmWarpPolicy.FullRow

        @T.macro
        def weigh(p_frag, of_queries, slot, first, col0):
            for i, j in T.Parallel(_ROWS, bn):
                p_frag[i, j] = T.exp2(p_frag[i, j] * scale - of_queries[slot, 0, j])
            if causal:  # noqa: SIM102 (a choice of program, around a branch of it)
                if col0 < first + _ROWS - 1:
                    for i, j in T.Parallel(_ROWS, bn):
                        p_frag[i, j] = T.if_then_else(col0 + j >= first + i, p_frag[i, j], 0.0)

        @T.macro
        def differ(p_frag, ds_frag, ds, of_queries, slot):
            for i, j in T.Parallel(_ROWS, bn):
                ds_frag[i, j] = p_frag[i, j] * (ds_frag[i, j] - of_queries[slot, 1, j])
            T.copy(ds_frag, ds)

        @T.macro
        def compute(group, tx, place, turns, buffers, barriers, dk, dv):
            row0, head, request, skipped = place
            k_shared, v_shared, q_shared, grad_shared, of_queries, out_shared = buffers
            k_full, v_full, q_full, grad_full, q_empty, grad_empty = barriers
            first = row0 + group * _ROWS
            p_frag = T.alloc_fragment((_ROWS, bn), _ACC)
            ds_frag = T.alloc_fragment((_ROWS, bn), _ACC)
            p = T.alloc_fragment((_ROWS, bn), dtype)
            ds = T.alloc_fragment((_ROWS, bn), dtype)
            dk_frag = T.alloc_fragment((_ROWS, head_dim), _ACC)
            dv_frag = T.alloc_fragment((_ROWS, head_dim), _ACC)
            T.set_max_nreg(_REGISTERS[1], 1)
            T.clear(dk_frag)
            T.clear(dv_frag)
            T.barrier_wait(k_full[0], 0)
            T.barrier_wait(v_full[0], 0)
            T.barrier_wait(q_full[0], 0)
            T.barrier_wait(grad_full[0], 0)
            for turn in T.serial(turns):
                _scores(k_shared[group, :, :], q_shared[turn % stages, :, :], p_frag)
                _scores(v_shared[group, :, :], grad_shared[turn % stages, :, :], ds_frag)
                T.wait_wgmma(1)
                T.warpgroup_fence_operand(p_frag, num_regs=score_registers)
                weigh(p_frag, of_queries, turn % stages, first, (skipped + T.truncdiv(turn, share)) * bn)
                T.copy(p_frag, p)
                # Between here and the wait stands a branch, which the compiler does not move code over:
                # without it the exponentials above would wait for the other product too.
                T.warpgroup_fence_operand(p_frag, num_regs=score_registers)
                if turn < turns - 1:
                    T.barrier_wait(q_full[(turn + 1) % stages], (turn + 1) // stages % 2)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(ds_frag, num_regs=score_registers)
                T.wgmma_gemm(p, grad_shared[turn % stages, :, :], dv_frag, policy=policy)
                differ(p_frag, ds_frag, ds, of_queries, turn % stages)
                T.wgmma_gemm(ds, q_shared[turn % stages, :, :], dk_frag, policy=policy)
                if turn < turns - 1:
                    T.barrier_wait(grad_full[(turn + 1) % stages], (turn + 1) // stages % 2)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(dv_frag, num_regs=output_registers)
                T.warpgroup_fence_operand(dk_frag, num_regs=output_registers)
                _give_back(tx, q_empty, turn % stages)
                _give_back(tx, grad_empty, turn % stages)
            _store(dv_frag, out_shared[group, :, :], dv, request, first, head)
            for i, d in T.Parallel(_ROWS, head_dim):
                dk_frag[i, d] *= 1 / math.sqrt(head_dim)
            _store(dk_frag, out_shared[group, :, :], dk, request, first, head)
            T.tma_store_wait(0)

        @T.macro
        def fetch(place, turns, buffers, barriers, q, k, v, grad_o, statistics):
            row0, kv_head, request, skipped = place
            k_shared, v_shared, q_shared, grad_shared, of_queries, _ = buffers
            k_full, v_full, q_full, grad_full, q_empty, grad_empty = barriers
            for group in T.unroll(_GROUPS):
                T.tma_copy(
                    k[request, row0 + group * _ROWS : row0 + (group + 1) * _ROWS, kv_head, 0:head_dim],
                    k_shared[group, :, :],
                    barrier=k_full[0],
                    leader_scope_threads=32,
                )
            T.barrier_arrive(k_full[0])
            for turn in T.serial(turns):
                step = skipped + T.truncdiv(turn, share)
                head = kv_head * share + T.truncmod(turn, share)
                T.barrier_wait(q_empty[turn % stages], (turn // stages + 1) % 2)
                T.tma_copy(
                    q[request, step * bn : (step + 1) * bn, head, 0:head_dim],
                    q_shared[turn % stages, :, :],
                    barrier=q_full[turn % stages],
                    leader_scope_threads=32,
                )
                T.tma_copy(
                    statistics[
                        request,
                        head,
                        T.truncdiv(step, per_tile),
                        0:2,
                        T.truncmod(step, per_tile) * bn : T.truncmod(step, per_tile) * bn + bn,
                    ],
                    of_queries[turn % stages, :, :],
                    barrier=q_full[turn % stages],
                    leader_scope_threads=32,
                )
                T.barrier_arrive(q_full[turn % stages])
                if turn == 0:
                    for group in T.unroll(_GROUPS):
                        T.tma_copy(
                            v[
                                request,
                                row0 + group * _ROWS : row0 + (group + 1) * _ROWS,
                                kv_head,
                                0:head_dim,
                            ],
                            v_shared[group, :, :],
                            barrier=v_full[0],
                            leader_scope_threads=32,
                        )
                    T.barrier_arrive(v_full[0])
                T.barrier_wait(grad_empty[turn % stages], (turn // stages + 1) % 2)
                T.tma_copy(
                    grad_o[request, step * bn : (step + 1) * bn, head, 0:head_dim],
                    grad_shared[turn % stages, :, :],
                    barrier=grad_full[turn % stages],
                    leader_scope_threads=32,
                )
                T.barrier_arrive(grad_full[turn % stages])

        @T.prim_func
        def attention_key_gradient_hopper(
            q: T.Tensor((batch, seq, heads, head_dim), dtype),
            k: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            v: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            grad_o: T.Tensor((batch, seq, heads, head_dim), dtype),
            statistics: T.Tensor((batch, heads, tiles, 2, STATISTICS_ROWS), _ACC),
            dk: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
            dv: T.Tensor((batch, seq, kv_heads, head_dim), dtype),
        ):
            with T.Kernel(T.ceildiv(seq, bm), kv_heads, batch, threads=_PRODUCER + _GROUP) as (bx, by, bz):
                k_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                v_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                q_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                grad_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                of_queries = T.alloc_shared((stages, 2, bn), _ACC)
                out_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                k_full = T.alloc_barrier([32])
                v_full = T.alloc_barrier([32])
                q_full = T.alloc_barrier([32] * stages)
                grad_full = T.alloc_barrier([32] * stages)
                q_empty = T.alloc_barrier([4 * _GROUPS] * stages)
                grad_empty = T.alloc_barrier([4 * _GROUPS] * stages)
                tx = T.get_thread_binding()
                # Under a causal mask the first keys are seen by the most queries, and start first.
                row0 = bx * bm
                skipped = T.truncdiv(row0, bn) if causal else 0
                turns = (T.ceildiv(seq, bn) - skipped) * share
                place = (row0, by, bz, skipped)
                buffers = (k_shared, v_shared, q_shared, grad_shared, of_queries, out_shared)
                barriers = (k_full, v_full, q_full, grad_full, q_empty, grad_empty)

                if tx >= _PRODUCER:
                    T.set_max_nreg(_REGISTERS[0], 0)
                    if tx < _PRODUCER + 32:
                        fetch(place, turns, buffers, barriers, q, k, v, grad_o, statistics)
                elif tx < _GROUP:
                    compute(0, tx, place, turns, buffers, barriers, dk, dv)
                else:
                    compute(1, tx, place, turns, buffers, barriers, dk, dv)

        return attention_key_gradient_hopper
