"""Checks of a call that the manifest cannot make: what is a tensor, where it lies, how it is laid out.

Shapes, dtypes, params and rules are checked by `Entry.bind`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.errors import DeviceError, InputTypeError, LayoutError, MissingInputError
from tileops_kernels.ops.flows._layout import span
from tileops_manifest import TensorMeta

if TYPE_CHECKING:
    from tileops_manifest import Binding, Entry

__all__ = [
    "SERVED_DEVICES",
    "bind",
    "check_memory",
    "check_tensors",
    "default_device",
    "first_tensor",
    "spec_value",
]

# Devices that a target runs on; "meta" has shapes only and is served by the fake implementation.
SERVED_DEVICES = frozenset({"cpu", "cuda"})

_is_batched = torch._C._functorch.is_batchedtensor
_functorch_level = torch._C._functorch.peek_interpreter_stack


def _spelled(dtype: torch.dtype) -> str:
    # Any dtype of torch, also one that no target can hold: the entry refuses it by name.
    return str(dtype).removeprefix("torch.")


def spec_value(value: Any) -> Any:
    """Return a param as the manifest, which knows no torch, spells it: dtypes by name, sizes as tuples."""
    if isinstance(value, torch.dtype):
        return _spelled(value)
    return tuple(value) if isinstance(value, torch.Size) else value


def first_tensor(inputs: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """Return the first input that is present; its device is the op's."""
    return next(tensor for tensor in inputs if tensor is not None)


def default_device(op: str, device: torch.device | None = None) -> torch.device:
    """Return the device of an op without inputs, with its index: `device`, or torch's default one.

    Raises:
        DeviceError: this process has no such device, or no target serves it.

    >>> default_device("AlibiFwdOp"), default_device("AlibiFwdOp", torch.device("meta"))
    (device(type='cpu'), device(type='meta'))
    """
    try:
        device = torch.get_default_device() if device is None else device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
    except (AssertionError, RuntimeError) as error:  # what torch raises where a device's backend is missing
        raise _device_error(op, "device", f"one that torch cannot use ({error})") from error
    if device.type not in SERVED_DEVICES | {"meta"}:
        raise _device_error(op, "device", device)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise _device_error(op, "device", f"{device} of {torch.cuda.device_count()} CUDA devices")
    return device


def _device_error(op: str, argument: str, got: object) -> DeviceError:
    expected = " or ".join(sorted(SERVED_DEVICES))
    return DeviceError(op, argument=argument, got=got, expected=expected, rule="a target serves the device")


def check_tensors(entry: Entry, inputs: Sequence[Any]) -> None:
    """Check type, layout and device of every input.

    Raises:
        InputTypeError: an input is not a tensor.
        MissingInputError: an input that is not optional is None.
        LayoutError: an input is sparse, nested, quantised or of another layout without strides, has no shape
            yet, or belongs to a `vmap` that has ended.
        DeviceError: the inputs lie on several devices, or on one that no target serves.
    """
    anchor: tuple[str, torch.device] | None = None
    for spec, tensor in zip(entry.inputs.values(), inputs, strict=True):
        if tensor is None:
            if not spec.optional:
                raise MissingInputError(
                    entry.name,
                    f"input {spec.name!r} is missing",
                    argument=spec.name,
                    got=None,
                    expected="a tensor",
                    rule="required",
                )
            continue
        if not isinstance(tensor, torch.Tensor):
            raise InputTypeError(
                entry.name, argument=spec.name, got=_describe(tensor), expected="a torch.Tensor"
            )
        _check_layout(entry.name, spec.name, tensor)
        if anchor is None:
            anchor = (spec.name, tensor.device)
            if tensor.device.type not in SERVED_DEVICES | {"meta"}:
                raise _device_error(entry.name, f"{spec.name}.device", tensor.device)
        elif tensor.device != anchor[1]:
            raise DeviceError(
                entry.name,
                argument=f"{spec.name}.device",
                got=tensor.device,
                expected=f"{anchor[0]}.device = {anchor[1]}",
                rule="all inputs on one device",
            )


def _check_layout(op: str, name: str, tensor: torch.Tensor) -> None:
    kind = None
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        kind = "an uninitialised parameter"
    elif _is_batched(tensor) and _functorch_level() is None:
        kind = "a tensor of a vmap that has ended"
    elif tensor.is_nested:
        kind = "a nested tensor"
    elif tensor.layout is not torch.strided:
        kind = f"a tensor of layout {tensor.layout}"
    elif tensor.is_quantized:
        kind = f"a quantised tensor ({tensor.dtype})"
    if kind is not None:
        raise LayoutError(op, argument=name, got=kind, expected="a dense strided tensor", rule="dense inputs")


def check_memory(entry: Entry, inputs: Sequence[torch.Tensor | None]) -> None:
    """Check that every input's storage holds its elements: kernels read addresses.

    Raises:
        LayoutError: the storage was freed or shrunk under the tensor.
    """
    for name, tensor in zip(entry.inputs, inputs, strict=True):
        if tensor is None or tensor.device.type not in SERVED_DEVICES or not tensor.numel():
            continue
        reach = tensor.storage_offset() + span(tensor.shape, tensor.stride())
        needed, held = reach * tensor.element_size(), tensor.untyped_storage().nbytes()
        if held < needed or not tensor.data_ptr():
            raise LayoutError(
                entry.name,
                argument=f"{name}.untyped_storage()",
                got=f"of {held} bytes",
                expected=f"at least {needed} bytes of memory",
                rule="the storage holds the tensor",
            )


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def bind(entry: Entry, inputs: Sequence[torch.Tensor | None], params: Mapping[str, Any]) -> Binding:
    """Check a call against its entry. Sizes may be symbolic.

    Raises:
        SpecError: see `Entry.bind`.
    """
    metas = {
        name: None if tensor is None else TensorMeta(tuple(tensor.shape), _spelled(tensor.dtype))
        for name, tensor in zip(entry.inputs, inputs, strict=True)
    }
    return entry.bind(metas, {name: spec_value(value) for name, value in params.items()})
