"""The strict comparator: metadata first, then masks, then values. Everything is a pure function that
returns a finding.

A comparison is written so that whatever is not provably right is wrong: `bad = ~(error <= bound)` holds for
NaN, shapes never broadcast, and NaN and ±Inf are compared as masks of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tileops_tests.codes import ReasonCode
from tileops_tests.precision import is_float, torch_dtype

FINITE, NAN, POSITIVE_INF, NEGATIVE_INF = range(4)


@dataclass(frozen=True)
class OutputMeta:
    """What an output is, by the manifest or by a worker's answer."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str


@dataclass(frozen=True)
class OutputReference:
    """Everything that the verdict on one output needs, on the device where the oracle ran.

    `expected` has the output's dtype. For a bounded output `ref` (unrounded), `base` (the specified
    precision, rounded to the output dtype), `bound`, `e_base` and `e_low` are float64 of the same shape;
    for an exact one `bound` is None. `resolution` is the coarsest dtype among the output's own and those that
    named intermediate values may be rounded to. A complex output is seen as its parts: `dtype` is that of a
    part, and all tensors have a further axis of size 2.
    """

    name: str
    dtype: str
    expected: Tensor
    ref: Tensor | None = None
    base: Tensor | None = None
    e_base: Tensor | None = None
    e_low: Tensor | None = None
    bound: Tensor | None = None
    signed_zero: bool = False
    resolution: str | None = None
    complex: bool = False


@dataclass(frozen=True)
class Finding:
    """Outcome of comparing one output: `code` None means that it agrees.

    `error`, `bound` and `ratio` belong to the element with the largest error/bound (0 for exact comparisons
    that agree).
    """

    output: str
    code: ReasonCode | None
    message: str = ""
    error: float = 0.0
    bound: float = 0.0
    ratio: float = 0.0
    bad: Tensor | None = None


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements.

    >>> contiguous_stride((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def check_meta(name: str, got: OutputMeta, expected: OutputMeta) -> Finding | None:
    """The first disagreement in dtype, shape, stride or device; strides of dims of size one say nothing."""
    if got.dtype != expected.dtype:
        return _meta_finding(name, ReasonCode.WRONG_DTYPE, "dtype", got.dtype, expected.dtype)
    if got.shape != expected.shape:
        return _meta_finding(name, ReasonCode.WRONG_SHAPE, "shape", got.shape, expected.shape)
    significant = [i for i, size in enumerate(expected.shape) if size > 1] if 0 not in expected.shape else []
    if any(got.stride[i] != expected.stride[i] for i in significant):
        return _meta_finding(name, ReasonCode.WRONG_STRIDE, "stride", got.stride, expected.stride)
    if got.device != expected.device:
        return _meta_finding(name, ReasonCode.WRONG_DEVICE, "device", got.device, expected.device)
    return None


def _meta_finding(name: str, code: ReasonCode, what: str, got: object, expected: object) -> Finding:
    return Finding(name, code, f"{name}.{what} is {got}, expected {expected}")


def compare(actual: Tensor, reference: OutputReference) -> Finding:
    """Compare one output with its reference; `actual` must already be of the manifest's dtype, else it is a
    finding.
    """
    name = reference.name
    expected = torch_dtype(reference.dtype)
    expected = expected.to_complex() if reference.complex else expected
    if actual.dtype != expected:
        return _meta_finding(name, ReasonCode.WRONG_DTYPE, "dtype", actual.dtype, expected)
    if reference.complex:
        actual = torch.view_as_real(actual)
    if actual.shape != reference.expected.shape:
        return _meta_finding(
            name, ReasonCode.WRONG_SHAPE, "shape", tuple(actual.shape), tuple(reference.expected.shape)
        )
    if actual.numel() == 0:
        return Finding(name, None)
    actual = actual.to(reference.expected.device)
    bad = bad_elements(actual, reference)
    if reference.bound is not None:
        return _bounded_finding(widen(actual), reference, bad)
    if not bool(bad.any()):
        return Finding(name, None)
    code = (
        _mask_code(actual, reference.expected, bad) if is_float(reference.dtype) else ReasonCode.WRONG_VALUE
    )
    return _failure(reference, code, bad, actual, reference.expected, None)


def bad_elements(actual: Tensor, reference: OutputReference) -> Tensor:
    """Mask of the elements that are not provably right; dtype and shape must agree already."""
    if reference.bound is None:
        return ~same_values(actual, reference.expected, signed_zero=reference.signed_zero)
    actual, ref, bound, base = widen(actual), reference.ref, reference.bound, reference.base
    good = (actual - ref).abs() <= bound
    if not _all_finite(actual, ref, base, reference.expected):
        good = torch.where(torch.isfinite(ref), good, categories(actual) == categories(ref))
        good |= _overflows_legally(actual, ref, bound, reference.dtype)
        good |= _follows_specified_precision(actual, base, widen(reference.expected), bound)
    return ~good


def widen(x: Tensor) -> Tensor:
    """Any floating dtype as float64, exactly."""
    return x.to(torch.float32).to(torch.float64) if x.dtype.itemsize == 1 else x.to(torch.float64)


def same_values(a: Tensor, b: Tensor, *, signed_zero: bool = True) -> Tensor:
    """Mask of equality; every NaN equals every NaN, and −0 equals +0 only if `signed_zero` is False."""
    if not a.dtype.is_floating_point:
        return a == b
    a, b = widen(a), widen(b)
    equal = (a == b) | (a.isnan() & b.isnan())
    return equal & (a.isnan() | (a.signbit() == b.signbit())) if signed_zero else equal


def categories(x: Tensor) -> Tensor:
    """Each element's class: FINITE, NAN, POSITIVE_INF or NEGATIVE_INF."""
    infinite = (x == torch.inf).to(torch.int8) * POSITIVE_INF + (x == -torch.inf).to(
        torch.int8
    ) * NEGATIVE_INF
    return infinite + (x != x).to(torch.int8) * NAN


def _bounded_finding(actual: Tensor, reference: OutputReference, bad: Tensor) -> Finding:
    error = (actual - reference.ref).abs()
    ratio = torch.where(error == 0, torch.zeros_like(error), error / reference.bound)
    if bool(bad.any()):
        code = _mask_code(actual, reference.expected, bad)
        return _failure(reference, code, bad, actual, reference.ref, (error, reference.bound, ratio))
    worst = int(ratio.nan_to_num(0.0, 0.0).argmax())
    numbers = tuple(x.flatten()[worst].item() for x in (error, reference.bound, ratio))
    return Finding(reference.name, None, "", *(numbers if 0 < numbers[2] < float("inf") else (0.0, 0.0, 0.0)))


def _all_finite(*tensors: Tensor) -> bool:
    """A sum is finite only if every term is (its overflow says "not", which costs time and nothing else)."""
    return all(bool(torch.isfinite(widen(x).sum())) for x in tensors)


def _overflows_legally(actual: Tensor, ref: Tensor, bound: Tensor, dtype: str) -> Tensor:
    """±Inf of the right sign, where the interval ref ± bound reaches past the largest number of the output
    dtype.
    """
    largest = torch.finfo(torch_dtype(dtype)).max
    return (actual.abs() == torch.inf) & torch.isfinite(ref) & (ref * torch.sign(actual) + bound >= largest)


def _follows_specified_precision(actual: Tensor, base: Tensor, expected: Tensor, bound: Tensor) -> Tensor:
    """Where the specified arithmetic itself leaves the oracle's class (an intermediate overflows), it is
    legal to follow it.
    """
    kind = categories(base)
    departs = kind != categories(expected)
    near = (kind != FINITE) | ((actual - base).abs() <= bound)
    return departs & (categories(actual) == kind) & near


def _mask_code(actual: Tensor, expected: Tensor, bad: Tensor) -> ReasonCode:
    """The code of a disagreement: a NaN mask outweighs an Inf mask outweighs values."""
    got, want = widen(actual)[bad], widen(expected)[bad]
    if bool((got.isnan() != want.isnan()).any()):
        return ReasonCode.NAN_MISMATCH
    if bool((categories(got) != categories(want)).any()):
        return ReasonCode.INF_MISMATCH
    return ReasonCode.WRONG_VALUE


def _failure(
    reference: OutputReference,
    code: ReasonCode,
    bad: Tensor,
    actual: Tensor,
    expected: Tensor,
    numbers: tuple[Tensor, Tensor, Tensor] | None,
) -> Finding:
    """A finding that names the worst bad element (for exact comparisons: the first)."""
    flat = bad.flatten()
    if numbers is None:
        at, error, bound, ratio = int(flat.to(torch.int8).argmax()), float("inf"), 0.0, float("inf")
    else:
        severity = torch.where(
            flat, numbers[2].flatten().nan_to_num(nan=torch.inf), torch.full_like(numbers[2].flatten(), -1.0)
        )
        at = int(severity.argmax())
        error, bound = numbers[0].flatten()[at].item(), numbers[1].flatten()[at].item()
        ratio = severity[at].item()
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), bad.shape))
    got, want = actual.flatten()[at].item(), expected.flatten()[at].item()
    message = f"{reference.name}[{', '.join(map(str, index))}] is {got!r}, expected {want!r}"
    if numbers is not None and error == error:
        message += f" (error {error:.3g}, bound {bound:.3g})"
    message += f"; {int(flat.sum())} of {flat.numel()} elements are wrong"
    return Finding(reference.name, code, message, error, bound, ratio, bad)
