"""A flow is how one family of ops runs forward: from checked inputs to a closure that allocates and launches.

There is one flow per *shape of host work* (row-wise, elementwise, matmul, attention ...), not per kind of
maths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.base import Kernel

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["Flow", "Run", "is_unit_inner", "require_dtypes"]

Run = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]


class Flow(ABC):
    """Turns one checked call into a closure. Instances are stateless and shared between threads.

    Attributes:
        kernels: the kernel classes the flow may launch for this op. The op's `ALIGNMENT` is the largest of
            theirs: plans are kept apart by the inputs' addresses modulo it.
    """

    kernels: tuple[type[Kernel], ...] = ()

    @abstractmethod
    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        """Return `run(*inputs)`, which allocates the outputs and launches.

        Called once per (shape, stride, dtype, device of every input; params), the plan key, or twice where
        programs are missing (`compiled_together`). Everything that depends only on those is decided here:
        kernel, config, compiled program, output sizes, whether an input must be copied.

        `inputs` are dense strided tensors on one device that is served by a target, in the entry's order,
        None where an optional one is absent; where an op has none, its device is torch's default one.
        `binding` has every dim, pack, dtype and canonical param. Read the inputs' metadata, and their
        addresses modulo `ALIGNMENT` only; never their values. Keep no reference to them: they are one call's
        inputs, the closure serves many.

        `program.bound(...)` gives a launcher with the sizes fixed, which takes tensors without views of them.
        Compiled programs run on their tensors' device, whatever the current one is.

        The closure gets its tensors in the same order, must not check anything, must not synchronise with the
        device, and returns a tensor, or a tuple where the entry has several outputs. Outputs are new tensors,
        except where the entry declares an input mutated (always, or when a param such as `inplace` says so):
        then that input is written, and an output declared an `alias` of it is that very tensor. No launch for
        an empty output.
        """


def is_unit_inner(tensor: torch.Tensor) -> bool:
    """True if the last dim can be read with stride 1 (a dim of size 1 or 0 can always be).

    >>> is_unit_inner(torch.empty(4, 8)), is_unit_inner(torch.empty(8, 4).t()), is_unit_inner(torch.empty(()))
    (True, False, True)
    """
    return tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1


def require_dtypes(op: str, kernel: type[Kernel], **dtypes: str) -> None:
    """Check dtypes that the entry allows against a kernel's narrower `SUPPORTED_DTYPES`.

    Raises:
        NotImplementedOpError: the kernel does not take one of them.
    """
    for argument, dtype in dtypes.items():
        if dtype not in kernel.SUPPORTED_DTYPES:
            raise NotImplementedOpError(
                op,
                argument=f"{argument}.dtype",
                got=dtype,
                expected=f"one of {sorted(kernel.SUPPORTED_DTYPES)} ({kernel.__name__})",
            )
