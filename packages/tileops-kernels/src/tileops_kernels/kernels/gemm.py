"""Matrix product `d = op(a) @ op(b)`, where `op` is the identity or a transpose; fp32 accumulation.

One tile program serves the single product and the batched one (`bmm.py`). Two of its schedule choices matter:

* `split_k > 1`: a product with few output tiles (a skinny `a`) leaves most of the GPU idle, so the sum over k
  is cut into `split_k` parts by other blocks. Each part goes to its own slice of a float32 workspace and a
  second kernel adds the slices in a fixed order: the same bits every run, unlike atomics.
* `swap_ab`: computes the transposed tile, so that the long n axis lies where the tensor core wants at least
  64 rows and the short m axis where 8 are enough.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm_exact import tile_product

__all__ = [
    "EXACT_CONFIGS",
    "GemmKernel",
    "MatmulConfig",
    "SplitKSumKernel",
    "general_time",
    "matmul_program",
    "pick_split",
    "tile_time",
]

_ACC = "float32"


@dataclass(frozen=True)
class MatmulConfig:
    """Schedule of one matrix product.

    Attributes:
        block_m, block_n, block_k: tile of the output, and depth of one pipeline stage.
        threads: threads that compute (a producer warp group may come on top).
        num_stages: depth of the copy pipeline.
        swizzle: width in tiles of the panels in which blocks walk the output, for L2 reuse; 0 walks row by
            row.
        split_k: number of blocks that share the sum over k.
        swap_ab: compute the transposed tile.
        staged: write the tile through shared memory, so that global stores are wide.
        fma: form the products on the ordinary cores.
    """

    block_m: int
    block_n: int
    block_k: int
    threads: int
    num_stages: int
    swizzle: int = 0
    split_k: int = 1
    swap_ab: bool = False
    staged: bool = True
    fma: bool = False


# Float32 products run on the ordinary cores of a GPU, whatever the shape.
EXACT_CONFIGS = ConfigTable(
    size=lambda s: s["n"],
    devices={
        "cpu": ((None, MatmulConfig(64, 64, 64, 128, 0)),),
        "sm_80": ((None, MatmulConfig(64, 64, 32, 128, 2, fma=True)),),
    },
)


def _region(buffer, lead, row, col, rows, cols):
    """The `rows x cols` tile of a matrix, or of matrix `lead` of a stack of matrices."""
    if len(buffer.shape) == 3:
        return buffer[lead, row : row + rows, col : col + cols]
    return buffer[row : row + rows, col : col + cols]


def matmul_program(*, n, k, dtype, trans_a, trans_b, batched, config):
    """Return the tile program of `d[m, n] = op(a)[m, k] @ op(b)[k, n]`; m (and the batch) are symbolic.

    Args:
        n, k: static sizes.
        dtype: of a, b and d.
        trans_a: a is stored `[k, m]`. On CUDA its rows must then be a multiple of 16 bytes long, which the
            copy engine
            needs and a symbolic m does not say.
        trans_b: b is stored `[n, k]`.
        batched: a, b and d have a leading batch dim.
        config: a `MatmulConfig`. With `split_k > 1` the program writes `[split_k, m, n]` float32 partial
            sums.
    """
    m = T.dynamic("m")
    batch = T.dynamic("batch")
    bm, bn, bk, split = config.block_m, config.block_n, config.block_k, config.split_k
    swap = config.swap_ab
    lead = (batch,) if batched else ()
    a_shape = (*lead, k, m) if trans_a else (*lead, m, k)
    b_shape = (*lead, n, k) if trans_b else (*lead, k, n)
    d_shape = (split, m, n) if split > 1 else (*lead, m, n)
    d_dtype = _ACC if split > 1 else dtype
    steps = -(-k // bk)
    depth = -(-steps // split)
    grid_z = batch if batched else split

    @T.prim_func
    def matmul(a: T.Tensor(a_shape, dtype), b: T.Tensor(b_shape, dtype), d: T.Tensor(d_shape, d_dtype)):
        with T.Kernel(T.ceildiv(m, bm), T.ceildiv(n, bn), grid_z, threads=config.threads) as (
            bm_id,
            bn_id,
            bz,
        ):
            a_shared = T.alloc_shared((bk, bm) if trans_a else (bm, bk), dtype)
            b_shared = T.alloc_shared((bn, bk) if trans_b else (bk, bn), dtype)
            acc = T.alloc_fragment((bn, bm) if swap else (bm, bn), _ACC)
            if config.swizzle:
                T.use_swizzle(config.swizzle, order="column")

            row0, col0 = bm_id * bm, bn_id * bn
            # A part past the end of k copies zeros, which add nothing.
            first = bz * depth if split > 1 else 0
            T.clear(acc)
            for step in T.Pipelined(depth, num_stages=config.num_stages):
                if trans_a:
                    T.copy(_region(a, bz, (first + step) * bk, row0, bk, bm), a_shared)
                else:
                    T.copy(_region(a, bz, row0, (first + step) * bk, bm, bk), a_shared)
                if trans_b:
                    T.copy(_region(b, bz, col0, (first + step) * bk, bn, bk), b_shared)
                else:
                    T.copy(_region(b, bz, (first + step) * bk, col0, bk, bn), b_shared)
                if swap:
                    tile_product(
                        b_shared, a_shared, acc, not trans_b, not trans_a, T.GemmWarpPolicy.Square, config.fma
                    )
                else:
                    tile_product(
                        a_shared, b_shared, acc, trans_a, trans_b, T.GemmWarpPolicy.Square, config.fma
                    )

            if config.staged or swap:
                d_shared = T.alloc_shared((bm, bn), d_dtype)
                if swap:
                    for i, j in T.Parallel(bn, bm):
                        d_shared[j, i] = acc[i, j]
                else:
                    T.copy(acc, d_shared)
                T.copy(d_shared, _region(d, bz, row0, col0, bm, bn))
            else:
                T.copy(acc, _region(d, bz, row0, col0, bm, bn))

    return matmul


# How fast the general program computes a tile on Hopper, next to the widest of `gemm_hopper.py`.
_RATES = {(128, 256): 0.95, (128, 192): 0.9, (128, 128): 0.8, (64, 128): 0.6, (128, 64): 0.55}


def tile_time(m: int, n: int, batch: int, block_m: int, block_n: int, rate: float, units: int) -> float:
    """Return how long a product takes in tiles of a size: rounds of blocks, each as long as a tile is large.

    `rate` is how fast a tile of the size is computed, next to the other candidates.

    >>> tile_time(4096, 2112, 1, 128, 256, 1.0, 132), tile_time(4096, 2112, 1, 128, 192, 1.0, 132)
    (98304.0, 73728.0)
    """
    blocks = batch * -(-m // block_m) * -(-n // block_n)
    return -(-blocks // units) * block_m * block_n / rate


def general_time(config: MatmulConfig, m: int, n: int, batch: int, units: int) -> float:
    """Return how long the general program takes on Hopper, in the unit of `tile_time`.

    >>> general_time(MatmulConfig(64, 128, 64, 128, 8), 1024, 1024, 1, 132)
    13653.333333333334
    """
    tile = (config.block_m, config.block_n)
    return tile_time(m, n, batch, *tile, _RATES[tile], units)


def pick_split(tiles: int, steps: int, units: int, limit: int = 16) -> int:
    """Return into how many parts to cut a sum of `steps` steps, for `tiles` output tiles on `units` SMs.

    Enough parts to give every SM a block, no part shorter than 4 steps, and only divisors of `steps` (a
    ragged last part would run as long as a full one and do less). One part where a third of the SMs have a
    block anyway: they draw most of the memory's bandwidth, and the second pass costs a launch.

    >>> pick_split(tiles=33, steps=112, units=132), pick_split(tiles=64, steps=112, units=132)
    (4, 1)
    """
    best = 1
    if 3 * tiles >= units:
        return best
    for split in range(2, min(limit, steps // 4) + 1):
        if steps % split == 0 and tiles * split <= units:
            best = split
    return best


class GemmKernel(Kernel):
    """`d[m, n] = op(a) @ op(b)`; m is symbolic, n and k are static."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    _MANY_ROWS = 4096  # taken where the row count is not known
    Config = MatmulConfig
    CONFIGS = ConfigTable(
        size=lambda s: s.get("m", GemmKernel._MANY_ROWS),
        devices={
            "cpu": ((None, MatmulConfig(64, 64, 64, 128, 0)),),
            "sm_80": (
                (16, MatmulConfig(16, 64, 64, 128, 4)),
                (32, MatmulConfig(32, 64, 64, 128, 4)),
                (64, MatmulConfig(64, 64, 64, 128, 3)),
                (None, MatmulConfig(128, 128, 32, 128, 3, swizzle=8)),
            ),
            "sm_90a": (
                (16, MatmulConfig(16, 64, 256, 128, 3, swap_ab=True)),
                (32, MatmulConfig(32, 64, 256, 128, 3, swap_ab=True)),
                (64, MatmulConfig(64, 64, 256, 128, 3, swap_ab=True)),
                (128, MatmulConfig(128, 64, 128, 128, 4)),
                (None, MatmulConfig(128, 256, 64, 256, 4, swizzle=10)),
            ),
        },
    )
    _UNITS: ClassVar = {"sm_80": 108, "sm_90a": 132}
    _SPLIT_BELOW_M = 256
    # Tiles for a product of many rows. A narrower one wins where the last round of the widest would leave
    # most multiprocessors without a block.
    WIDE_FROM_M = 129
    _WIDE_TILES: ClassVar = {
        "sm_90a": (
            MatmulConfig(128, 256, 64, 256, 4, swizzle=10),
            MatmulConfig(128, 192, 64, 256, 4, swizzle=10),
            MatmulConfig(128, 128, 64, 256, 4, swizzle=8),
            MatmulConfig(64, 128, 64, 128, 8),
        )
    }

    program = staticmethod(partial(matmul_program, batched=False))

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        """The table's tile for `m` (default: large), with `split_k` set so that the GPU is full."""
        if sizes["dtype"] == "float32":
            return EXACT_CONFIGS.pick(target, arch, sizes)
        config = super().default_config(target=target, arch=arch, **sizes)
        m = sizes.get("m")
        many = m or cls._MANY_ROWS
        if target == "cuda" and arch in cls._WIDE_TILES and many >= cls.WIDE_FROM_M:
            units, n = cls._UNITS[arch], sizes["n"]
            config = min(cls._WIDE_TILES[arch], key=lambda tile: general_time(tile, many, n, 1, units))
        if target == "cpu" or m is None or m > cls._SPLIT_BELOW_M:
            return config
        tiles = -(-sizes["n"] // config.block_n) * -(-m // config.block_m)
        steps = -(-sizes["k"] // config.block_k)
        return dataclasses.replace(config, split_k=pick_split(tiles, steps, cls._UNITS.get(arch, 108)))

    @classmethod
    def samples(cls):
        square = {"n": 1024, "k": 1024, "dtype": "bfloat16"}
        return (
            *({**square, "trans_a": ta, "trans_b": tb} for ta in (False, True) for tb in (False, True)),
            {**square, "trans_a": True, "trans_b": True, "dtype": "float32"},
            {"n": 67, "k": 70, "dtype": "float16", "trans_a": False, "trans_b": True},
        )


class SplitKSumKernel(Kernel):
    """Second pass of a split product: `d[m, n] = sum over s of partial[s, m, n]`, added in the order of s."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})

    @dataclass(frozen=True)
    class Config:
        """`block_n`: columns of one block, a row each."""

        block_n: int
        threads: int

    CONFIGS = ConfigTable(
        size=lambda s: s["n"],
        devices={
            "cpu": ((None, Config(1024, 128)),),
            "sm_80": ((512, Config(256, 64)), (None, Config(1024, 128))),
        },
    )

    @staticmethod
    def program(*, n, split, dtype, config):
        m = T.dynamic("m")
        bn = config.block_n

        @T.prim_func
        def split_k_sum(partial: T.Tensor((split, m, n), _ACC), d: T.Tensor((m, n), dtype)):
            with T.Kernel(m, T.ceildiv(n, bn), threads=config.threads) as (row, bn_id):
                acc = T.alloc_fragment((bn,), _ACC)
                part = T.alloc_fragment((bn,), _ACC)
                T.clear(acc)
                for s in T.unroll(split):
                    T.copy(partial[s, row, bn_id * bn : (bn_id + 1) * bn], part)
                    for j in T.Parallel(bn):
                        acc[j] += part[j]
                T.copy(acc, d[row, bn_id * bn : (bn_id + 1) * bn])

        return split_k_sum

    @classmethod
    def samples(cls):
        return (
            {"n": 4096, "split": 4, "dtype": "bfloat16"},
            {"n": 67, "split": 2, "dtype": "float16"},
        )
