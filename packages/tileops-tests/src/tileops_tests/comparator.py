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
    for an exact one `bound` is None.
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
    if actual.dtype != torch_dtype(reference.dtype):
        return _meta_finding(
            name, ReasonCode.WRONG_DTYPE, "dtype", actual.dtype, torch_dtype(reference.dtype)
        )
    if actual.shape != reference.expected.shape:
        return _meta_finding(
            name, ReasonCode.WRONG_SHAPE, "shape", tuple(actual.shape), tuple(reference.expected.shape)
        )
    if actual.numel() == 0:
        return Finding(name, None)
    actual = actual.to(reference.expected.device)
    if not is_float(reference.dtype):
        return _compare_integers(actual, reference)
    if reference.bound is None:
        return _compare_bits(widen(actual), reference)
    return _compare_bounded(widen(actual), reference)


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
    return (x != x) * NAN + (x == torch.inf) * POSITIVE_INF + (x == -torch.inf) * NEGATIVE_INF


def _compare_integers(actual: Tensor, reference: OutputReference) -> Finding:
    bad = actual != reference.expected
    if not bool(bad.any()):
        return Finding(reference.name, None)
    return _failure(reference, ReasonCode.WRONG_VALUE, bad, actual, reference.expected, None)


def _compare_bits(actual: Tensor, reference: OutputReference) -> Finding:
    expected = widen(reference.expected)
    bad = ~same_values(actual, expected, signed_zero=reference.signed_zero)
    if not bool(bad.any()):
        return Finding(reference.name, None)
    return _failure(reference, _mask_code(actual, expected, bad), bad, actual, expected, None)


def _compare_bounded(actual: Tensor, reference: OutputReference) -> Finding:
    ref, bound, base = reference.ref, reference.bound, reference.base
    error = (actual - ref).abs()
    good = error <= bound
    ratio = error / bound
    if not _all_finite(actual, ref, base, reference.expected):
        good = torch.where(torch.isfinite(ref), good, categories(actual) == categories(ref))
        good |= _overflows_legally(actual, ref, bound, reference.dtype)
        good |= _follows_specified_precision(actual, base, widen(reference.expected), bound)
        ratio = torch.where(torch.isfinite(actual) & torch.isfinite(ref), ratio, torch.zeros_like(ratio))
    bad = ~good
    ratio = torch.where(error == 0, torch.zeros_like(ratio), ratio)
    worst = int(ratio.argmax())
    if not bool(bad.any()):
        at = (error.flatten()[worst].item(), bound.flatten()[worst].item(), ratio.flatten()[worst].item())
        return Finding(reference.name, None, "", *(at if at[2] > 0 else (0.0, 0.0, 0.0)))
    return _failure(
        reference, _mask_code(actual, widen(reference.expected), bad), bad, actual, ref, (error, bound, ratio)
    )


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
    if bool((bad & (actual.isnan() != expected.isnan())).any()):
        return ReasonCode.NAN_MISMATCH
    if bool((bad & (categories(actual) != categories(expected))).any()):
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
