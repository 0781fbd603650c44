"""Registration with PyTorch's dispatcher: schema, kernels, fake implementation and the autograd refusal.

`Library.define` and `Library.impl` rather than `torch.library.custom_op`: the latter adds Python layers to
every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.errors import AutogradNotSupportedError
from tileops_kernels.ops.schema import NAMESPACE, schema_of

if TYPE_CHECKING:
    from tileops_kernels.ops.mutation import Mutation
    from tileops_kernels.ops.runtime import OpRuntime

__all__ = ["register"]

# Registrations live as long as this object does.
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def register(runtime: OpRuntime, mutation: Mutation | None = None) -> Any:
    """Define and implement `torch.ops.tileops.<function_name>`; return its overload.

    With `mutation`, register the form of the op that writes its inputs, `<function_name>_`. It returns the
    new outputs only.

    Raises:
        ConfigError: torch schemas cannot say the type of a param.
    """
    name = runtime.entry.function_name + ("_" if mutation else "")
    count = len(runtime.signature.inputs)

    # PyTorch leaves out trailing arguments that equal the schema's defaults.
    def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values = args + runtime.signature.defaults[len(args) :]
        return values[:count], runtime.from_torch(values[count:])

    def execute(*args: Any) -> Any:
        result = runtime.execute(*split(args))
        return _packed(mutation.drop(result)) if mutation else result

    def create(*args: Any, device: torch.device | None = None) -> Any:
        return runtime.create(split(args)[1], device)

    def fake(*args: Any, device: torch.device | None = None) -> Any:
        inputs, params = split(args)
        outputs = runtime.empty_outputs(inputs, [_constant(param) for param in params], device)
        return _packed(mutation.drop(outputs) if mutation else outputs)

    def autograd(*args: Any, **named: Any) -> Any:
        _refuse_gradients(runtime, *split(args))
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args, **named)

    schema = schema_of(runtime.entry, runtime.signature, in_place=mutation is not None)
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    # Without a tensor no backend can be told from the arguments: the op itself chooses one.
    for key, kernel in (("CPU", execute), ("CUDA", execute)) if count else (("BackendSelect", create),):
        _LIBRARY.impl(name, kernel, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    _LIBRARY.impl(name, autograd, "Autograd")
    return overload


def _constant(param: Any) -> Any:
    """Return a param with a symbolic scalar replaced by its value: a compiled graph is guarded on it.

    Sizes in lists stay symbolic. Rules ask of a number (`alpha`) whether it is an int, which a symbol hides.
    """
    if isinstance(param, torch.SymInt):
        return int(param)
    return float(param) if isinstance(param, torch.SymFloat) else param


def _packed(tensors: Any) -> Any:
    """Return outputs as a torch operator does: none, one tensor, or a tuple."""
    if not tensors:
        return None
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _refuse_gradients(runtime: OpRuntime, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> None:
    """Raise if the caller expects a derivative: a result that silently has none would train nothing."""
    wanting = [
        name
        for name, tensor in zip(runtime.signature.inputs, inputs, strict=True)
        if tensor is not None and _wants_derivative(tensor)
    ]
    if not wanting:
        return
    outputs = runtime.bind(inputs, params).outputs.values()
    if any(torch_dtype(meta.dtype).is_floating_point for meta in outputs):
        raise AutogradNotSupportedError(
            runtime.entry.name,
            argument=wanting[0],
            got="a tensor that requires grad",
            expected="no gradient",
            rule="the op has no backward",
            message=(
                f"{wanting[0]} requires grad and the op has no backward; "
                "call it under torch.no_grad() or on a detached tensor"
            ),
        )


def _wants_derivative(tensor: torch.Tensor) -> bool:
    if torch.is_grad_enabled() and tensor.requires_grad:
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None
