"""The greatest k of a range of scores, read once.

A block walks one range, tile by tile, and keeps what exceeds a threshold: at first everything, then the k-th
greatest score of what it has seen. Whenever its room is full it selects the k greatest of what it keeps,
which raises the threshold; of random scores few tiles fill the room again. Scores compare as integers
(`order_key`). The k-th greatest is found bit by bit, by counting what lies above, and places by prefix sums:
there are no atomics, and equal inputs give equal indices in equal order, whatever ties they hold.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.reduce_table import INT32_MIN, order_key
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, WARP, RowTile, row_fold

__all__ = ["TopkKernel"]

# Bits of a key below its sign.
_BITS = 31
# The count of equal keys lies above that of greater ones: both at most 2^15.
_EQUAL = 16


@dataclass(frozen=True)
class TopkConfig:
    """A tile is `threads * elements` scores; `blocks` of a multiprocessor share its registers."""

    threads: int
    elements: int
    blocks: int


def block_scan(threads: int):
    """Return a macro `(mine[threads], before[threads], total[1])`: sums over the threads before, and over all
    (local)."""
    warps = threads // WARP

    @T.macro
    def scan(mine, before, total):
        sums = T.alloc_shared((warps, WARP), "int32")
        for t in T.Parallel(threads):
            sums[t // WARP, t % WARP] = mine[t]
        T.cumsum(sums, dim=1)
        for t in T.Parallel(threads):
            before[t] = sums[t // WARP, t % WARP] - mine[t]
        total[0] = 0
        for w in T.unroll(warps):
            for t in T.Parallel(threads):
                if w < t // WARP:
                    before[t] += sums[w, WARP - 1]
            total[0] += sums[w, WARP - 1]

    return scan


def select_greatest(k: int, room: int, threads: int):
    """Return a macro `(keys[room], indices[room], state[2])`.

    Of the first state[0] > k candidates (shared) the k greatest are moved to the front, in order; state
    becomes k and the threshold, which k of the candidates reach.
    """
    each = room // threads
    tile = RowTile(rows=1, lanes=threads, unroll=1, vec=1)
    add_up, scan = row_fold(tile, "sum", "int32", 0, 1), block_scan(threads)

    @T.macro
    def count_from(bound, mine, found):
        partial = T.alloc_fragment((1, threads, 1), "int32")
        T.clear(partial)
        for w in T.unroll(each):
            for t in T.Parallel(threads):
                if mine[w, t] >= bound:
                    partial[0, t, 0] += 1
        add_up(partial, found)

    @T.macro
    def select(keys, indices, state):
        mine = T.alloc_fragment((each, threads), "int32")
        index = T.alloc_fragment((each, threads), "int32")
        found = T.alloc_fragment((1,), "int32")
        counts = T.alloc_fragment((threads,), "int32")
        before = T.alloc_fragment((threads,), "int32")
        search = T.alloc_local((2,), "int32")  # the threshold so far, how many reach it
        total = T.alloc_local((1,), "int32")
        T.annotate_layout(
            {
                mine: T.Fragment((each, threads), forward_fn=lambda w, t: (t, w)),
                index: T.Fragment((each, threads), forward_fn=lambda w, t: (t, w)),
            }
        )
        for w, t in T.Parallel(each, threads):
            if w * threads + t < state[0]:
                mine[w, t] = keys[w * threads + t]
            else:
                mine[w, t] = tirx.const(INT32_MIN, "int32")
        count_from(0, mine, found)
        search[0] = tirx.const(INT32_MIN, "int32")
        search[1] = state[0]
        if found[0] >= k:
            search[0] = 0
            search[1] = found[0]
        for bit in T.serial(_BITS):
            if search[1] != k:
                count_from(search[0] + T.shift_left(1, _BITS - 1 - bit), mine, found)
                if found[0] >= k:
                    search[0] += T.shift_left(1, _BITS - 1 - bit)
                    search[1] = found[0]

        T.clear(counts)
        for w in T.unroll(each):
            for t in T.Parallel(threads):
                index[w, t] = indices[w * threads + t]
                if mine[w, t] > search[0]:
                    counts[t] += 1
                if mine[w, t] == search[0]:
                    counts[t] += 1 << _EQUAL
        scan(counts, before, total)
        total[0] = k - T.bitwise_and(total[0], (1 << _EQUAL) - 1)  # equal ones that are taken
        for w in T.unroll(each):
            for t in T.Parallel(threads):
                greater = T.bitwise_and(before[t], (1 << _EQUAL) - 1)
                equal = T.shift_right(before[t], _EQUAL)
                slot = greater + T.min(equal, total[0])
                if mine[w, t] > search[0] or (mine[w, t] == search[0] and equal < total[0]):
                    keys[slot] = mine[w, t]
                    indices[slot] = index[w, t]
                if mine[w, t] > search[0]:
                    before[t] += 1
                if mine[w, t] == search[0]:
                    before[t] += 1 << _EQUAL
        state[0] = k
        state[1] = search[0]

    return select


class TopkKernel(Kernel):
    """`indexes[r, g]` are those of the k greatest of `scores[r, starts[r]:ends[r], g]`; -1 where there are
    fewer.

    Program arguments: scores, starts, ends, indexes (flat), row step of
    scores in vectors and number of groups.
    """

    SUPPORTED_DTYPES = frozenset({"float32"})
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    MAX_K = 1 << 14
    Config = TopkConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes["k"],
        devices={
            # Small enough that a verdict on a CPU speaks for more than one tile.
            "cpu": ((None, TopkConfig(threads=32, elements=4, blocks=1)),),
            "sm_80": (
                (4096, TopkConfig(threads=512, elements=8, blocks=2)),
                (None, TopkConfig(threads=1024, elements=2, blocks=1)),
            ),
        },
    )

    @staticmethod
    def program(*, k, vec, grouped, config):
        """Return the tile program.

        Args:
            k: indices of a range; at most `MAX_K`.
            vec: neighbouring scores read at once; 1 if `grouped`.
            grouped: there is more than one group.
            config: block geometry.
        """
        threads, unroll = config.threads, config.elements // vec
        tile, shape = threads * config.elements, (unroll, threads, vec)
        room = -(-(k + tile) // threads) * threads
        scan, select = block_scan(threads), select_greatest(k, room, threads)
        nx, nr, ny = T.dynamic("nx"), T.dynamic("nr"), T.dynamic("ny")

        def key_of(first, step, u, t):
            """Return the number of the first key that a thread reads in step `u` of a tile."""
            return first + step * tile + (u * threads + t) * vec

        @T.macro
        def load(scores, ahead, place, step, step_rows, groups):
            for u, t, v in T.Parallel(*shape):
                if key_of(place[3] * vec, step, u, t) < place[2]:
                    if grouped:
                        ahead[u, t, v] = scores[
                            place[0] * step_rows + key_of(place[3], step, u, t) * groups + place[4]
                        ]
                    else:
                        ahead[u, t, v] = scores[
                            (place[0] * step_rows + place[3] + (step * unroll + u) * threads + t) * vec + v
                        ]

        @T.macro
        def count_passing(keys, counts, threshold):
            T.clear(counts)
            for u in T.unroll(unroll):
                for v in T.unroll(vec):
                    for t in T.Parallel(threads):
                        if keys[u, t, v] > threshold:
                            counts[t] += 1

        @T.prim_func
        def topk(
            scores: T.Tensor((nx,), "float32"),
            starts: T.Tensor((nr,), "int32"),
            ends: T.Tensor((nr,), "int32"),
            indexes: T.Tensor((ny,), "int32"),
            step_rows: T.int32,
            groups: T.int32,
        ):
            with T.Kernel(nr * groups, threads=threads) as block:
                # Scalar loads take an address each, and the registers of a second block.
                T.annotate_min_blocks_per_sm(config.blocks if vec > 1 else 1)
                ahead = T.alloc_fragment(shape, "float32")
                keys = T.alloc_fragment(shape, "int32")
                counts = T.alloc_fragment((threads,), "int32")
                before = T.alloc_fragment((threads,), "int32")
                kept_keys = T.alloc_shared((room,), "int32")
                kept = T.alloc_shared((room,), "int32")
                place = T.alloc_local((5,), "int32")  # row, start, end, first vector, group
                state = T.alloc_local((2,), "int32")  # how many are kept, and the threshold
                total = T.alloc_local((1,), "int32")
                by_thread = T.Fragment(shape, forward_fn=lambda u, t, v: (t, u * vec + v))
                T.annotate_layout({ahead: by_thread, keys: by_thread})
                if grouped:
                    place[0] = T.truncdiv(block, groups)
                    place[4] = T.truncmod(block, groups)
                else:
                    place[0] = block
                place[1] = starts[place[0]]
                place[2] = ends[place[0]]
                place[3] = T.truncdiv(place[1], vec)
                start, end, first = place[1], place[2], place[3] * vec
                state[0] = 0
                state[1] = tirx.const(INT32_MIN, "int32")

                load(scores, ahead, place, 0, step_rows, groups)
                for step in T.serial(T.ceildiv(end - first, tile)):
                    for u, t, v in T.Parallel(*shape):
                        if key_of(first, step, u, t) + v >= start and key_of(first, step, u, t) + v < end:
                            keys[u, t, v] = order_key(ahead[u, t, v])
                        else:
                            keys[u, t, v] = tirx.const(INT32_MIN, "int32")
                    load(scores, ahead, place, step + 1, step_rows, groups)
                    count_passing(keys, counts, state[1])
                    scan(counts, before, total)
                    if state[0] + total[0] > room:
                        select(kept_keys, kept, state)
                        count_passing(keys, counts, state[1])
                        scan(counts, before, total)
                    for u in T.unroll(unroll):
                        for v in T.unroll(vec):
                            for t in T.Parallel(threads):
                                if keys[u, t, v] > state[1]:
                                    kept_keys[state[0] + before[t]] = keys[u, t, v]
                                    kept[state[0] + before[t]] = key_of(first, step, u, t) + v
                                    before[t] += 1
                    state[0] += total[0]
                if state[0] > k:
                    select(kept_keys, kept, state)
                for part in T.serial(T.ceildiv(k, threads)):
                    for t in T.Parallel(threads):
                        if part * threads + t < k:
                            indexes[block * k + part * threads + t] = T.if_then_else(
                                part * threads + t < state[0], kept[part * threads + t], -1
                            )

        return topk

    @classmethod
    def samples(cls):
        """Return one group, several, and many indices."""
        return (
            {"k": 1024, "vec": 4, "grouped": False},
            {"k": 2048, "vec": 4, "grouped": False},
            {"k": 17, "vec": 1, "grouped": True},
            {"k": 16384, "vec": 1, "grouped": False},
        )
