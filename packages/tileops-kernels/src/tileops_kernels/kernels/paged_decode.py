"""Attention of one query per request over a paged cache: `decode.py` behind a page table.

Source: arXiv:2309.06180.
"""

import tilelang.language as T

from tileops_kernels.kernels.decode_base import (
    SplitDecodeKernel,
    attend_tile,
    begin_part,
    first_rows,
    group_tiles,
    padded_depth,
    write_part,
)

__all__ = ["PagedDecodeKernel"]

_ACC = "float32"


class PagedDecodeKernel(SplitDecodeKernel):
    """`SplitDecodeKernel` over pages of tokens that all requests share.

    Token t of request b lies at row `table[b, t // page_size] * page_size + t % page_size` of the cache. Each
    request has its own length. Rows of the cache that no token of the request occupies are never used,
    whatever they hold. Batch, cache size, pages per request and splits are symbolic.
    """

    @classmethod
    def bulk_copies(cls, config, sizes) -> bool:
        return super().bulk_copies(config, sizes) and sizes["page_size"] % config.block_n == 0

    @staticmethod
    def program(*, heads, kv_heads, head_dim, page_size, dtype, capped, whole, config):
        batch = T.dynamic("batch")
        room = T.dynamic("room")
        pages = T.dynamic("pages")
        splits = T.dynamic("splits")
        bn = config.block_n
        group, rows, tiles = group_tiles(heads, kv_heads)
        depth = padded_depth(head_dim)
        whole_tiles = page_size % bn == 0  # a tile of tokens lies in one page

        def row_of(table, request, tile, i):
            """Row of the cache with token `i` of a tile; the special cases keep the arithmetic short."""
            if whole_tiles:
                per_page = page_size // bn
                return table[request, tile // per_page] * page_size + tile % per_page * bn + i
            if bn % page_size == 0:
                return table[request, tile * (bn // page_size) + i // page_size] * page_size + i % page_size
            token = tile * bn + i
            return table[request, token // page_size] * page_size + token % page_size

        @T.macro
        def gather(source, tokens, table, request, tile, kv_head):
            for i, d in T.Parallel(bn, depth):
                tokens[i, d] = source[row_of(table, request, tile, i), kv_head, d]

        @T.macro
        def gather_last(source, tokens, table, request, tile, kv_head, length):
            # Cleared past the end: a probability of 0 does not silence a NaN in an unused row.
            for i, d in T.Parallel(bn, depth):
                tokens[i, d] = T.if_then_else(
                    tile * bn + i < length and d < head_dim,
                    source[row_of(table, request, tile, i), kv_head, d],
                    T.cast(0, dtype),
                )

        @T.prim_func
        def paged_decode(
            q: T.Tensor((batch, heads, head_dim), dtype),
            k: T.Tensor((room, kv_heads, head_dim), dtype),
            v: T.Tensor((room, kv_heads, head_dim), dtype),
            lengths: T.Tensor((batch,), "int32"),
            table: T.Tensor((batch, pages), "int32"),
            part: T.Tensor((batch, splits, heads, head_dim), dtype if whole else _ACC),
            lse: T.Tensor((batch, splits, heads), _ACC),
            scale: T.float32,
            cap: T.float32,
        ):
            with T.Kernel(splits, kv_heads * tiles, batch, threads=config.threads) as (bx, by, bz):
                k_shared = T.alloc_shared((bn, depth), dtype)
                v_shared = T.alloc_shared((bn, depth), dtype)
                k_tail = T.alloc_shared((bn, depth), dtype)
                v_tail = T.alloc_shared((bn, depth), dtype)

                # As in `decode.py`: several blocks on a multiprocessor.
                T.disable_warp_group_reg_alloc()
                kv_head, first_row, head0 = first_rows(by, group, rows, tiles)
                length = lengths[bz]
                share = T.ceildiv(T.ceildiv(length, bn), splits)
                first = bx * share
                full = T.max(T.min(share, length // bn - first), 0)

                folded = begin_part(q, bz, head0, rows, depth, bn)
                scoring = (capped, scale, cap, config.fma)
                for step in T.Pipelined(full, num_stages=config.num_stages):
                    tile = first + step
                    if whole_tiles:
                        row = row_of(table, bz, tile, 0)
                        T.copy(k[row : row + bn, kv_head, 0:depth], k_shared)
                        T.copy(v[row : row + bn, kv_head, 0:depth], v_shared)
                    else:
                        gather(k, k_shared, table, bz, tile, kv_head)
                        gather(v, v_shared, table, bz, tile, kv_head)
                    attend_tile(folded, k_shared, v_shared, tile * bn, length, scoring)

                tail = length // bn
                if tail * bn < length and first <= tail and tail < first + share:
                    gather_last(k, k_tail, table, bz, tail, kv_head, length)
                    gather_last(v, v_tail, table, bz, tail, kv_head, length)
                    attend_tile(folded, k_tail, v_tail, tail * bn, length, scoring)
                write_part(folded, part, lse, bz, bx, head0, group - first_row, head_dim, whole)

        return paged_decode

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "float16", "capped": False}
        llama["whole"] = False
        return (
            {**llama, "page_size": 64},
            {**llama, "page_size": 64, "whole": True},
            {**llama, "page_size": 16, "capped": True},
            {**llama, "page_size": 256, "dtype": "bfloat16"},
            {**llama, "heads": 6, "kv_heads": 2, "head_dim": 100, "page_size": 20},
            {**llama, "page_size": 64, "dtype": "float32"},
        )
