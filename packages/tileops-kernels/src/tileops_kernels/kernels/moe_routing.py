"""Where the copies of routed tokens go: a counting sort by expert that keeps their order.

Copy c is the c-th entry of `topk_ids`, on its way to one bucket: its expert, or the bucket behind the local
experts if it is elsewhere. A block ranks a chunk of copies by comparing each with all others of its chunk,
which needs no atomics and no order of threads; one block then sums up the counts of chunks and buckets. The
place of a copy is `start of its bucket + base of its chunk + rank in its chunk`: equal inputs give equal
places.

Up to `CHUNK` copies are one chunk, and one block does all of it.

Source: arXiv:2211.15841.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

CHUNK = 256
# A block has a place in shared memory for every expert, and 32 registers a thread for their sizes.
MAX_EXPERTS = 4096
# Most threads of the block that sums up counts; of so many chunks it reads the counts at once.
MOST_THREADS = 1024
_AHEAD = 16
# Neighbours that are read from shared memory in one access.
_QUAD = 4


@dataclass(frozen=True)
class RoutingConfig:
    """`threads` of a block at most."""

    threads: int


def configs(threads: int) -> ConfigTable:
    """Return a table with one config."""
    row = ((None, RoutingConfig(threads)),)
    return ConfigTable(size=lambda sizes: 0, devices={"cpu": row, "sm_80": row})


class RoutingKernel(Kernel):
    """Base of the kernels that find places; a block of most of them has a thread per copy of a chunk."""

    SUPPORTED_DTYPES = frozenset({"int32"})
    PASS_CONFIGS = PASS_CONFIGS
    Config = RoutingConfig
    CONFIGS = configs(CHUNK)


def padded(buckets: int) -> int:
    """Return how many values are scanned for so many buckets: a power of two.

    >>> padded(5), padded(257)
    (32, 512)
    """
    return max(32, 1 << (buckets - 1).bit_length())


def bucket_of(local: int, mapped: bool):
    """Return `(topk_ids, expert_map, copy) -> bucket`; `local` is the bucket of experts mapped to -1."""

    def bucket(topk_ids, expert_map, copy):
        if not mapped:
            return topk_ids[copy]
        return T.if_then_else(expert_map[topk_ids[copy]] < 0, local, expert_map[topk_ids[copy]])

    return bucket


def rank_chunk(buckets: int, bucket):
    """Return a macro `(topk_ids, expert_map, chunk, copies, mine[CHUNK], before[CHUNK], tally[buckets])`.

    `mine` is the bucket of each copy of a chunk, -1 past the last one, `before` how many copies of the chunk
    with the same bucket come before it, `tally` (shared) how many each bucket has.
    """

    @T.macro
    def rank(topk_ids, expert_map, chunk, copies, mine, before, tally):
        everyone = T.alloc_shared((CHUNK,), "int32")
        same = T.alloc_fragment((CHUNK,), "int32")
        quad = T.alloc_local((_QUAD,), "int32")
        for e in T.Parallel(buckets):
            tally[e] = 0
        for i in T.Parallel(CHUNK):
            if chunk * CHUNK + i < copies:
                mine[i] = bucket(topk_ids, expert_map, chunk * CHUNK + i)
            else:
                mine[i] = -1
        T.copy(mine, everyone)
        T.clear(same)
        T.clear(before)
        for step in T.serial(CHUNK // _QUAD):
            for q in T.vectorized(_QUAD):
                quad[q] = everyone[step * _QUAD + q]
            for q in T.unroll(_QUAD):
                for i in T.Parallel(CHUNK):
                    if mine[i] == quad[q]:
                        same[i] += 1
                        if step * _QUAD + q < i:
                            before[i] += 1
        # The last copy of each bucket knows how many there are.
        for i in T.Parallel(CHUNK):
            if mine[i] >= 0 and before[i] == same[i] - 1:
                tally[mine[i]] = same[i]

    return rank


def chunk_memory(buckets: int):
    """Return what `rank_chunk` writes of a chunk, allocated: `mine`, `before` and `tally`."""
    mine = T.alloc_fragment((CHUNK,), "int32")
    before = T.alloc_fragment((CHUNK,), "int32")
    tally = T.alloc_shared((buckets,), "int32")
    return mine, before, tally


def start_memory(buckets: int):
    """Return what starts are found from, allocated: the size of each bucket, and (shared) its start."""
    width = padded(buckets)
    return T.alloc_fragment((width,), "int32"), T.alloc_shared((width,), "int32")


def keep_ranks(buckets: int, bucket):
    """Return a macro `(topk_ids, expert_map, chunk, copies, rank, counts)`: what `rank_chunk` finds, kept for
    other blocks as rank per copy and counts of chunks x buckets."""
    rank_copies = rank_chunk(buckets, bucket)

    @T.macro
    def keep(topk_ids, expert_map, chunk, copies, rank, counts):
        mine, before, tally = chunk_memory(buckets)
        rank_copies(topk_ids, expert_map, chunk, copies, mine, before, tally)
        for i in T.Parallel(CHUNK):
            if chunk * CHUNK + i < copies:
                rank[chunk * CHUNK + i] = before[i]
        for e in T.Parallel(buckets):
            counts[chunk * buckets + e] = tally[e]

    return keep


def sum_chunks(buckets: int, threads: int):
    """Return a macro `(counts, chunks, size[padded(buckets)])`.

    Counts of chunks x buckets become, in place, what the chunks before have of the bucket; `size` is what all
    have.
    """
    width = padded(buckets)
    ahead = max(1, _AHEAD * threads // width)

    @T.macro
    def accumulate(counts, chunks, size):
        read = T.alloc_fragment((ahead, width), "int32")
        T.clear(size)
        for first in T.serial(T.ceildiv(chunks, ahead)):
            for a, e in T.Parallel(ahead, width):
                if first * ahead + a < chunks and e < buckets:
                    read[a, e] = counts[(first * ahead + a) * buckets + e]
                else:
                    read[a, e] = 0
            for a in T.unroll(ahead):
                for e in T.Parallel(width):
                    if first * ahead + a < chunks and e < buckets:
                        counts[(first * ahead + a) * buckets + e] = size[e]
                    size[e] += read[a, e]

    return accumulate


def take_tally(buckets: int):
    """Return a macro `(tally[buckets], size[padded(buckets)])` that does for one chunk what `sum_chunks` does
    for many."""

    @T.macro
    def take(tally, size):
        for e in T.Parallel(padded(buckets)):
            if e < buckets:
                size[e] = tally[e]
            else:
                size[e] = 0

    return take


@T.macro
def exclusive_sum(values, sums, width):
    """sums[i] (shared) becomes the sum of values[j < i] (a fragment)."""
    T.copy(values, sums)
    T.cumsum(sums)
    for e in T.Parallel(width):
        sums[e] -= values[e]
