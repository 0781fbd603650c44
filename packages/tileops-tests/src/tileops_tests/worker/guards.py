"""Guard bands and poison around what the candidate allocates. No dependency but torch, which is handed in."""

from __future__ import annotations

GUARD_BYTES = 256
GUARD_FILL = 0xA7


class GuardedAllocator:
    """Replaces torch's uninitialised allocations: poison inside, guard bands on both sides, broken bands
    reported.

    Only allocations through Python are covered. What a C++ extension allocates itself meets the poison that
    `poison_free_memory` leaves on the heap, but has no bands.
    """

    def __init__(self, torch):
        self.torch = torch
        self.poison = 0xFF
        self.active = False
        self.live = []
        self.empty = torch.empty
        torch.empty = self._wrap(torch.empty)
        torch.empty_like = self._wrap(torch.empty_like)
        torch.empty_strided = self._wrap(torch.empty_strided)
        torch.Tensor.new_empty = self._wrap(torch.Tensor.new_empty)
        torch.Tensor.new_empty_strided = self._wrap(torch.Tensor.new_empty_strided)

    def _wrap(self, original):
        def allocate(*args, **kwargs):
            if not self.active or self._foreign(kwargs):
                return original(*args, **kwargs)
            return self._guarded(original(*args, **kwargs))

        return allocate

    def _foreign(self, kwargs):
        if kwargs.get("out") is not None or kwargs.get("pin_memory") or kwargs.get("layout"):
            return True
        return self.torch._C._len_torch_dispatch_stack() > 0

    def _guarded(self, plain):
        torch = self.torch
        if type(plain) is not torch.Tensor or plain.device.type not in ("cpu", "cuda") or plain.is_quantized:
            return plain
        itemsize = plain.element_size()
        span = (
            1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
            if plain.numel()
            else 0
        )
        body = span * itemsize
        raw = self.empty(body + 2 * GUARD_BYTES, dtype=torch.uint8, device=plain.device)
        raw.fill_(GUARD_FILL)
        inner = raw[GUARD_BYTES : GUARD_BYTES + body]
        inner.fill_(self.poison)
        self.live.append((raw, body))
        typed = inner.view(plain.dtype).as_strided(plain.shape, plain.stride(), GUARD_BYTES // itemsize)
        return typed.requires_grad_(plain.requires_grad) if plain.requires_grad else typed

    def broken(self):
        """How many allocations since the last `reset` have a damaged guard band."""
        damaged = 0
        for raw, body in self.live:
            bands = self.torch.cat([raw[:GUARD_BYTES], raw[GUARD_BYTES + body :]])
            damaged += int(bool((bands != GUARD_FILL).any()))
        return damaged

    def reset(self, poison):
        self.live = []
        self.poison = poison
