"""The worker's view of one case's memory, all of which the parent owns."""

from __future__ import annotations

import mmap
import os


class CaseBuffers:
    """Buffers of one case: the sealed values, the work memory that inputs live in, the memory for output
    bytes.
    """

    def __init__(self, torch, message, fds):
        self.torch = torch
        self.message = message
        self.device = torch.device(message["device"])
        names = message["values"]
        self.values = {name: self._map(fd, writable=False) for name, fd in zip(names, fds, strict=False)}
        self.work = self._map(fds[len(names)], writable=True)
        self.out = self._map(fds[len(names) + 1], writable=True)
        for fd in fds:
            os.close(fd)
        self.host = [self._host_tensor(slot) for slot in message["inputs"]]
        self.inputs = [
            self._on_device(slot, raw) for slot, raw in zip(message["inputs"], self.host, strict=True)
        ]

    @staticmethod
    def _map(fd, writable):
        size = os.fstat(fd).st_size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(fd, size, mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE, protection)

    def _host_tensor(self, slot):
        """Raw bytes of one input's storage, guard bands included, over the work memory."""
        if slot is None:
            return None
        return self.torch.frombuffer(
            self.work, dtype=self.torch.uint8, count=slot["end"] - slot["begin"], offset=slot["begin"]
        )

    def _on_device(self, slot, raw):
        if slot is None:
            return None
        storage = raw if self.device.type == "cpu" else self.torch.empty_like(raw, device=self.device)
        dtype = getattr(self.torch, slot["dtype"])
        inner = storage[slot["data"] - slot["begin"] :]
        inner = inner[: len(inner) - len(inner) % dtype.itemsize]
        base = storage.storage_offset() + slot["data"] - slot["begin"]
        return inner.view(dtype).as_strided(slot["shape"], slot["stride"], base // dtype.itemsize)

    def fill(self, name):
        """Put one set of values into the buffers; addresses stay what they were."""
        memoryview(self.work)[:] = memoryview(self.values[name])
        if self.device.type == "cpu":
            return
        for raw, tensor in zip(self.host, self.inputs, strict=True):
            if raw is not None:
                self._device_bytes(tensor).copy_(raw)

    def bring_back(self):
        """Let the parent see what the candidate left in the inputs."""
        if self.device.type == "cpu":
            return
        for raw, tensor in zip(self.host, self.inputs, strict=True):
            if raw is not None:
                raw.copy_(self._device_bytes(tensor))

    def _device_bytes(self, tensor):
        return self.torch.empty(0, dtype=self.torch.uint8, device=self.device).set_(tensor.untyped_storage())

    def poison_free_memory(self, poison):
        """Fill blocks of the outputs' sizes and free them, so that memory an allocator hands out holds no old
        result.
        """
        for nbytes in self.message["output_bytes"]:
            blocks = [self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.device) for _ in range(2)]
            for block in blocks:
                block.fill_(poison)

    def alias(self, tensor):
        """Index of the input whose storage `tensor` lies in, or None."""
        if tensor.numel() == 0:
            return None
        begin = tensor.data_ptr()
        for index, mine in enumerate(self.inputs):
            if mine is None or mine.numel() == 0 or mine.device != tensor.device:
                continue
            storage = mine.untyped_storage()
            low = storage.data_ptr()
            if low <= begin < low + storage.nbytes():
                return index
        return None
