"""Attention over a cache of latents as Hopper runs it fastest: a cache that is read once for 128 heads.

The same function as `latent_decode.py`, whose tile program is the one that the CPU verifies. With that many
heads to a latent, tensor cores and memory take about as long, so both have to be busy:

* A warp of the last warp group fetches latents and positions with the copy engine into a ring of buffers.
* Two warp groups compute 64 heads each, from the same buffers. A buffer serves the scores of a step, and the
  values of that step one step later; it is given back after that.
* A warp group issues the scores of the next tokens and the values of the last ones together, and forms
  probabilities while the tensor cores are at work; the warp groups issue in turns.

Source: arXiv:2405.04434, arXiv:2407.08608.
"""

from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.errors import ConfigError
from tileops_kernels.kernels.attention_hopper_parts import fold, give_back
from tileops_kernels.kernels.base import ConfigTable
from tileops_kernels.kernels.decode_base import SplitDecodeKernel

__all__ = ["LatentDecodeHopperConfig", "LatentDecodeHopperKernel"]

_ACC = "float32"
_GROUP = 128  # threads of a warp group
_GROUPS = 2  # that compute
_ROWS = 64  # rows of the tensor core's tile, one per warp group
_PRODUCER = _GROUP * _GROUPS  # first thread that loads
_REGISTERS = (40, 232)  # of a thread that loads, and of one that computes
_FIRST_TURN = 8  # named barriers from here on are the warp groups' turns; TileLang uses those below


@dataclass(frozen=True)
class LatentDecodeHopperConfig:
    """`block_n` tokens a step, `num_stages` buffers for them, `turns`: warp groups issue one after the other.

    Raises:
        ConfigError: there are fewer than three stages, with which a block would wait for itself.
    """

    block_n: int
    num_stages: int
    turns: bool = True

    def __post_init__(self):
        if self.num_stages < 3:
            raise ConfigError(f"num_stages is {self.num_stages}, expected at least 3")


class LatentDecodeHopperKernel(SplitDecodeKernel):
    """Arguments as those of `LatentDecodeKernel`."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ARCHS = frozenset({"sm_90a"})
    BLOCKS_PER_UNIT = 1
    # (elements of a latent, elements that carry the position) that the program is written for.
    DIMS: ClassVar = frozenset({(128, 64)})
    # Roles are explicit. Without the flag every exp2 carries a rescue path for results below 2^-126.
    PASS_CONFIGS: ClassVar = {
        "tl.disable_warp_specialized": True,
        "tl.device_compile_flags": ["-ftz=true"],
    }
    Config = LatentDecodeHopperConfig
    CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={"sm_90a": ((None, LatentDecodeHopperConfig(96, 4)),)},
        everywhere=False,
    )

    @staticmethod
    def tile_rows(group: int) -> int:
        """128, of which those past the group are computed and never stored."""
        return _ROWS * _GROUPS

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        return cls.CONFIGS.pick(target, arch, sizes)

    @classmethod
    def fits(cls, device, group, head_dim, pe_dim):
        """True if this kernel is written for the device and the dims, and the heads fill both warp groups."""
        return cls.serves_device(device) and group > _ROWS and (head_dim, pe_dim) in cls.DIMS

    @staticmethod
    def program(*, heads, kv_heads, head_dim, pe_dim, dtype, whole, config):
        batch = T.dynamic("batch")
        tokens = T.dynamic("tokens")
        splits = T.dynamic("splits")
        bn, stages = config.block_n, config.num_stages
        group = heads // kv_heads
        tiles = -(-group // (_ROWS * _GROUPS))
        score_registers, output_registers = bn * _ROWS // _GROUP, head_dim * _ROWS // _GROUP

        @T.macro
        def take_turn(worker):
            if config.turns:
                T.sync_threads(_FIRST_TURN + worker, 2 * _GROUP)

        @T.macro
        def pass_turn(worker):
            if config.turns:
                T.named_barrier_arrive(_FIRST_TURN + 1 - worker, 2 * _GROUP)

        @T.macro
        def issue_scores(worker, slot, buffers, s_frag):
            q_shared, q_pe_shared, k_shared, k_pe_shared = buffers
            T.wgmma_gemm(
                q_shared[worker, :, :],
                k_shared[slot, :, :],
                s_frag,
                transpose_B=True,
                policy=T.GemmWarpPolicy.FullRow,
                clear_accum=True,
            )
            T.wgmma_gemm(
                q_pe_shared[worker, :, :],
                k_pe_shared[slot, :, :],
                s_frag,
                transpose_B=True,
                policy=T.GemmWarpPolicy.FullRow,
            )

        @T.macro
        def mask(s_frag, token0, tokens):
            if token0 + bn > tokens:
                for i, j in T.Parallel(_ROWS, bn):
                    s_frag[i, j] = T.if_then_else(token0 + j < tokens, s_frag[i, j], -T.infinity(_ACC))

        @T.macro
        def compute(worker, tx, place, extent, buffers, barriers, part, lse, scale):
            request, split, kv_head, first_row = place
            first, steps, tokens = extent
            k_shared = buffers[2]
            q_full, full, empty = barriers
            s_frag = T.alloc_fragment((_ROWS, bn), _ACC)
            probs = T.alloc_fragment((_ROWS, bn), dtype)
            o_frag = T.alloc_fragment((_ROWS, head_dim), _ACC)
            row_max = T.alloc_fragment((_ROWS,), _ACC)
            row_sum = T.alloc_fragment((_ROWS,), _ACC)
            old_max = T.alloc_fragment((_ROWS,), _ACC)
            shift = T.alloc_fragment((_ROWS,), _ACC)
            rescale = T.alloc_fragment((_ROWS,), _ACC)
            sums = T.alloc_fragment((_ROWS, 8), _ACC)
            row0 = first_row + worker * _ROWS
            T.set_max_nreg(_REGISTERS[1], 1)
            if worker == _GROUPS - 1:
                pass_turn(worker)
            T.clear(o_frag)
            T.clear(sums)
            T.fill(row_max, -T.infinity(_ACC))

            T.barrier_wait(q_full[0], 0)
            T.barrier_wait(full[0], 0)
            take_turn(worker)
            issue_scores(worker, 0, buffers, s_frag)
            pass_turn(worker)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(s_frag, num_regs=score_registers)
            mask(s_frag, first, tokens)
            fold(s_frag, row_max, sums, old_max, shift, rescale, scale)
            T.copy(s_frag, probs)
            if steps > 1:
                T.barrier_wait(full[1], 0)

            for step in T.serial(steps - 1):
                take_turn(worker)
                issue_scores(worker, (step + 1) % stages, buffers, s_frag)
                T.wgmma_gemm(probs, k_shared[step % stages, :, :], o_frag, policy=T.GemmWarpPolicy.FullRow)
                pass_turn(worker)
                T.wait_wgmma(1)
                T.warpgroup_fence_operand(s_frag, num_regs=score_registers)
                mask(s_frag, first + (step + 1) * bn, tokens)
                fold(s_frag, row_max, sums, old_max, shift, rescale, scale)
                # Between here and the wait stands a branch, which the compiler does not move code over:
                # without it the exponentials above would wait for the values' product too.
                T.warpgroup_fence_operand(s_frag, num_regs=score_registers)
                if step < steps - 2:
                    T.barrier_wait(full[(step + 2) % stages], (step + 2) // stages % 2)
                T.wait_wgmma(0)
                T.warpgroup_fence_operand(o_frag, num_regs=output_registers)
                give_back(tx, empty, step % stages)
                for i, d in T.Parallel(_ROWS, head_dim):
                    o_frag[i, d] *= rescale[i]
                T.copy(s_frag, probs)

            T.wgmma_gemm(probs, k_shared[(steps - 1) % stages, :, :], o_frag, policy=T.GemmWarpPolicy.FullRow)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(o_frag, num_regs=output_registers)
            T.reduce_sum(sums, row_sum, dim=1)
            for i in T.Parallel(_ROWS):
                # Heads that see only scores of -inf get 0, as in PyTorch; of a part the merge decides that.
                rescale[i] = T.if_then_else(row_sum[i] == 0.0, 0.0, 1.0 / row_sum[i])
            for i, d in T.Parallel(_ROWS, head_dim):
                if row0 + i < group:
                    part[request, split, kv_head * group + row0 + i, d] = o_frag[i, d] * rescale[i]
            for i in T.Parallel(_ROWS):
                if row0 + i < group:
                    lse[request, split, kv_head * group + row0 + i] = shift[i] + T.log2(row_sum[i])

        @T.macro
        def fetch(place, extent, buffers, barriers, q, q_pe, k, k_pe):
            request, _, kv_head, first_row = place
            first, steps, _ = extent
            q_shared, q_pe_shared, k_shared, k_pe_shared = buffers
            q_full, full, empty = barriers
            for worker in T.unroll(_GROUPS):
                head0 = kv_head * group + first_row + worker * _ROWS
                T.tma_copy(
                    q[request, head0 : head0 + _ROWS, 0:head_dim],
                    q_shared[worker, :, :],
                    barrier=q_full[0],
                    leader_scope_threads=32,
                )
                T.tma_copy(
                    q_pe[request, head0 : head0 + _ROWS, 0:pe_dim],
                    q_pe_shared[worker, :, :],
                    barrier=q_full[0],
                    leader_scope_threads=32,
                )
            T.barrier_arrive(q_full[0])
            for step in T.serial(steps):
                token0 = first + step * bn
                T.barrier_wait(empty[step % stages], (step // stages + 1) % 2)
                T.tma_copy(
                    k[request, token0 : token0 + bn, kv_head, 0:head_dim],
                    k_shared[step % stages, :, :],
                    barrier=full[step % stages],
                    leader_scope_threads=32,
                )
                T.tma_copy(
                    k_pe[request, token0 : token0 + bn, kv_head, 0:pe_dim],
                    k_pe_shared[step % stages, :, :],
                    barrier=full[step % stages],
                    leader_scope_threads=32,
                )
                T.barrier_arrive(full[step % stages])

        @T.prim_func
        def latent_decode_hopper(
            q: T.Tensor((batch, heads, head_dim), dtype),
            q_pe: T.Tensor((batch, heads, pe_dim), dtype),
            k: T.Tensor((batch, tokens, kv_heads, head_dim), dtype),
            k_pe: T.Tensor((batch, tokens, kv_heads, pe_dim), dtype),
            part: T.Tensor((batch, splits, heads, head_dim), dtype if whole else _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            scale: T.float32,
        ):
            with T.Kernel(splits, kv_heads * tiles, batch, threads=_PRODUCER + _GROUP) as (bx, by, bz):
                q_shared = T.alloc_shared((_GROUPS, _ROWS, head_dim), dtype)
                q_pe_shared = T.alloc_shared((_GROUPS, _ROWS, pe_dim), dtype)
                k_shared = T.alloc_shared((stages, bn, head_dim), dtype)
                k_pe_shared = T.alloc_shared((stages, bn, pe_dim), dtype)
                q_full = T.alloc_barrier([32])
                full = T.alloc_barrier([32] * stages)
                empty = T.alloc_barrier([4 * _GROUPS] * stages)
                tx = T.get_thread_binding()
                # Every split walks the same number of steps; those past the end of the cache are masked.
                steps = T.ceildiv(T.ceildiv(tokens, bn), splits)
                place = (bz, bx, by // tiles, (by % tiles) * _ROWS * _GROUPS)
                extent = (bx * steps * bn, steps, tokens)
                buffers = (q_shared, q_pe_shared, k_shared, k_pe_shared)
                barriers = (q_full, full, empty)

                if tx >= _PRODUCER:
                    T.set_max_nreg(_REGISTERS[0], 0)
                    if tx < _PRODUCER + 32:
                        fetch(place, extent, buffers, barriers, q, q_pe, k, k_pe)
                elif tx < _GROUP:
                    compute(0, tx, place, extent, buffers, barriers, part, lse, scale)
                else:
                    compute(1, tx, place, extent, buffers, barriers, part, lse, scale)

        return latent_decode_hopper

    @classmethod
    def samples(cls):
        deepseek = {"heads": 128, "kv_heads": 1, "head_dim": 128, "pe_dim": 64, "dtype": "bfloat16"}
        return (
            {**deepseek, "whole": False},
            {**deepseek, "whole": True, "dtype": "float16"},
            {**deepseek, "whole": False, "heads": 200, "kv_heads": 2},
        )
