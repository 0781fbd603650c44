"""From sizes to inputs: the shapes and dtypes that dims, params and a dtype assignment stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tileops_manifest.errors import DimError, ExpressionError, UnknownInputError, suggest
from tileops_manifest.tensors import DtypeItem, TensorMeta, TensorSpec
from tileops_manifest.unify import flatten

if TYPE_CHECKING:
    from tileops_manifest.entry import Entry

Metas = dict[str, TensorMeta | None]


def realise(
    entry: Entry,
    dims: Mapping[str, Any],
    params: Mapping[str, Any],
    dtypes: DtypeItem,
    with_: tuple[str, ...],
) -> tuple[Metas, dict[str, Any]]:
    """Inputs and canonical params of a call given by its sizes. Raises DimError, ParamError or DtypeError.

    A param that equals a dim or a dtype variable is filled in from it, and the other way round.
    """
    _check_dims(entry, dims)
    _check_optional(entry, with_)
    assignment = entry.resolve_dtypes(dtypes)
    known = {**dims, **assignment}
    derived = {
        name: known[spec.binds]
        for name, spec in entry.params.items()
        if spec.binds in known and name not in params
    }
    canonical = entry.canonical_params({**params, **derived})
    env: dict[str, Any] = dict(canonical)
    for name, spec in entry.params.items():
        if spec.binds in assignment and canonical[name] is not None:
            assignment[spec.binds] = canonical[name]
        elif spec.binds is not None and canonical[name] is not None:
            env[spec.binds] = canonical[name]
    env.update((name, tuple(size) if isinstance(size, list) else size) for name, size in dims.items())
    env.update((name, dtype) for name, dtype in assignment.items() if name not in entry.inputs)
    shapes = {
        name: _shape(entry, spec, env)
        for name, spec in entry.inputs.items()
        if not spec.optional or name in with_
    }
    return _metas(entry, shapes, assignment, env), canonical


def _check_dims(entry: Entry, dims: Mapping[str, Any]) -> None:
    for name, value in dims.items():
        if name not in entry.dims:
            message = f"unknown dim {name!r}{suggest(name, entry.dims)}"
            raise DimError(entry.name, message, argument=name, expected=tuple(entry.dims))
        pack = entry.dims[name].pack
        expected = None
        if isinstance(value, list | tuple) != pack:
            expected = "a list of sizes" if pack else "one size"
        elif any(isinstance(size, bool) or size < 0 for size in (value if pack else (value,))):
            expected = "sizes >= 0"
        if expected is not None:
            message = f"{name} is {value!r}, expected {expected}"
            raise DimError(entry.name, message, argument=name, got=value, expected=expected)


def _check_optional(entry: Entry, with_: tuple[str, ...]) -> None:
    optional = tuple(name for name, spec in entry.inputs.items() if spec.optional)
    for name in with_:
        if name not in optional:
            message = f"{name!r} is not an optional input{suggest(name, optional)}"
            raise UnknownInputError(entry.name, message, argument=name, expected=optional)


def _shape(entry: Entry, spec: TensorSpec, env: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        return spec.pattern.realise(env)
    except KeyError as error:
        missing = error.args[0]
    except ExpressionError as error:
        missing = str(error)
    message = f"{spec.name}.shape {spec.shape} needs a size for {missing}"
    raise DimError(entry.name, message, argument=spec.name, expected=missing, rule=str(spec.shape))


def _metas(
    entry: Entry, shapes: Mapping[str, tuple[Any, ...]], assignment: Mapping[str, str], env: dict[str, Any]
) -> Metas:
    metas: Metas = dict.fromkeys(entry.inputs)
    env.update(metas)
    # Variables first: a `same_as` may name an input that stands after it.
    for name, source in sorted(entry.input_dtypes.items(), key=lambda item: not isinstance(item[1], str)):
        if name in shapes:
            dtype = assignment[source] if isinstance(source, str) else flatten(source.evaluate(env))[0]
            env[name] = metas[name] = TensorMeta(shapes[name], dtype)
    return metas
