"""What attention's programs with Hopper's explicit schedule are made of.

* A warp of the last warp group fetches with the copy engine into rings of buffers; `full` and `empty`
  barriers pass the buffers to and fro.
* Two warp groups compute, each its own 64 rows of the tile that the block owns.
"""

from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import Kernel

__all__ = [
    "GROUP",
    "GROUPS",
    "OWN_ROWS",
    "PRODUCER",
    "ROWS",
    "HopperAttentionKernel",
    "fetch",
    "fetch_own",
    "fetch_step",
    "fold",
    "give_back",
    "registers",
    "scores",
    "store",
    "take_roles",
]

_ACC = "float32"
GROUP = 128  # threads of a warp group
GROUPS = 2  # that compute
ROWS = 64  # rows of the tensor core's tile, one per warp group
OWN_ROWS = ROWS * GROUPS
PRODUCER = GROUP * GROUPS  # first thread that loads


class HopperAttentionKernel(Kernel):
    """Base of attention's programs that are written for Hopper alone: 16-bit heads of 64 and 128."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    ARCHS = frozenset({"sm_90a"})
    HEAD_DIMS = frozenset({64, 128})
    # Roles are explicit. Without the flag every exp2 carries a rescue path for results below 2^-126.
    PASS_CONFIGS: ClassVar = {
        "tl.disable_warp_specialized": True,
        "tl.device_compile_flags": ["-ftz=true"],
    }

    @classmethod
    def fits(cls, device, head_dim, dtype):
        """True if this kernel is written for the device, the head dim and the dtype."""
        return cls.serves_device(device) and head_dim in cls.HEAD_DIMS and dtype in cls.SUPPORTED_DTYPES


def registers(columns):
    """Return the registers of a thread that an accumulator of a warp group takes.

    >>> registers(128)
    64
    """
    return columns * ROWS // GROUP


@T.macro
def give_back(tx, barrier, slot):
    """Say, once per warp, that a buffer may be filled again."""
    if tx % 32 == 0:
        T.barrier_arrive(barrier[slot])


@T.macro
def scores(a, b, s_frag):
    """Issue `s_frag = a b^T`."""
    T.wgmma_gemm(a, b, s_frag, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)


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


@T.macro
def store(result, through, out, request, row0, head):
    """Start to write the rows of a warp group, through a buffer that is theirs alone."""
    T.copy(result, through)
    T.fence_proxy_async()
    T.tma_copy(through, out[request, row0 : row0 + ROWS, head, 0 : result.shape[1]])


@T.macro
def fetch(source, request, row0, rows, head, buffer, full, slot):
    """Start to fetch rows of a head. That the warp arrives at the barrier is left to the caller."""
    T.tma_copy(
        source[request, row0 : row0 + rows, head, 0 : source.shape[3]],
        buffer,
        barrier=full[slot],
        leader_scope_threads=32,
    )


@T.macro
def fetch_own(source, request, row0, head, buffers, full):
    """Fetch the rows that the block owns."""
    for group in T.unroll(GROUPS):
        fetch(source, request, row0 + group * ROWS, ROWS, head, buffers[group, :, :], full, 0)
    T.barrier_arrive(full[0])


@T.macro
def fetch_step(source, request, row0, rows, head, buffers, full, empty, slot, lap):
    """Fetch the rows of a step, once they that compute have given back the buffer; `lap` counts its uses."""
    T.barrier_wait(empty[slot], (lap + 1) % 2)
    fetch(source, request, row0, rows, head, buffers[slot, :, :], full, slot)
    T.barrier_arrive(full[slot])


@T.macro
def take_roles(walk, allowance, tx, place, buffers, barriers, operands):
    """Have each warp do its part of a walk.

    `walk` has two macros: `fetch(place, buffers, barriers, operands)` for the warp that loads, and
    `compute(group, tx, place, buffers, barriers, operands)`. `allowance` is the registers of a thread that
    loads, and of one that computes.
    """
    if tx >= PRODUCER:
        T.set_max_nreg(allowance[0], 0)
        if tx < PRODUCER + 32:
            walk.fetch(place, buffers, barriers, operands)
    elif tx < GROUP:
        T.set_max_nreg(allowance[1], 1)
        walk.compute(0, tx, place, buffers, barriers, operands)
    else:
        T.set_max_nreg(allowance[1], 1)
        walk.compute(1, tx, place, buffers, barriers, operands)
