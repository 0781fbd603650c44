"""Token rows gathered by expert, without padding: ranks, starts, then one read and `top_k` writes of a row.

Source: arXiv:2211.15841.
"""

import tilelang.language as T

from tileops_kernels.kernels.moe_routing import (
    CHUNK,
    MOST_THREADS,
    RoutingKernel,
    bucket_of,
    chunk_memory,
    configs,
    exclusive_sum,
    keep_ranks,
    padded,
    rank_chunk,
    start_memory,
    sum_chunks,
    take_tally,
)
from tileops_kernels.kernels.moe_rows import MoeRowsKernel, locate

__all__ = ["MoePermuteKernel", "MoePermuteRankKernel", "MoePermuteRouteKernel", "MoePermuteStartKernel"]

_SHARES = ({"local": 256, "mapped": False}, {"local": 128, "mapped": True})


def _write_starts(local: int):
    """Return a macro that writes the starts and sizes of the local experts and the number of their copies."""
    width = padded(local + 1)

    @T.macro
    def write(size, starts, offsets, sizes, first):
        exclusive_sum(size, starts, width)
        for e in T.Parallel(width):
            if e < local:
                offsets[e] = starts[e]
                sizes[e] = size[e]
            if e <= local:
                first[e] = T.cast(starts[e], "int64")

    return write


class MoePermuteRankKernel(RoutingKernel):
    """Rank of every copy in its chunk, and what each chunk has of each bucket.

    Program arguments: topk_ids, expert_map, rank (per copy), counts (chunks x (local + 1), flat).
    """

    @staticmethod
    def program(*, local, mapped, config):
        """Return the tile program.

        Args:
            local: local experts; the bucket behind them is for copies that go elsewhere.
            mapped: read local numbers from expert_map, which is otherwise not looked at.
            config: block geometry.
        """
        buckets = local + 1
        copies, experts, nc = T.dynamic("copies"), T.dynamic("experts"), T.dynamic("nc")
        keep = keep_ranks(buckets, bucket_of(local, mapped))

        @T.prim_func
        def permute_rank(
            topk_ids: T.Tensor((copies,), "int32"),
            expert_map: T.Tensor((experts,), "int32"),
            rank: T.Tensor((copies,), "int32"),
            counts: T.Tensor((nc,), "int32"),
        ):
            with T.Kernel(T.ceildiv(copies, CHUNK), threads=config.threads) as chunk:
                keep(topk_ids, expert_map, chunk, copies, rank, counts)

        return permute_rank

    @classmethod
    def samples(cls):
        """Return a layer with all experts and a share of one."""
        return _SHARES


class MoePermuteStartKernel(RoutingKernel):
    """Starts of chunks and experts, by one block.

    Program arguments: counts (chunks x (local + 1), flat; become sums over the chunks before), first rows and
    numbers of rows of the local experts, the former once more in 64 bits and with their end, number of
    chunks.
    """

    CONFIGS = configs(MOST_THREADS)

    @staticmethod
    def program(*, local, config):
        """Return the tile program for so many local experts."""
        buckets = local + 1
        width, nc = padded(buckets), T.dynamic("nc")
        threads = min(width, config.threads)
        accumulate, write_starts = sum_chunks(buckets, threads), _write_starts(local)

        @T.prim_func
        def permute_start(
            counts: T.Tensor((nc,), "int32"),
            offsets: T.Tensor((local,), "int32"),
            sizes: T.Tensor((local,), "int32"),
            first: T.Tensor((buckets,), "int64"),
            chunks: T.int32,
        ):
            with T.Kernel(1, threads=threads):
                size, starts = start_memory(buckets)
                accumulate(counts, chunks, size)
                write_starts(size, starts, offsets, sizes, first)

        return permute_start

    @classmethod
    def samples(cls):
        """Return a layer of common size and one with more experts than threads."""
        return ({"local": 384}, {"local": 3000})


class MoePermuteRouteKernel(RoutingKernel):
    """What `MoePermuteRankKernel` and `MoePermuteStartKernel` do, for one chunk of copies.

    Program arguments: topk_ids, expert_map, rank (per copy), then the outputs of the latter.
    """

    @staticmethod
    def program(*, local, mapped, config):
        """Return the tile program; arguments as those of `MoePermuteRankKernel.program`."""
        buckets = local + 1
        copies, experts = T.dynamic("copies"), T.dynamic("experts")
        rank_copies = rank_chunk(buckets, bucket_of(local, mapped))
        take, write_starts = take_tally(buckets), _write_starts(local)

        @T.prim_func
        def permute_route(
            topk_ids: T.Tensor((copies,), "int32"),
            expert_map: T.Tensor((experts,), "int32"),
            rank: T.Tensor((copies,), "int32"),
            offsets: T.Tensor((local,), "int32"),
            sizes: T.Tensor((local,), "int32"),
            first: T.Tensor((buckets,), "int64"),
        ):
            with T.Kernel(1, threads=config.threads):
                mine, before, tally = chunk_memory(buckets)
                size, starts = start_memory(buckets)
                rank_copies(topk_ids, expert_map, 0, copies, mine, before, tally)
                for i in T.Parallel(CHUNK):
                    if i < copies:
                        rank[i] = before[i]
                take(tally, size)
                write_starts(size, starts, offsets, sizes, first)

        return permute_route

    @classmethod
    def samples(cls):
        """Return a layer with all experts and a share of one."""
        return _SHARES


class MoePermuteKernel(MoeRowsKernel):
    """Rows of tokens to the places of their copies, and the places; rows past the local copies become zero.

    Program arguments: x (flat), topk_ids, expert_map, rank, bases (chunks x (local + 1), flat; not looked at
    for one chunk), starts of the buckets, output (flat), places (-1 for copies that go elsewhere), number of
    tokens, row step of x and columns in vectors.
    """

    @staticmethod
    def program(*, top_k, local, mapped, alone, dtype, vec, config):
        """Return the tile program.

        Args:
            top_k: copies of a token.
            local: local experts.
            mapped: read local numbers from expert_map, which is otherwise not looked at.
            alone: there is one chunk of copies.
            dtype: dtype of the rows.
            vec: elements of a vector.
            config: block geometry.
        """
        threads, buckets = config.threads, local + 1
        bucket = bucket_of(local, mapped)
        nx, ny, nb = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("nb")
        copies, experts = T.dynamic("copies"), T.dynamic("experts")

        @T.prim_func
        def permute(
            x: T.Tensor((nx,), dtype),
            topk_ids: T.Tensor((copies,), "int32"),
            expert_map: T.Tensor((experts,), "int32"),
            rank: T.Tensor((copies,), "int32"),
            bases: T.Tensor((nb,), "int32"),
            starts: T.Tensor((buckets,), "int64"),
            output: T.Tensor((ny,), dtype),
            places: T.Tensor((copies,), "int32"),
            tokens: T.int32,
            step: T.int32,
            columns: T.int32,
        ):
            with T.Kernel(tokens * T.ceildiv(columns, threads), threads=threads) as block:
                place = T.alloc_local((2,), "int32")
                values = T.alloc_fragment((threads, vec), dtype)
                zeros = T.alloc_fragment((threads, vec), dtype)
                row = T.alloc_shared((top_k,), "int32")
                here = T.alloc_shared((top_k,), "int32")
                by_thread = T.Fragment((threads, vec), forward_fn=lambda t, v: (t, v))
                T.annotate_layout({values: by_thread, zeros: by_thread})
                locate(block, columns, threads, place)
                token, start = place[0], place[1]

                for t, v in T.Parallel(threads, vec):
                    if start + t < columns:
                        values[t, v] = x[(token * step + start + t) * vec + v]
                for j in T.Parallel(top_k):
                    goal = bucket(topk_ids, expert_map, token * top_k + j)
                    row[j] = T.cast(starts[goal], "int32") + rank[token * top_k + j]
                    if not alone:
                        row[j] += bases[(token * top_k + j) // CHUNK * buckets + goal]
                    here[j] = T.if_then_else(goal < local, 1, 0)
                if start == 0:
                    for j in T.Parallel(top_k):
                        places[token * top_k + j] = T.if_then_else(here[j] == 1, row[j], -1)

                T.clear(zeros)
                for j in T.serial(top_k):
                    if here[j] == 1:
                        for t, v in T.Parallel(threads, vec):
                            if start + t < columns:
                                output[(row[j] * columns + start + t) * vec + v] = values[t, v]
                    else:
                        for t, v in T.Parallel(threads, vec):
                            if start + t < columns:
                                output[(row[j] * columns + start + t) * vec + v] = zeros[t, v]

        return permute

    @classmethod
    def samples(cls):
        """Return a layer with all experts and a share of one, of one chunk."""
        return (
            {"top_k": 8, **_SHARES[0], "alone": False, "dtype": "bfloat16", "vec": 8},
            {"top_k": 3, **_SHARES[1], "alone": True, "dtype": "float16", "vec": 1},
            {"top_k": 8, **_SHARES[1], "alone": False, "dtype": "bfloat16", "vec": 8},
        )
