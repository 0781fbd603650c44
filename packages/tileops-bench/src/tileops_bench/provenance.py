"""Whose kernels ran: names of device activities that belong to a library, not to a tile program.

An op of tileops-kernels computes with its own programs; what it asks of the framework is to copy, fill and
allocate. Names are as CUPTI gives them, mangled where the library is C++.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tileops_bench.records import Code, Problem

# (what it is, pattern). Copies and fills of the framework are not named here: a declared copy is legal.
LIBRARIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (library, re.compile(pattern, re.IGNORECASE))
    for library, pattern in (
        ("cuBLAS", r"cublas|nvjet|cutlass|xmma|(ampere|hopper|volta|turing|sm\d+)_.*gemm|gemv|splitKreduce"),
        ("cuDNN", r"cudnn|convolve_|implicit_gemm"),
        ("FlashAttention", r"flash_fwd|flash_bwd|fmha|efficient_attention"),
        ("Triton", r"^triton_"),
        (
            "PyTorch",
            r"softmax_warp_forward|cunn_SoftMax|at.?.?native.*(softmax|norm|reduce|scan|sort|gelu|silu|sigmoid|tanh|exp|gemm|attention|pow|rsqrt"
            r"|index|gather|scatter|topk|binary|Functor_add|MulFunctor|cumsum)",
        ),
        ("CUB", r"cub.*Device(Radix|Segmented|Reduce|Scan)"),
    )
)
SHOWN = 3


def foreign(names: Iterable[str]) -> list[tuple[str, str]]:
    """(library, kernel) of each name that a library's pattern knows.

    >>> foreign(["rms_norm_kernel", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT"])
    [('cuBLAS', 'nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT')]
    """
    return [
        (library, name)
        for name in sorted(set(names))
        for library, pattern in LIBRARIES
        if pattern.search(name) and not re.search(r"copy|fill", name, re.IGNORECASE)
    ]


def provenance_problem(names: Iterable[str]) -> Problem | None:
    """The problem that a library's kernels in an op's timed calls amount to, if there are any."""
    found = foreign(names)
    if not found:
        return None
    shown = "; ".join(f"{library}: {name[:120]}" for library, name in found[:SHOWN])
    return Problem(code=Code.FOREIGN_KERNELS, detail=f"{len(found)} kernels are a library's: {shown}")
