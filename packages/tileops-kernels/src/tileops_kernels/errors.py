"""Typed errors of the implementation stage.

Errors about an op's *interface* (shapes, dtypes, params, rules) are the manifest's own and are re-exported
here; the classes below are about what only an implementation can know: devices, layouts, values, autograd.
"""

from __future__ import annotations

from typing import Any

from tileops_manifest import (
    DtypeError,
    ManifestError,
    MissingInputError,
    ParamError,
    RuleError,
    ShapeError,
    SpecError,
    UnknownOpError,
)

__all__ = [
    "AutogradNotSupportedError",
    "ConfigError",
    "DeviceError",
    "DtypeError",
    "InputTypeError",
    "LayoutError",
    "ManifestError",
    "MissingInputError",
    "NotImplementedOpError",
    "OpError",
    "ParamError",
    "RuleError",
    "ShapeError",
    "SpecError",
    "UnknownOpError",
    "ValueDomainError",
]


class OpError(Exception):
    """An op cannot run what it was asked to run.

    Attributes:
        op: class name of the op, as the manifest spells it.
        argument: the argument at fault, or None when it is the call as a whole.
        got: what was passed.
        expected: what the op accepts.
        rule: the rule that was broken, in words.

    >>> str(DeviceError("AddFwdOp", argument="other", got="cuda:1", expected="cuda:0 (the device of input)"))
    'AddFwdOp: other is cuda:1, expected cuda:0 (the device of input)'
    """

    def __init__(
        self,
        op: str,
        *,
        argument: str | None = None,
        got: Any = None,
        expected: Any = None,
        rule: str | None = None,
        message: str | None = None,
    ) -> None:
        self.op, self.argument, self.got, self.expected, self.rule = op, argument, got, expected, rule
        if message is None:
            message = f"{argument} is {got}, expected {expected}"
        super().__init__(f"{op}: {message}")


class DeviceError(OpError, RuntimeError):
    """The inputs lie on a device no target serves, or on more than one device."""


class LayoutError(OpError, TypeError):
    """An input is not a dense strided tensor in memory: it is sparse, quantised, nested, uninitialised or
    freed, or is to be written and has elements that share a place."""


class InputTypeError(OpError, TypeError):
    """An argument that must be a tensor is something else, or the call has the wrong number of arguments."""


class NotImplementedOpError(OpError, NotImplementedError):
    """The manifest specifies the op and no kernel implements it (yet) for the dtypes and device asked for."""


class ValueDomainError(OpError, ValueError):
    """An integer input holds a value outside the domain that the entry declares for it."""


class AutogradNotSupportedError(OpError, RuntimeError):
    """An input requires grad and the op has no backward."""


class ConfigError(ValueError):
    """A kernel config or static argument is not what the kernel declares."""
