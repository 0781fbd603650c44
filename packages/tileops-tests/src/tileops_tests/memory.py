"""Memory that the parent owns and a worker may see: sealed inputs, work buffers with guard bands, output
bytes.

All inputs of a case lie in one image: for each tensor a guard band, the bytes of its storage that it spans
(gaps between strided elements included), and another guard band. The image is sealed read-only; the worker
copies it into the work memory, whose content the parent compares with the image after the run. So an input
that was written, a gap that was written and a store just past an input are all seen by a process that the
candidate's code never runs in.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from tileops_tests.precision import dtype_name

GUARD_BYTES = 256
GUARD_FILL = 0xA7
ALIGNMENT = 64
_PAGE = 4096

SEALED_MEMFD = "sealed-memfd"
READ_ONLY_FILE = "read-only-file"


def mechanism() -> str:
    """How inputs are protected on this system."""
    return SEALED_MEMFD if hasattr(os, "memfd_create") else READ_ONLY_FILE


@dataclass(frozen=True)
class Slot:
    """Where one input lies in the image, offsets in bytes, strides in elements: the tensor from `data` to
    `stop`, with its guard bands from `begin` to `end`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    begin: int
    data: int
    stop: int
    end: int

    def message(self) -> dict:
        """As the worker is told."""
        return asdict(self)


@dataclass(frozen=True)
class Image:
    """Bytes of all inputs of a case, in the parent's own memory: what the truth is compared with."""

    slots: tuple[Slot | None, ...]
    content: Tensor


def pack(inputs: Mapping[str, Tensor | None]) -> Image:
    """Lay inputs out in one image; strides, gaps and the alignment of each first element are kept."""
    slots: list[Slot | None] = []
    cursor = 0
    for name, tensor in inputs.items():
        if tensor is None:
            slots.append(None)
            continue
        lead = (tensor.storage_offset() * tensor.element_size()) % ALIGNMENT
        data = cursor + GUARD_BYTES + lead
        stop = data + _span(tensor)
        end = stop + GUARD_BYTES
        end += -end % ALIGNMENT
        slots.append(
            Slot(
                name, dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), cursor, data, stop, end
            )
        )
        cursor = end
    content = torch.full((max(cursor + -cursor % _PAGE, _PAGE),), GUARD_FILL, dtype=torch.uint8)
    for slot, tensor in zip(slots, inputs.values(), strict=True):
        if slot is not None:
            content[slot.data : slot.data + _span(tensor)].copy_(_storage_bytes(tensor))
    return Image(tuple(slots), content)


def unpack(image: Image) -> dict[str, Tensor]:
    """Views of the inputs in an image, by name (absent ones are left out)."""
    found = {}
    for slot in image.slots:
        if slot is not None:
            dtype = getattr(torch, slot.dtype)
            whole = image.content[slot.data : slot.end]
            whole = whole[: len(whole) - len(whole) % dtype.itemsize].clone().view(dtype)
            found[slot.name] = whole.as_strided(slot.shape, slot.stride)
    return found


def same_layout(a: Image, b: Image) -> bool:
    """Whether two images describe the same buffers, so that values can be exchanged in place."""
    return a.slots == b.slots


def changed_inputs(image: Image, work: Tensor) -> list[tuple[str, str]]:
    """(input, "data" | "guard") for every region of the work memory that differs from the image."""
    if torch.equal(work, image.content):
        return []
    changes = []
    for slot in image.slots:
        if slot is None:
            continue
        differs = work[slot.begin : slot.end] != image.content[slot.begin : slot.end]
        low, high = slot.data - slot.begin, slot.stop - slot.begin
        if bool(differs[low:high].any()):
            changes.append((slot.name, "data"))
        if bool(differs[:low].any()) or bool(differs[high:].any()):
            changes.append((slot.name, "guard"))
    return changes


def _span(tensor: Tensor) -> int:
    """Bytes from a tensor's first to its last element, gaps included."""
    if tensor.numel() == 0:
        return 0
    elements = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return elements * tensor.element_size()


def _storage_bytes(tensor: Tensor) -> Tensor:
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    begin = tensor.storage_offset() * tensor.element_size()
    return whole[begin : begin + _span(tensor)]


class SharedMemory:
    """A block named by a file descriptor, mapped here; closed by `close` or at the end of a `with` block."""

    def __init__(self, size: int, scratch: Path) -> None:
        self.size = max(size + -size % _PAGE, _PAGE)
        self._path: Path | None = None
        if mechanism() == SEALED_MEMFD:
            self.fd = os.memfd_create("tileops", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            self.fd, path = tempfile.mkstemp(dir=scratch)
            self._path = Path(path)
        os.ftruncate(self.fd, self.size)
        self._map: mmap.mmap | None = mmap.mmap(self.fd, self.size)

    @property
    def bytes(self) -> Tensor:
        """The whole block as uint8; do not keep it beyond the block's life."""
        if self._map is None:
            raise ValueError("this memory is sealed or closed")
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def seal(self) -> None:
        """Make the content immutable for everyone who holds the descriptor (memfd), or hand out a read-only
        one (file).
        """
        self._unmap()
        if self._path is None:
            import fcntl

            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            return
        os.close(self.fd)
        self._path.chmod(0o400)
        self.fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def fix_size(self) -> None:
        """Let the content be written but the block neither grow nor shrink: a shrunk block would crash its
        owner.
        """
        if self._path is None:
            import fcntl

            fcntl.fcntl(
                self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            )

    def close(self) -> None:
        self._unmap()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def sealed_copy(content: Tensor, scratch: Path) -> SharedMemory:
    """A sealed block that holds `content` (uint8, one-dimensional)."""
    memory = SharedMemory(content.numel(), scratch)
    memory.bytes[: content.numel()].copy_(content)
    memory.seal()
    return memory
