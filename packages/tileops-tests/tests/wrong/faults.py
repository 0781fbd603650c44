"""Faults that any op can have, around a right implementation. Plain torch; loaded in the worker only."""

from __future__ import annotations

import ctypes
import os
import time

import torch


def outputs_of(result):
    return result if isinstance(result, tuple) else (result,)


class Lookalike(torch.Tensor):
    """A tensor subclass: its values could be computed when someone looks."""


class Faults:
    """Each method is a callable with the op's own signature and one fault."""

    def __init__(self, right):
        self.right = right
        self.by_address = {}
        self.by_shape = {}

    # memory

    def mutates_input(self, *inputs, **params):
        out = self.right(*inputs, **params)
        inputs[0].mul_(0.5)
        return out

    def writes_before_input(self, *inputs, **params):
        x = inputs[-1]
        x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
        return self.right(*inputs, **params)

    def writes_past_output(self, *inputs, **params):
        right = self.right(*inputs, **params)
        out = torch.empty(right.shape, dtype=right.dtype)
        out.copy_(right)
        ctypes.memset(out.data_ptr() + out.numel() * out.element_size(), 0, 1)
        return out

    def writes_before_output(self, *inputs, **params):
        right = self.right(*inputs, **params)
        out = torch.empty_like(right)
        out.copy_(right)
        ctypes.memset(out.data_ptr() - 1, 0, 1)
        return out

    def returns_input(self, *inputs, **params):
        out = self.right(*inputs, **params)
        largest = max(inputs, key=torch.Tensor.numel)
        return largest.as_strided(out.shape, out.stride(), largest.storage_offset())

    def leaves_rows_unwritten(self, *inputs, **params):
        right = self.right(*inputs, **params)
        out = torch.empty(right.shape, dtype=right.dtype)
        out[: max(1, len(out) // 2)] = right[: max(1, len(out) // 2)]
        return out

    def reuses_its_output(self, *inputs, **params):
        right = self.right(*inputs, **params)
        out = self.by_shape.setdefault((right.shape, right.dtype), torch.empty_like(right))
        return out.copy_(right)

    # results that belong to something else

    def caches_by_address(self, *inputs, **params):
        key = tuple(x.data_ptr() for x in inputs)
        if key not in self.by_address:
            self.by_address[key] = self.right(*inputs, **params)
        return self.by_address[key].clone()

    def caches_by_sampled_content(self, *inputs, **params):
        """Looks at sixteen elements of each input: other values there, and it computes again."""
        key = tuple((x.shape, str(x.flatten()[:: max(1, x.numel() // 16)].tolist())) for x in inputs)
        key += (str(params), inputs[0].dtype)
        if key not in self.by_address:
            self.by_address[key] = self.right(*inputs, **params)
        return self.by_address[key].clone()

    def differs_between_runs(self, *inputs, **params):
        out = self.right(*inputs, **params).clone()
        bits = out.view(-1).view({2: torch.int16, 4: torch.int32}[out.element_size()])
        bits[int.from_bytes(os.urandom(4), "little") % len(bits)] ^= 1
        return out

    def returns_zeros(self, *inputs, **params):
        return torch.zeros_like(self.right(*inputs, **params))

    def returns_nan_at_the_end(self, *inputs, **params):
        out = self.right(*inputs, **params).clone()
        out.view(-1)[-1] = torch.nan
        return out

    def returns_infinity_at_the_end(self, *inputs, **params):
        out = self.right(*inputs, **params).clone()
        out.view(-1)[-1] = torch.inf
        return out

    def swaps_two_rows(self, *inputs, **params):
        return self.right(*inputs, **params).roll(1, 0)

    # interface

    def returns_a_lower_dtype(self, *inputs, **params):
        out = self.right(*inputs, **params)
        return out.to(torch.bfloat16 if out.dtype is not torch.bfloat16 else torch.float8_e5m2)

    def returns_a_flat_tensor(self, *inputs, **params):
        return self.right(*inputs, **params).flatten()

    def returns_transposed_memory(self, *inputs, **params):
        out = self.right(*inputs, **params)
        return out.transpose(-1, -2).contiguous().transpose(-1, -2)

    def returns_two_outputs(self, *inputs, **params):
        out = self.right(*inputs, **params)
        return out, out.clone()

    def returns_a_list_of_numbers(self, *inputs, **params):
        return [self.right(*inputs, **params).flatten().tolist()]

    def returns_a_subclass(self, *inputs, **params):
        return self.right(*inputs, **params).as_subclass(Lookalike)

    def returns_on_meta_device(self, *inputs, **params):
        return self.right(*inputs, **params).to("meta")

    # endings

    def raises(self, *inputs, **params):
        raise ValueError("no")

    def says_it_is_not_implemented(self, *inputs, **params):
        raise NotImplementedError("this shape is left out")

    def exits(self, *inputs, **params):
        raise SystemExit(0)

    def ends_the_process(self, *inputs, **params):
        os._exit(0)

    def crashes(self, *inputs, **params):
        ctypes.string_at(8)

    def hangs(self, *inputs, **params):
        time.sleep(3600)

    def wants_all_memory(self, *inputs, **params):
        return torch.ones(1 << 42, dtype=torch.uint8)

    def grows_without_end(self, *inputs, **params):
        kept = []
        while True:
            kept.append(torch.ones(1 << 26, dtype=torch.uint8))
