"""The class form of an op. Classes are made from manifest entries at run time: nothing here is written per
op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tileops_kernels.ops.commitments import commitments_of
from tileops_kernels.ops.plan import param_key
from tileops_kernels.ops.registry import require_flow
from tileops_kernels.ops.runtime import OpRuntime

if TYPE_CHECKING:
    from tileops_manifest import Binding, Entry

_is_compiling = torch.compiler.is_compiling

__all__ = ["Op", "make_class"]


class _FromRuntime:
    """Class attribute that is read off the op's runtime when asked for: it would load TileLang at class
    creation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Op | None, owner: type[Op]) -> Any:
        return getattr(owner._runtime, self._name)


class Op:
    """Base of every op class: params at construction, tensors at call.

    Class variables (the protocol that every op class fulfils, filled in from its entry):
        _op_name: class name, the key of the manifest entry.
        SUPPORTED_DTYPES: names of the dtypes that the entry allows for any of its inputs.
        ALIGNMENT: bytes to which the kernels distinguish the alignment of an input; 1 if they do not care.
        default_kernel_map: the entry's kernel_map, dispatch key -> kernel class name.
        entry: the manifest entry.

    >>> from tileops_kernels.ops import SoftmaxFwdOp
    >>> SoftmaxFwdOp(dim=-1)(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    _op_name: ClassVar[str]
    SUPPORTED_DTYPES: ClassVar[frozenset[str]]
    ALIGNMENT: ClassVar[int] = _FromRuntime("alignment")  # type: ignore[assignment]
    default_kernel_map: ClassVar[dict[str, str]]
    entry: ClassVar[Entry]
    _runtime: ClassVar[OpRuntime]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Fix the params, and optionally dims by name, which every call must then have.

        Raises:
            ParamError: a param is missing or not of its type, or a committed size is none.
            InputTypeError: an argument the op does not have.
            NotImplementedOpError: the op is spec-only.
        """
        runtime = self._runtime
        dims = {name: kwargs.pop(name) for name in list(kwargs) if self._is_dim(name)}
        values = runtime.signature.fill_params(args, kwargs)
        # Params may be symbolic in a graph, whose call checks them.
        canonical = runtime.named_params(values) if _is_compiling() else runtime.canonical_params(values)
        self._params = values
        self._commitments = commitments_of(self.entry, dims, canonical) if dims else ()
        self._key = (
            tuple([param_key(value) for value in values]),
            tuple([(name, param_key(dims[name])) for name in sorted(dims)]),
        )
        self._arity = len(runtime.signature.inputs)
        self._arguments = (args, kwargs | dims)
        require_flow(self._op_name)  # a spec-only op is refused here, not at the first call

    @classmethod
    def _is_dim(cls, name: str) -> bool:
        return name in cls.entry.dims and name not in cls.entry.params

    @property
    def params(self) -> dict[str, Any]:
        """The params of this instance, defaults filled in."""
        return dict(zip(self._runtime.signature.params, self._params, strict=True))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the op. Inputs in the entry's order or by name; an optional one may be None or left out at the
        end.

        Returns a tensor, or a tuple of tensors where the entry has several outputs.

        Raises:
            SpecError: the call does not fit the entry (ShapeError, DtypeError, RuleError, MissingInputError
                ...).
            OpError: the call fits and cannot be run (DeviceError, LayoutError, ValueDomainError ...).
        """
        runtime = self._runtime
        if named or len(inputs) != self._arity:
            inputs = runtime.signature.fill_inputs(inputs, named)
        if _is_compiling():
            for commitment in self._commitments:
                commitment.check_traced(inputs)
            return runtime.call_overload(inputs, self._params)
        return runtime.call(inputs, self._params, self._key, self._commitments)

    def bind(self, *inputs: Any, **named: Any) -> Binding:
        """Check a call without running it: its dims, outputs, flops and bytes. Tensors may lie on `meta`."""
        runtime = self._runtime
        return runtime.bind(runtime.signature.fill_inputs(inputs, named), self._params)

    def __repr__(self) -> str:
        args, kwargs = self._arguments
        written = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return f"{self._op_name}({', '.join(written)})"

    def __reduce__(self) -> Any:
        args, kwargs = self._arguments
        return (_rebuild, (self._op_name, args, kwargs))


def _rebuild(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Op:
    from tileops_kernels.ops import get_op

    return get_op(name)(*args, **kwargs)


def make_class(runtime: OpRuntime, doc: str) -> type[Op]:
    """Return the op class of an entry."""
    entry = runtime.entry
    return type(
        entry.name,
        (Op,),
        {
            "__doc__": doc,
            "__module__": "tileops_kernels.ops",
            "__signature__": runtime.signature.constructor,
            "_op_name": entry.name,
            "SUPPORTED_DTYPES": frozenset(name for spec in entry.inputs.values() for name in spec.dtypes),
            "default_kernel_map": dict(entry.kernel_map),
            "entry": entry,
            "_runtime": runtime,
        },
    )
