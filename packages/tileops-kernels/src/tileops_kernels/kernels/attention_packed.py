"""Attention forward over packed requests of different lengths, with a window, a softcap and factors.

The tiles of `attention.py`, placed by offsets that the device reads: a block owns rows of one head of one
request. The last query of a request stands at its last key. The tile of keys that crosses the end of a
request is cleared past it: a probability of 0 does not silence a NaN of the next request.

Source: arXiv:2205.14135, arXiv:2307.08691.
"""

import tilelang.language as T

from tileops_kernels.kernels.attention import AttentionConfig, AttentionForwardKernel
from tileops_kernels.kernels.attention_parts import padded_depth
from tileops_kernels.kernels.base import ConfigTable
from tileops_kernels.kernels.decode_base import clear_result, fold_exponents
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = ["PackedAttentionKernel"]

_ACC = "float32"
_FP8 = "float8_e4m3fn"


class PackedAttentionKernel(AttentionForwardKernel):
    """`o = softmax(mask(cap(q k^T))) v` over `q[total_q, H, D]`, `k, v[total_k, H_kv, D]`.

    Request r has the queries `starts_q[r] .. starts_q[r + 1]` and the keys `starts_k[r] .. starts_k[r + 1]`.
    Query i of Q stands at `p = i + N - Q` among N keys and sees those from `p - left` to `p + right`, each
    side bounded or not. Token and request counts are symbolic; `left`, `right`, `longest` (at least the most
    queries of a request), `scale` and `cap` (of base-2 scores, as in decoding) are run-time scalars.

    8-bit operands are widened to float16, which holds them exactly. `scaled` names those of "qkv" that have
    factors per request and key head; where it names any, the program takes three tensors, and reads those.
    """

    SUPPORTED_DTYPES = AttentionForwardKernel.SUPPORTED_DTYPES | {_FP8}
    # Offsets and the tile at the end take registers: float32 tiles are those of the widest heads.
    EXACT_CONFIGS = ConfigTable(
        size=lambda s: s["head_dim"],
        devices={
            "cpu": ((None, AttentionConfig(64, 64, 128, 0)),),
            "sm_80": ((None, AttentionConfig(32, 16, 256, 1, fma=True)),),
        },
    )

    @staticmethod
    def program(
        *, heads, kv_heads, head_dim, dtype, out_dtype, left_bounded, right_bounded, capped, scaled, config
    ):
        total_q, total_k = T.dynamic("total_q"), T.dynamic("total_k")
        requests, bounds = T.dynamic("requests"), T.dynamic("bounds")
        bm, bn = config.block_m, config.block_n
        group = heads // kv_heads
        depth = padded_depth(head_dim)
        tile_dtype = "float16" if dtype == _FP8 else dtype
        policy = T.GemmWarpPolicy.FullRow

        @T.macro
        def attend(q_shared, k_tile, v_tile, scores, state, place, key0, window, scale, cap):
            """Fold one tile of keys into the running result."""
            s_frag = scores[0]
            row0, keys, offset = place
            left, right = window
            T.clear(s_frag)
            tile_product(q_shared, k_tile, s_frag, False, True, policy, config.fma)
            for i, j in T.Parallel(bm, bn):
                if capped:
                    s_frag[i, j] = cap * T.tanh(s_frag[i, j] * scale)
                else:
                    s_frag[i, j] = s_frag[i, j] * scale
            # The first row sees the fewest keys to the right, the last one the fewest to the left.
            if key0 + bn > (T.min(row0 + offset + right + 1, keys) if right_bounded else keys):
                for i, j in T.Parallel(bm, bn):
                    s_frag[i, j] = T.if_then_else(
                        key0 + j < (T.min(row0 + i + offset + right + 1, keys) if right_bounded else keys),
                        s_frag[i, j],
                        -T.infinity(_ACC),
                    )
            if left_bounded:  # noqa: SIM102 (a choice of program, around a branch of it)
                if key0 < row0 + bm - 1 + offset - left:
                    for i, j in T.Parallel(bm, bn):
                        s_frag[i, j] = T.if_then_else(
                            key0 + j >= row0 + i + offset - left, s_frag[i, j], -T.infinity(_ACC)
                        )
            fold_exponents(v_tile, scores, state, policy, config.fma)

        @T.macro
        def block(count, bx, head, q, k, v, starts_q, starts_k, factors, o, window, longest, scale, cap):
            q_shared = T.alloc_shared((bm, depth), tile_dtype)
            k_shared = T.alloc_shared((bn, depth), tile_dtype)
            v_shared = T.alloc_shared((bn, depth), tile_dtype)
            k_tail = T.alloc_shared((bn, depth), tile_dtype)
            v_tail = T.alloc_shared((bn, depth), tile_dtype)
            s_frag = T.alloc_fragment((bm, bn), _ACC)
            # Tensor cores take the probabilities from registers, ordinary cores from shared memory.
            if config.fma:
                probs = T.alloc_shared((bm, bn), tile_dtype)
            else:
                probs = T.alloc_fragment((bm, bn), tile_dtype)
            o_frag = T.alloc_fragment((bm, depth), _ACC)
            row_max = T.alloc_fragment((bm,), _ACC)
            row_sum = T.alloc_fragment((bm,), _ACC)
            old_max = T.alloc_fragment((bm,), _ACC)
            shift = T.alloc_fragment((bm,), _ACC)
            part_sum = T.alloc_fragment((bm,), _ACC)
            state = (o_frag, row_max, row_sum, old_max, shift, part_sum)
            left, right = window
            kv_head = head // group

            # Bottom rows first: under a causal mask they have the most keys.
            request = bx % count
            row0 = (T.ceildiv(longest, bm) - 1 - bx // count) * bm
            q0, k0 = starts_q[request], starts_k[request]
            queries, keys = starts_q[request + 1] - q0, starts_k[request + 1] - k0
            offset = keys - queries
            place = (row0, keys, offset)
            # A block past the last query of its request sees no keys.
            end = T.min(keys, row0 + bm + offset + right) if right_bounded else keys
            visible = T.if_then_else(row0 < queries, T.max(end, 0), 0)
            begin = T.max(row0 + offset - left, 0) // bn if left_bounded else 0
            full = T.max(T.min(T.ceildiv(visible, bn), keys // bn) - begin, 0)
            factor = T.alloc_var(_ACC, init=scale)
            if "q" in scaled:
                factor *= factors[0][request, kv_head]
            if "k" in scaled:
                factor *= factors[1][request, kv_head]

            T.copy(q[q0 + row0 : q0 + row0 + bm, head, 0:depth], q_shared)
            clear_result(state)
            for step in T.Pipelined(full, num_stages=config.num_stages):
                key0 = (begin + step) * bn
                T.copy(k[k0 + key0 : k0 + key0 + bn, kv_head, 0:depth], k_shared)
                T.copy(v[k0 + key0 : k0 + key0 + bn, kv_head, 0:depth], v_shared)
                attend(q_shared, k_shared, v_shared, (s_frag, probs), state, place, key0, window, factor, cap)

            tail = keys // bn * bn
            if tail < visible:
                for i, d in T.Parallel(bn, depth):
                    k_tail[i, d] = T.if_then_else(
                        tail + i < keys and d < head_dim, k[k0 + tail + i, kv_head, d], T.cast(0, dtype)
                    )
                for i, d in T.Parallel(bn, depth):
                    v_tail[i, d] = T.if_then_else(
                        tail + i < keys and d < head_dim, v[k0 + tail + i, kv_head, d], T.cast(0, dtype)
                    )
                attend(q_shared, k_tail, v_tail, (s_frag, probs), state, place, tail, window, factor, cap)

            for i, d in T.Parallel(bm, depth):
                # A query that sees no keys, or only scores of -inf, gets 0, as in PyTorch.
                o_frag[i, d] = T.if_then_else(row_sum[i] == 0.0, 0.0, o_frag[i, d] / row_sum[i])
                if "v" in scaled:
                    o_frag[i, d] *= factors[2][request, kv_head]
            for i, d in T.Parallel(bm, depth):
                if row0 + i < queries and d < head_dim:
                    o[q0 + row0 + i, head, d] = o_frag[i, d]

        if scaled:

            @T.prim_func
            def attention_packed_scaled(
                q: T.Tensor((total_q, heads, head_dim), dtype),
                k: T.Tensor((total_k, kv_heads, head_dim), dtype),
                v: T.Tensor((total_k, kv_heads, head_dim), dtype),
                starts_q: T.Tensor((bounds,), "int32"),
                starts_k: T.Tensor((bounds,), "int32"),
                q_scale: T.Tensor((requests, kv_heads), _ACC),
                k_scale: T.Tensor((requests, kv_heads), _ACC),
                v_scale: T.Tensor((requests, kv_heads), _ACC),
                o: T.Tensor((total_q, heads, head_dim), out_dtype),
                left: T.int32,
                right: T.int32,
                longest: T.int32,
                scale: T.float32,
                cap: T.float32,
            ):
                with T.Kernel(T.ceildiv(longest, bm) * (bounds - 1), heads, threads=config.threads) as (
                    bx,
                    by,
                ):
                    factors = (q_scale, k_scale, v_scale)
                    block(
                        bounds - 1,
                        bx,
                        by,
                        q,
                        k,
                        v,
                        starts_q,
                        starts_k,
                        factors,
                        o,
                        (left, right),
                        longest,
                        scale,
                        cap,
                    )

            return attention_packed_scaled

        @T.prim_func
        def attention_packed(
            q: T.Tensor((total_q, heads, head_dim), dtype),
            k: T.Tensor((total_k, kv_heads, head_dim), dtype),
            v: T.Tensor((total_k, kv_heads, head_dim), dtype),
            starts_q: T.Tensor((bounds,), "int32"),
            starts_k: T.Tensor((bounds,), "int32"),
            o: T.Tensor((total_q, heads, head_dim), out_dtype),
            left: T.int32,
            right: T.int32,
            longest: T.int32,
            scale: T.float32,
            cap: T.float32,
        ):
            with T.Kernel(T.ceildiv(longest, bm) * (bounds - 1), heads, threads=config.threads) as (bx, by):
                block(
                    bounds - 1, bx, by, q, k, v, starts_q, starts_k, (), o, (left, right), longest, scale, cap
                )

        return attention_packed

    @classmethod
    def samples(cls):
        llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "out_dtype": "bfloat16"}
        causal = {"left_bounded": False, "right_bounded": True, "capped": False, "scaled": ""}
        return (
            {**llama, **causal},
            {**llama, **causal, "left_bounded": True, "capped": True},
            {**llama, **causal, "right_bounded": False, "dtype": "float8_e4m3fn", "scaled": "qkv"},
            {**llama, **causal, "heads": 6, "kv_heads": 2, "head_dim": 40, "left_bounded": True},
            {**llama, **causal, "head_dim": 256},
            {**llama, **causal, "head_dim": 100, "dtype": "float16", "out_dtype": "float16"},
            {**llama, **causal, "dtype": "float32", "out_dtype": "float32"},
            {**llama, **causal, "dtype": "float32", "out_dtype": "float32", "head_dim": 256},
        )
