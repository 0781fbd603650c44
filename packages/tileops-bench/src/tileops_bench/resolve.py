"""From a reference to a callable, inside the measuring process only."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tileops_bench.errors import CandidateError

if TYPE_CHECKING:
    from tileops_bench.baselines import Case

OWN = "tileops"
BASELINE_PREFIX = "baseline:"


def resolve(ref: str, case: Case) -> Callable[..., Any]:
    """Build the callable that is then timed as `fn(*inputs)`.

    * `tileops`: the op of tileops-kernels, constructed with the row's params; one without inputs is called
      with the target as torch's default device.
    * `baseline:NAME`: a baseline of this package.
    * `FILE.py:OBJECT` or `package.module:OBJECT`: called as `OBJECT(*inputs, **params)`.

    Raises:
        CandidateError: the reference names nothing callable.
    """
    if ref == OWN:
        from tileops_kernels.ops import get_op

        op = get_op(case.op)(**case.params)
        return op if case.inputs else _on_default_device(op, case.target)
    if ref.startswith(BASELINE_PREFIX):
        from tileops_bench.baselines import baseline

        return baseline(case.op, ref.removeprefix(BASELINE_PREFIX)).make(case)
    function = _load(ref)
    params = dict(case.params)
    return lambda *inputs: function(*inputs, **params)


def _on_default_device(op: Callable[..., Any], target: str) -> Callable[..., Any]:
    import torch

    device = torch.device(target)

    def call() -> Any:
        with device:
            return op()

    return call


def split_reference(ref: str) -> tuple[str, str]:
    """Split `PLACE:OBJECT`; raises CandidateError when it is not of that form."""
    place, colon, name = ref.rpartition(":")
    if not (colon and place and name):
        raise CandidateError(
            f"candidate {ref!r}: expected 'tileops', 'FILE.py:OBJECT' or 'package.module:OBJECT'"
        )
    return place, name


def _load(ref: str) -> Callable[..., Any]:
    place, name = split_reference(ref)
    module = _load_file(place) if place.endswith(".py") else importlib.import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise CandidateError(f"candidate {ref!r}: {place} has no callable {name!r}")
    return function


def _load_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise CandidateError(f"candidate file {place!r} does not exist")
    spec = importlib.util.spec_from_file_location(f"tileops_bench_candidate_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CandidateError(f"candidate file {place!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
