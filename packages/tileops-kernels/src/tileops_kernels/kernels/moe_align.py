"""Token copies listed by expert, each expert's part padded to whole blocks of a grouped product.

The list is filled with the padding id first, then every copy writes its own place; the first copy of every
block of the list names the expert of the block.

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

__all__ = ["MoeAlignKernel", "MoeAlignPlaceKernel", "MoeAlignRankKernel", "MoeAlignStartKernel"]

_SAMPLES = ({"experts": 256, "block_size": 64},)


def _fill(threads: int):
    """Return a macro `(chunk, chunks, copies, listed, owners)`: the share of a chunk of padding ids, and of
    blocks without an expert."""

    @T.macro
    def fill(chunk, chunks, copies, listed, owners, capacity, blocks):
        for step in T.serial(T.ceildiv(capacity, chunks * threads)):
            for i in T.Parallel(threads):
                if (step * chunks + chunk) * threads + i < capacity:
                    listed[(step * chunks + chunk) * threads + i] = copies
        for step in T.serial(T.ceildiv(blocks, chunks * threads)):
            for i in T.Parallel(threads):
                if (step * chunks + chunk) * threads + i < blocks:
                    owners[(step * chunks + chunk) * threads + i] = -1

    return fill


def _padded_starts(experts: int, block_size: int):
    """Return a macro `(size, starts, total)`: where the padded part of each expert starts (shared), and the
    end of the last."""
    width = padded(experts)

    @T.macro
    def find(size, starts, total):
        for e in T.Parallel(width):
            size[e] = (size[e] + block_size - 1) // block_size * block_size
        exclusive_sum(size, starts, width)
        for e in T.Parallel(width):
            if e == experts - 1:
                total[0] = starts[e] + size[e]

    return find


def _list_copy(block_size: int):
    """Return a macro `(place, copy, expert, listed, owners)`."""

    @T.macro
    def write(place, copy, expert, listed, owners):
        listed[place] = copy
        if place % block_size == 0:
            owners[place // block_size] = expert

    return write


class MoeAlignRankKernel(RoutingKernel):
    """Rank of every copy in its chunk, and what each chunk has of each expert; the list, filled.

    Program arguments: topk_ids, rank (per copy), counts (chunks x experts, flat), list, experts of its
    blocks.
    """

    @staticmethod
    def program(*, experts, config):
        """Return the tile program for so many experts."""
        copies, nc = T.dynamic("copies"), T.dynamic("nc")
        capacity, blocks = T.dynamic("capacity"), T.dynamic("blocks")
        keep, fill = keep_ranks(experts, bucket_of(experts, False)), _fill(CHUNK)

        @T.prim_func
        def align_rank(
            topk_ids: T.Tensor((copies,), "int32"),
            rank: T.Tensor((copies,), "int32"),
            counts: T.Tensor((nc,), "int32"),
            listed: T.Tensor((capacity,), "int32"),
            owners: T.Tensor((blocks,), "int32"),
        ):
            with T.Kernel(T.ceildiv(copies, CHUNK), threads=config.threads) as chunk:
                fill(chunk, T.ceildiv(copies, CHUNK), copies, listed, owners, capacity, blocks)
                keep(topk_ids, topk_ids, chunk, copies, rank, counts)

        return align_rank

    @classmethod
    def samples(cls):
        """Return a layer of common size."""
        return ({"experts": 256},)


class MoeAlignStartKernel(RoutingKernel):
    """Starts of chunks and of padded parts, by one block.

    Program arguments: counts (chunks x experts, flat; become sums over the chunks before), starts of the
    experts, padded total, number of chunks.
    """

    CONFIGS = configs(MOST_THREADS)

    @staticmethod
    def program(*, experts, block_size, config):
        """Return the tile program.

        Args:
            experts: experts of the layer.
            block_size: places that an expert's part is a multiple of.
            config: block geometry.
        """
        width, nc = padded(experts), T.dynamic("nc")
        threads = min(width, config.threads)
        accumulate, find_starts = sum_chunks(experts, threads), _padded_starts(experts, block_size)

        @T.prim_func
        def align_start(
            counts: T.Tensor((nc,), "int32"),
            starts: T.Tensor((experts,), "int32"),
            total: T.Tensor((1,), "int32"),
            chunks: T.int32,
        ):
            with T.Kernel(1, threads=threads):
                size, scanned = start_memory(experts)
                accumulate(counts, chunks, size)
                find_starts(size, scanned, total)
                for e in T.Parallel(width):
                    if e < experts:
                        starts[e] = scanned[e]

        return align_start

    @classmethod
    def samples(cls):
        """Return a layer of common size and one with more experts than threads."""
        return (*_SAMPLES, {"experts": 3000, "block_size": 48})


class MoeAlignPlaceKernel(RoutingKernel):
    """Every copy into the list.

    Program arguments: topk_ids, rank (per copy), bases (chunks x experts, flat), starts of the experts, list,
    experts of its blocks.
    """

    @staticmethod
    def program(*, experts, block_size, config):
        """Return the tile program; arguments as those of `MoeAlignStartKernel.program`."""
        copies, nc = T.dynamic("copies"), T.dynamic("nc")
        capacity, blocks = T.dynamic("capacity"), T.dynamic("blocks")
        write = _list_copy(block_size)

        @T.prim_func
        def align_place(
            topk_ids: T.Tensor((copies,), "int32"),
            rank: T.Tensor((copies,), "int32"),
            bases: T.Tensor((nc,), "int32"),
            starts: T.Tensor((experts,), "int32"),
            listed: T.Tensor((capacity,), "int32"),
            owners: T.Tensor((blocks,), "int32"),
        ):
            with T.Kernel(T.ceildiv(copies, CHUNK), threads=config.threads) as chunk:
                for i in T.Parallel(CHUNK):
                    if chunk * CHUNK + i < copies:
                        expert = topk_ids[chunk * CHUNK + i]
                        place = starts[expert] + bases[chunk * experts + expert] + rank[chunk * CHUNK + i]
                        write(place, chunk * CHUNK + i, expert, listed, owners)

        return align_place

    @classmethod
    def samples(cls):
        """Return a layer of common size."""
        return _SAMPLES


class MoeAlignKernel(RoutingKernel):
    """All of it for one chunk of copies, by one block.

    Program arguments: topk_ids, list, experts of its blocks, padded total.
    """

    @staticmethod
    def program(*, experts, block_size, config):
        """Return the tile program; arguments as those of `MoeAlignStartKernel.program`."""
        copies, capacity, blocks = T.dynamic("copies"), T.dynamic("capacity"), T.dynamic("blocks")
        rank_copies, fill = rank_chunk(experts, bucket_of(experts, False)), _fill(CHUNK)
        take, find_starts = take_tally(experts), _padded_starts(experts, block_size)
        write = _list_copy(block_size)

        @T.prim_func
        def align(
            topk_ids: T.Tensor((copies,), "int32"),
            listed: T.Tensor((capacity,), "int32"),
            owners: T.Tensor((blocks,), "int32"),
            total: T.Tensor((1,), "int32"),
        ):
            with T.Kernel(1, threads=config.threads):
                mine, before, tally = chunk_memory(experts)
                size, starts = start_memory(experts)
                fill(0, 1, copies, listed, owners, capacity, blocks)
                rank_copies(topk_ids, topk_ids, 0, copies, mine, before, tally)
                take(tally, size)
                find_starts(size, starts, total)
                # Padding that other threads have written must not come after the copies.
                T.sync_threads()
                for i in T.Parallel(CHUNK):
                    if i < copies:
                        write(starts[mine[i]] + before[i], i, mine[i], listed, owners)

        return align

    @classmethod
    def samples(cls):
        """Return a layer of common size."""
        return _SAMPLES
