"""Memory that the parent owns: layouts, seals, guard bands."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
import torch

from tileops_tests import memory
from tileops_tests.memory import SharedMemory, changed_inputs, pack, same_layout, sealed_copy, unpack


def tensors() -> dict[str, torch.Tensor | None]:
    base = torch.arange(24, dtype=torch.float32)
    return {
        "plain": base.reshape(4, 6),
        "transposed": base.reshape(4, 6).t(),
        "strided": base[1::2],
        "expanded": torch.arange(3, dtype=torch.bfloat16)[:, None].expand(3, 5),
        "absent": None,
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
    }


def test_every_layout_survives_packing() -> None:
    inputs = tensors()
    unpacked = unpack(pack(inputs))
    for name, tensor in inputs.items():
        if tensor is None:
            assert name not in unpacked
            continue
        assert torch.equal(unpacked[name], tensor)
        assert unpacked[name].stride() == tensor.stride()


def test_misalignment_of_an_offset_input_is_kept() -> None:
    x = torch.arange(8, dtype=torch.float16)[1:]
    (slot,) = pack({"x": x}).slots
    assert slot.data % memory.ALIGNMENT == 2


def test_changes_are_found_in_data_in_gaps_and_in_guard_bands() -> None:
    inputs = {"x": torch.arange(8.0), "gappy": torch.arange(8.0)[::2]}
    image = pack(inputs)
    x, gappy = image.slots
    assert changed_inputs(image, image.content.clone()) == []
    for position, expected in (
        (x.data, ("x", "data")),
        (x.data - 1, ("x", "guard")),
        (x.data + 32, ("x", "guard")),
        (gappy.data + 4, ("gappy", "data")),
        (gappy.data + 28, ("gappy", "guard")),
    ):
        work = image.content.clone()
        work[position] ^= 1
        assert changed_inputs(image, work) == [expected]


def test_same_layout_compares_buffers_and_not_values() -> None:
    assert same_layout(pack({"x": torch.zeros(4)}), pack({"x": torch.ones(4)}))
    assert not same_layout(pack({"x": torch.zeros(4)}), pack({"x": torch.zeros(5)}))


def test_sealed_memory_cannot_be_written_or_resized_by_who_holds_it(tmp_path: Path) -> None:
    with sealed_copy(torch.arange(10, dtype=torch.uint8), tmp_path) as sealed:
        assert mmap.mmap(sealed.fd, sealed.size, mmap.MAP_SHARED, mmap.PROT_READ)[:3] == b"\x00\x01\x02"
        with pytest.raises(PermissionError):
            os.pwrite(sealed.fd, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(sealed.fd, sealed.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.ftruncate(sealed.fd, 0)


def test_read_only_files_stand_in_where_there_is_no_memfd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "mechanism", lambda: memory.READ_ONLY_FILE)
    with sealed_copy(torch.arange(10, dtype=torch.uint8), tmp_path) as sealed:
        assert os.pread(sealed.fd, 3, 0) == b"\x00\x01\x02"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(sealed.fd, b"x", 0)
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_work_memory_cannot_be_shrunk_under_its_owner(tmp_path: Path) -> None:
    with SharedMemory(100, tmp_path) as work:
        work.fix_size()
        work.bytes[0] = 1
        with pytest.raises(PermissionError):
            os.ftruncate(work.fd, 0)
