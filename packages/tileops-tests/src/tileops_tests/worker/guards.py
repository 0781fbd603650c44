"""Guard bands and poison around what the candidate allocates. No dependency but torch, which is handed in."""

from __future__ import annotations

GUARD_BYTES = 256
GUARD_FILL = 0xA7
ALIGNMENT = 64


class GuardedAllocator:
    """Replaces torch's uninitialised allocations: poison inside, guard bands around, broken bands reported.

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
        if kwargs.get("out") is not None or kwargs.get("pin_memory"):
            return True
        if kwargs.get("layout") not in (None, self.torch.strided):
            return True
        return self.torch._C._len_torch_dispatch_stack() > 0

    def _guarded(self, plain):
        devices = {"cpu": self._on_cpu, "cuda": self._on_cuda}
        make = devices.get(plain.device.type)
        if make is None or type(plain) is not self.torch.Tensor or plain.is_quantized or not plain.numel():
            return plain
        steps = sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
        body = (1 + steps) * plain.element_size()
        inner, bands = make(body, plain.device)
        inner.fill_(self.poison)
        self.live.append((f"{plain.dtype}{list(plain.shape)}", bands))
        typed = inner.view(plain.dtype).as_strided(plain.shape, plain.stride(), 0)
        return typed.requires_grad_(True) if plain.requires_grad else typed

    def _on_cpu(self, body, device):
        """A storage that begins after the first band, as a fresh allocation's begins at its first element."""
        torch = self.torch
        buffer = bytearray(body + 2 * GUARD_BYTES + ALIGNMENT)
        whole = torch.frombuffer(buffer, dtype=torch.uint8)
        start = GUARD_BYTES + -(whole.data_ptr() + GUARD_BYTES) % ALIGNMENT
        whole.fill_(GUARD_FILL)
        inner = torch.frombuffer(memoryview(buffer)[start : start + body], dtype=torch.uint8)
        return inner, (whole[:start], whole[start + body :])

    def _on_cuda(self, body, device):
        """Only the band behind: a storage cannot begin inside another one's block."""
        raw = self.empty(body + GUARD_BYTES, dtype=self.torch.uint8, device=device)
        raw[body:].fill_(GUARD_FILL)
        return raw[:body], (raw[body:],)

    def broken(self):
        """Descriptions of the allocations since the last `reset` that have a damaged guard band."""
        damaged = []
        for what, bands in self.live:
            written = sum(int((band != GUARD_FILL).sum()) for band in bands)
            if written:
                damaged.append(f"{what} ({written} bytes)")
        return damaged

    def reset(self, poison):
        self.live = []
        self.poison = poison
