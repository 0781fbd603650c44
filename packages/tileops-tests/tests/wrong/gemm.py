"""GEMM: one right implementation and plausible wrong ones."""

from __future__ import annotations

import torch
from faults import Faults


def operands(a, b, trans_a, trans_b):
    return (a.t() if trans_a else a), (b.t() if trans_b else b)


def right(a, b, *, trans_a=False, trans_b=True):
    left, other = operands(a, b, trans_a, trans_b)
    return (left.float() @ other.float()).to(a.dtype)


def half_precision_accumulation(a, b, *, trans_a=False, trans_b=True):
    left, other = (x.to(torch.float16) for x in operands(a, b, trans_a, trans_b))
    total = torch.zeros(left.shape[0], other.shape[1], dtype=torch.float16)
    for k in range(left.shape[1]):
        total = total + left[:, k, None] * other[None, k]
    return total.to(a.dtype)


def transposition_ignored(a, b, *, trans_a=False, trans_b=True):
    left, other = a, b
    if left.shape[1] != other.shape[0]:
        left, other = operands(a, b, trans_a, trans_b)
    return (left.float() @ other.float()).to(a.dtype)


def dropped_tail(a, b, *, trans_a=False, trans_b=True):
    left, other = operands(a, b, trans_a, trans_b)
    whole = left.shape[1] // 16 * 16
    return (left[:, :whole].float() @ other[:whole].float()).to(a.dtype)


def tf32_inputs(a, b, *, trans_a=False, trans_b=True):
    def cut(x):
        wide = x.float().contiguous()
        return (wide.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)

    left, other = operands(a, b, trans_a, trans_b)
    return (cut(left) @ cut(other)).to(a.dtype)


def fp8_inputs(a, b, *, trans_a=False, trans_b=True):
    left, other = (x.float().to(torch.float8_e4m3fn).float() for x in operands(a, b, trans_a, trans_b))
    return (left @ other).to(a.dtype)


def scaled(a, b, *, trans_a=False, trans_b=True):
    return (right(a.float(), b.float(), trans_a=trans_a, trans_b=trans_b) * 1.01).to(a.dtype)


def last_row_is_its_neighbour(a, b, *, trans_a=False, trans_b=True):
    out = right(a, b, trans_a=trans_a, trans_b=trans_b)
    if len(out) > 1:
        out[-1] = out[-2]
    return out


def assumes_contiguous(a, b, *, trans_a=False, trans_b=True):
    def memory(x):
        whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())[x.storage_offset() :]
        return whole[: x.numel()].view(x.shape)

    return right(memory(a), memory(b), trans_a=trans_a, trans_b=trans_b)


faults = Faults(right)
