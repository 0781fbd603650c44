"""What the decoding programs share: schedules, tile sizes, the folding of one tile, the writing of a part.

One block attends one group of query heads of one request to one range of its cache. The query heads that
share a key head are the rows of a tile, so the cache is read once for all of them.

Source: arXiv:2205.14135, arXiv:2311.01282.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.attention_parts import MAX_HEAD_DIM
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = [
    "DecodeConfig",
    "SplitDecodeKernel",
    "attend_tile",
    "begin_part",
    "clear_result",
    "first_rows",
    "fold_exponents",
    "fold_scores",
    "group_tiles",
    "padded_depth",
    "pick_splits",
    "row_bytes",
    "rows_of",
    "write_part",
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


def group_tiles(heads: int, kv_heads: int) -> tuple[int, int, int]:
    """Return the query heads that share a key head, the rows of a tile of them, and how many tiles they take.

    >>> group_tiles(32, 8), group_tiles(100, 1)
    ((4, 16, 1), (100, 64, 2))
    """
    group = heads // kv_heads
    rows = rows_of(group)
    return group, rows, -(-group // rows)


def first_rows(tile, group, rows, tiles):
    """Return the key head of a tile, its first row among the heads that share it, and that row's head.

    Rows past the group belong to other heads: computed, never stored.
    """
    kv_head = tile // tiles
    first_row = (tile % tiles) * rows
    return kv_head, first_row, kv_head * group + first_row


def row_bytes(sizes) -> int:
    """Return the bytes of one row of a head, by which the tables choose: tiles are as deep as memory allows.

    >>> row_bytes({"head_dim": 128, "dtype": "bfloat16"})
    256
    """
    return sizes["head_dim"] * (4 if sizes["dtype"] == "float32" else 2)


def padded_depth(head_dim: int) -> int:
    """Return the columns of a tile: 8 for each of the four warps that share the output's columns.

    >>> padded_depth(64), padded_depth(80)
    (64, 96)
    """
    return -(-head_dim // 32) * 32


def pick_splits(blocks: int, steps: int, units: int, per_unit: int) -> int:
    """Return over how many blocks to split a cache of `steps` tiles when `blocks` exist without splitting.

    Minimises the steps that the busiest of `units` multiprocessors with `per_unit` blocks each takes; a tie
    goes to fewer splits, which are cheaper to merge. No part is shorter than two steps. Where nearly every
    multiprocessor has a block already, those draw the memory's bandwidth: parts would only add the merging.

    >>> pick_splits(blocks=256, steps=32, units=132, per_unit=2)
    1
    >>> pick_splits(blocks=128, steps=64, units=132, per_unit=2)
    1
    >>> pick_splits(blocks=64, steps=256, units=132, per_unit=1)
    2
    """
    if 7 * units <= 8 * blocks <= 8 * units:
        return 1
    slots = units * per_unit
    limit = max(1, min(steps // 2, -(-2 * slots // blocks)))
    return min(range(1, limit + 1), key=lambda s: (-(-blocks * s // slots) * -(-steps // s), s))


@T.macro
def begin_part(q, request, head0, rows, depth, bn):
    """Fetch the block's queries and return the result of no tokens, to fold tiles of `bn` tokens into.

    It is (queries, scores, probabilities in shared memory, state), and the state (output, maximum, sum, and
    scratch rows).
    """
    q_shared = T.alloc_shared((rows, depth), q.dtype)
    p_shared = T.alloc_shared((rows, bn), q.dtype)
    s_frag = T.alloc_fragment((rows, bn), _ACC)
    o_frag = T.alloc_fragment((rows, depth), _ACC)
    row_max = T.alloc_fragment((rows,), _ACC)
    row_sum = T.alloc_fragment((rows,), _ACC)
    old_max = T.alloc_fragment((rows,), _ACC)
    shift = T.alloc_fragment((rows,), _ACC)
    part_sum = T.alloc_fragment((rows,), _ACC)
    T.copy(q[request, head0 : head0 + rows, 0:depth], q_shared)
    state = (o_frag, row_max, row_sum, old_max, shift, part_sum)
    clear_result(state)
    return q_shared, s_frag, p_shared, state


@T.macro
def clear_result(state):
    """Set the state that `begin_part` describes to the result of no tokens."""
    T.clear(state[0])
    T.fill(state[1], -T.infinity(_ACC))
    T.clear(state[2])


@T.macro
def attend_tile(folded, k_shared, v_shared, token0, end, scoring):
    """Fold one tile of keys and values into the result; arguments as those of `fold_scores`."""
    T.clear(folded[1])
    tile_product(folded[0], k_shared, folded[1], False, True, T.GemmWarpPolicy.FullCol, scoring[3])
    fold_scores(folded, v_shared, token0, end, scoring)


@T.macro
def fold_scores(folded, v_shared, token0, end, scoring):
    """Fold the scores of one tile and its values into the result; tokens from `end` on are masked.

    `folded` is what `begin_part` returned, `scoring` is (capped, scale, cap, fma). Scores become base-2
    exponents: `q k * scale`, or `cap * tanh(q k * scale)` if `capped`.
    """
    s_frag = folded[1]
    capped, scale, cap, fma = scoring
    rows, bn = s_frag.shape
    for i, j in T.Parallel(rows, bn):
        if capped:
            s_frag[i, j] = cap * T.tanh(s_frag[i, j] * scale)
        else:
            s_frag[i, j] = s_frag[i, j] * scale
    if token0 + bn > end:
        for i, j in T.Parallel(rows, bn):
            s_frag[i, j] = T.if_then_else(token0 + j < end, s_frag[i, j], -T.infinity(_ACC))
    fold_exponents(v_shared, (s_frag, folded[2]), folded[3], T.GemmWarpPolicy.FullCol, fma)


@T.macro
def fold_exponents(v_shared, scores, state, policy, fma):
    """Fold one tile of masked base-2 exponents and its values into the running result.

    `scores` is (exponents, room for probabilities, a fragment where tensor cores multiply), `state` as
    `begin_part` returns it.
    """
    s_frag, probs = scores
    o_frag, row_max, row_sum, old_max, shift, part_sum = state
    rows, bn = s_frag.shape
    neg_inf = -T.infinity(_ACC)
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
    T.copy(s_frag, probs)
    tile_product(probs, v_shared, o_frag, False, False, policy, fma)


@T.macro
def write_part(folded, part, lse, request, split, head0, rows_left, head_dim, whole):
    """Write the normalised result and base-2 log-sum-exp of the first `rows_left` rows.

    A whole row that sees only scores of -inf is 0, as in PyTorch; of a part of a row the merge decides that.
    """
    state = folded[3]
    o_frag, row_max, row_sum = state[0], state[1], state[2]
    rows, depth = o_frag.shape
    for i, d in T.Parallel(rows, depth):
        if i < rows_left and d < head_dim:
            if whole:
                part[request, split, head0 + i, d] = T.if_then_else(
                    row_sum[i] == 0.0, 0.0, o_frag[i, d] / row_sum[i]
                )
            else:
                part[request, split, head0 + i, d] = o_frag[i, d] / T.max(row_sum[i], 1.0e-30)
    for i in T.Parallel(rows):
        if i < rows_left:
            lse[request, split, head0 + i] = row_max[i] + T.log2(row_sum[i])


class SplitDecodeKernel(Kernel):
    """Base of the decoding kernels: `o[b, h] = softmax(q[b, h] k[b, :, h']^T) v[b, :, h']`.

    Query head h reads key head `h' = h // group`. A program writes one normalised float32 result and its
    base-2 log-sum-exp per split, which `DecodeMergeKernel` merges; with `whole` there is one split, and what
    it writes is the result in the op's dtype.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    MAX_HEAD_DIM = MAX_HEAD_DIM
    BLOCKS_PER_UNIT = 2  # that a cache is split for, on a multiprocessor
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

    @staticmethod
    def tile_rows(group: int) -> int:
        """Return the rows of a block's tile for `group` query heads to a key head."""
        return rows_of(group)

    @classmethod
    def bulk_copies(cls, config, sizes) -> bool:
        """True if the copy engine can fetch a tile of the cache: aligned rows, next to each other."""
        return sizes["head_dim"] % 8 == 0

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        """The table's; on CUDA with one stage where the copy engine cannot serve, and exact float32."""
        config = super().default_config(target=target, arch=arch, **sizes)
        if target != "cuda":
            return config
        num_stages = config.num_stages if cls.bulk_copies(config, sizes) else 1
        return dataclasses.replace(config, num_stages=num_stages, fma=sizes["dtype"] == "float32")
