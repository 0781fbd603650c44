"""How products read an operand: as it lies, as the transpose of what lies there, or through one copy."""

from __future__ import annotations

import torch

from tileops_kernels.ops.flows._dense import Read, dense_copy, is_aligned, same

__all__ = ["flipped", "flipped_copy", "is_out_of_reach", "operand"]


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the view whose rows are the columns of the matrices."""
    return tensor.mT


def flipped_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row-major copy of the transposed matrices."""
    return dense_copy(tensor.mT)


def _storage(tensor: torch.Tensor, transposed: bool) -> tuple[bool, bool]:
    """Return whether the operand is stored transposed, and whether the tensor is a view that flips it."""
    flip = not tensor.is_contiguous() and tensor.mT.is_contiguous()
    return transposed ^ flip, flip


def is_out_of_reach(tensor: torch.Tensor, transposed: bool, kernel: type) -> bool:
    """True if a GPU's copy engine cannot address the rows of a transposed operand.

    A program knows the length of the other operands' rows, and reads them without the engine if it must.
    """
    stored_transposed, flip = _storage(tensor, transposed)
    row_bytes = tensor.shape[-2 if flip else -1] * tensor.element_size()
    return tensor.device.type == "cuda" and stored_transposed and row_bytes % kernel.ALIGNMENT != 0


def operand(tensor: torch.Tensor, transposed: bool, kernel: type, any_rows: bool) -> tuple[bool, Read]:
    """Decide how a kernel reads one operand: whether as the transpose, and what is done to the tensor first.

    A row-major operand is read as it is, a column-major one (a `.mT` view) as the transpose of its storage.
    Anything else is copied once, and so is what the copy engine of a GPU cannot address: a start that is not
    aligned, or, unless the program takes `any_rows`, rows out of its reach.
    """
    if not any_rows and is_out_of_reach(tensor, transposed, kernel):
        return False, (flipped_copy if transposed else dense_copy)
    stored_transposed, flip = _storage(tensor, transposed)
    if is_aligned(tensor, kernel) and (flip or tensor.is_contiguous()):
        return stored_transposed, (flipped if flip else same)
    return stored_transposed, (flipped_copy if flip else dense_copy)
