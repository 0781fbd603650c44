"""Integer inputs with declared legal values: ranges, lengths, offsets, permutations, page tables.

A domain is the entry's (`Binding.domain(name)`); one function here per kind. `adversarial` draws the ends of
a range twice as often as all the rest, `structured` counts upwards; kinds that fix an order or distinctness
keep it always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from tileops_manifest import Domain

from .bits import Stream, ranks, words64
from .distributions import generate
from .errors import DomainError

_HIGH_BITS = 31
_FILLER_ONE_IN = 8


@dataclass(frozen=True)
class Request:
    """One integer input to make: its domain, shape, where its bits come from, and the inputs made before
    it. `of_row`: the shape is a row's, whose parts are a whole.
    """

    name: str
    domain: Domain
    shape: tuple[int, ...]
    dtype: torch.dtype
    distribution: str
    stream: Stream
    device: torch.device
    others: Mapping[str, torch.Tensor | None]
    of_row: bool = True

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bounds(self) -> tuple[int, int]:
        """`(low, high)`; without `high`, as many values as there are elements."""
        low = 0 if self.domain.low is None else self.domain.low
        high = low + max(self.numel, 1) if self.domain.high is None else self.domain.high
        if low >= high and self.numel:
            raise DomainError(f"{self.name}: no value lies in [{low}, {high})")
        return low, high


def generate_integers(request: Request) -> torch.Tensor:
    """A new contiguous tensor whose values lie in the request's domain.

    Raises:
        DomainError: no such tensor exists (more distinct values asked for than there are).
    """
    if request.domain.kind == "any":
        r = request
        return generate(r.stream, r.shape, r.dtype, r.distribution, r.device)
    return _KINDS[request.domain.kind](request).reshape(request.shape).to(request.dtype)


def _uniform(request: Request) -> torch.Tensor:
    """Flat int64 values in [low, high), not below the input named by `above`."""
    low, high = request.bounds
    if request.domain.above is not None:
        floor = request.others[request.domain.above].reshape(-1).to(torch.int64).clamp(min=low)
        if request.numel and int(floor.max()) >= high:
            raise DomainError(
                f"{request.name}: must not be below {request.domain.above}, which reaches {high}"
            )
    else:
        floor = torch.full((request.numel,), low, dtype=torch.int64, device=request.device)
    span = high - floor
    words = words64(request.stream, request.numel, request.device)
    # 31 random bits times a span below 2^32 fit int64; a longer range is not met in practice, and would be
    # refused here.
    if high - low > 1 << 32:
        raise DomainError(f"{request.name}: the range [{low}, {high}) is longer than 2^32")
    drawn = floor + (((words & ((1 << _HIGH_BITS) - 1)) * span) >> _HIGH_BITS)
    if request.distribution == "adversarial":
        ends = torch.where(words >> 61 & 1 == 0, floor, torch.full_like(floor, high - 1))
        return torch.where(words >> 62 & 1 == 0, ends, drawn)
    if request.distribution == "structured":
        return floor + torch.arange(request.numel, device=request.device) % span.clamp(min=1)
    return drawn


def _sorted(request: Request) -> torch.Tensor:
    return (
        torch.sort(_uniform(request).reshape(request.shape), dim=-1).values
        if request.shape
        else _uniform(request)
    )


def _lengths(request: Request) -> torch.Tensor:
    """Uniform, with the longest and (from two on) the shortest length present: both are where kernels go
    wrong.
    """
    lengths = _uniform(request)
    low, high = request.bounds
    if request.numel > 1:
        lengths[-1] = low
    if request.numel:
        lengths[0] = high - 1
    return lengths


def _offsets(request: Request) -> torch.Tensor:
    """0, then sorted cuts, then the total: segments of random length, some of them empty, none too long."""
    ends = _cut(request, request.shape[-1])
    longest = request.domain.longest
    if longest is None or not request.numel:
        return ends
    sizes = ends.diff(dim=-1)
    if longest * sizes.shape[-1] < int(ends[0, -1]):
        raise DomainError(
            f"{request.name}: {sizes.shape[-1]} segments of at most {longest} cannot reach {int(ends[0, -1])}"
        )
    kept = sizes.clamp(max=longest)
    # What the long ones lose fills up the others, the first ones first.
    room = longest - kept
    lost = (sizes - kept).sum(dim=-1, keepdim=True)
    filled = kept + torch.minimum((lost - (room.cumsum(dim=-1) - room)).clamp(min=0), room)
    return torch.cat((ends[:, :1], filled.cumsum(dim=-1)), dim=-1)


def _cut(request: Request, columns: int) -> torch.Tensor:
    """Rows of `columns` values: 0, sorted cuts, the total."""
    total = 0 if request.domain.total is None else request.domain.total
    rows = request.numel // request.shape[-1] if request.numel else 0
    inner = max(columns - 2, 0)
    words = words64(request.stream, rows * inner, request.device).reshape(rows, inner)
    cuts = torch.sort((words & ((1 << _HIGH_BITS) - 1)) * (total + 1) >> _HIGH_BITS, dim=-1).values
    ends = torch.zeros((rows, columns), dtype=torch.int64, device=request.device)
    ends[:, -1] = total
    ends[:, 1:-1] = cuts
    return ends


def _parts(request: Request) -> torch.Tensor:
    """Sizes of random parts, some of them empty; in `adversarial`, and in shapes of no row, they leave a part
    of the total over.
    """
    left_over = request.distribution == "adversarial" or not request.of_row
    count = request.shape[-1]
    return _cut(request, count + 1 + left_over).diff(dim=-1)[:, :count]


def _starts(request: Request) -> torch.Tensor:
    """The sum of the parts before each; fully determined by them."""
    sizes = request.others[request.domain.of].to(torch.int64)
    return sizes.cumsum(dim=-1) - sizes


def _distinct(request: Request) -> torch.Tensor:
    """Distinct values in each row (last axis), drawn from [low, high); about one in eight is the filler."""
    low, high = request.bounds
    filler, span = request.domain.filler, high - low
    columns = request.shape[-1] if request.shape else 1
    if columns > span and filler is None:
        raise DomainError(f"{request.name}: {columns} distinct values asked for, [{low}, {high}) has {span}")
    rows = request.numel // columns if columns else 0
    blanks = 0 if filler is None else max(-(-span // (_FILLER_ONE_IN - 1)), columns - span)
    drawn = ranks(request.stream, rows, span + blanks, request.device)[:, :columns]
    return low + drawn if filler is None else torch.where(drawn < span, low + drawn, filler)


def _page_table(request: Request) -> torch.Tensor:
    """Pages that are distinct in their row, or in the whole table."""
    if not request.domain.disjoint:
        return _distinct(request)
    return _distinct(replace(request, shape=(request.numel,)))


def _permutation(request: Request) -> torch.Tensor:
    columns = request.shape[-1]
    if request.domain.high is not None and request.domain.high != columns:
        raise DomainError(
            f"{request.name}: a permutation of {request.domain.high} values has {columns} places"
        )
    rows = request.numel // columns if columns else 0
    return ranks(request.stream, rows, columns, request.device)


_KINDS: dict[str, Callable[[Request], torch.Tensor]] = {
    "range": _uniform,
    "sorted": _sorted,
    "lengths": _lengths,
    "offsets": _offsets,
    "parts": _parts,
    "starts": _starts,
    "distinct": _distinct,
    "page_table": _page_table,
    "permutation": _permutation,
}
