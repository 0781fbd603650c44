"""How a call's arguments are laid out: inputs in order, then params in order. One record per entry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tileops_kernels.errors import InputTypeError, MissingInputError, ParamError
from tileops_manifest.errors import suggest

if TYPE_CHECKING:
    from tileops_manifest import Entry

__all__ = ["MISSING", "CallSignature"]


class _Missing:
    def __repr__(self) -> str:
        return "<required>"


MISSING: Any = _Missing()


@dataclass(frozen=True)
class CallSignature:
    """The signature of one op.

    Attributes:
        op: class name of the op.
        inputs: names of the inputs, in order.
        params: names of the params, in order.
        defaults: one per input and param, `MISSING` where there is none (an optional input's is None).
        positional: how many of them may be given by position.
        required: how many arguments from the left must be given when no keyword is used.
        function: signature of the functional form.
        constructor: signature of the class form, without the keyword-only commitments to dims.
    """

    op: str
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    defaults: tuple[Any, ...]
    positional: int
    required: int
    function: inspect.Signature
    constructor: inspect.Signature

    @classmethod
    def of(cls, entry: Entry) -> CallSignature:
        """Derive the signature from an entry. Keyword-only params come last, as Python wants them."""
        specs = sorted(entry.params.values(), key=lambda spec: bool(spec.kw_only))
        names = (*entry.inputs, *(spec.name for spec in specs))
        defaults = (
            *(None if spec.optional else MISSING for spec in entry.inputs.values()),
            *(MISSING if spec.required else spec.default for spec in specs),
        )
        positional = len(entry.inputs) + sum(not spec.kw_only for spec in specs)
        required = max((i + 1 for i, default in enumerate(defaults) if default is MISSING), default=0)
        inputs = len(entry.inputs)
        return cls(
            op=entry.name,
            inputs=names[:inputs],
            params=names[inputs:],
            defaults=defaults,
            positional=positional,
            required=required,
            function=_signature(names, defaults, positional),
            constructor=_signature(names[inputs:], defaults[inputs:], positional - inputs),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return self.inputs + self.params

    def fill(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return one value per input and param, from a call of the functional form.

        An optional input may be left out by keyword even where a required param follows it.

        Raises:
            InputTypeError: too many positional arguments, or one that is unknown or given twice.
            MissingInputError, ParamError: an input or param without a default is missing.
        """
        if not kwargs and self.required <= len(args) <= self.positional:
            return args + self.defaults[len(args) :]
        return self._fill(self.names, self.defaults, self.positional, args, kwargs)

    def fill_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return one value per input, from a call of the class form. Raises like `fill`."""
        count = len(self.inputs)
        return self._fill(self.inputs, self.defaults[:count], count, args, kwargs)

    def fill_params(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return one value per param, from a construction of the class form. Raises like `fill`."""
        count = len(self.inputs)
        return self._fill(self.params, self.defaults[count:], self.positional - count, args, kwargs)

    def _fill(
        self,
        names: tuple[str, ...],
        defaults: tuple[Any, ...],
        positional: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        if len(args) > positional:
            raise InputTypeError(
                self.op,
                argument="call",
                got=len(args),
                expected=positional,
                message=f"takes {positional} arguments ({', '.join(names[:positional])}), got {len(args)}",
            )
        for name in kwargs:
            if name not in names:
                raise InputTypeError(
                    self.op, argument=name, message=f"no argument {name!r}{suggest(name, names)}"
                )
            if name in names[: len(args)]:
                raise InputTypeError(self.op, argument=name, message=f"argument {name!r} was given twice")
        values = list(args)
        for name, default in zip(names[len(args) :], defaults[len(args) :], strict=True):
            value = kwargs.get(name, default)
            if value is MISSING:
                raise self._missing(name)
            values.append(value)
        return tuple(values)

    def _missing(self, name: str) -> Exception:
        kind, error = ("input", MissingInputError) if name in self.inputs else ("param", ParamError)
        return error(
            self.op,
            f"{kind} {name!r} is missing",
            argument=name,
            got=None,
            expected=str(self.function),
            rule="required",
        )


def _signature(names: tuple[str, ...], defaults: tuple[Any, ...], positional: int) -> inspect.Signature:
    # Python allows no default before an argument without one: an optional input there must be passed (None
    # will do).
    last_required = max((i for i in range(positional) if defaults[i] is MISSING), default=-1)
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(
                name,
                kinds.POSITIONAL_OR_KEYWORD if i < positional else kinds.KEYWORD_ONLY,
                default=kinds.empty if default is MISSING or i < min(last_required, positional) else default,
            )
            for i, (name, default) in enumerate(zip(names, defaults, strict=True))
        ]
    )
