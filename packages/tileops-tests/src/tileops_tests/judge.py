"""The verdict on one case, in the order that the design fixes.

poison → run → snapshot → inputs unchanged → guard bands intact → arity, dtype, shape, stride, device →
values → run again (bitwise, or to the declared determinism) → run with other values in the same buffers →
outputs of the first run intact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tileops_manifest import Binding
from tileops_tests.codes import ReasonCode
from tileops_tests.comparator import (
    Finding,
    OutputMeta,
    OutputReference,
    check_meta,
    compare,
    contiguous_stride,
)
from tileops_tests.host import Worker, WorkerFailure
from tileops_tests.memory import Image, SharedMemory, changed_inputs, sealed_copy
from tileops_tests.precision import torch_dtype
from tileops_tests.sensitivity import raw_bits

# Two patterns, so that an element that was never written can be told from one that happens to look like
# poison. The first is a NaN in every floating dtype; the second is finite in every one.
POISONS = (0xFF, 0x5A)


@dataclass(frozen=True)
class Verdict:
    """Outcome of one case; `code` None means that it agrees with the oracle everywhere."""

    case: str
    code: ReasonCode | None = None
    message: str = ""
    worst: Finding | None = None


@dataclass
class Values:
    """One set of input values of a case, and what the outputs must be on it.

    `canonical` brings outputs into the form in which all right answers are equal; the references are in it.
    """

    image: Image
    references: Sequence[OutputReference]
    canonical: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = tuple

    def compare(self, answer: Answer) -> list[Finding]:
        """Findings per output, of an answer whose metadata have been checked."""
        tensors = self.canonical(tuple(answer.tensors))
        return [compare(tensor, ref) for tensor, ref in zip(tensors, self.references, strict=True)]


@dataclass
class Answer:
    """A worker's answer to one run: described outputs and copies of their bytes, followed by the mutated
    inputs that no output is; or how it failed.
    """

    outputs: list[dict[str, Any]] = field(default_factory=list)
    tensors: list[Tensor | None] = field(default_factory=list)
    calls: tuple[str, ...] = ()


class Failed(Exception):
    """Internal: a case is decided. Carries the code and the message."""

    def __init__(self, code: ReasonCode, message: str, worst: Finding | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.worst = code, message, worst


class CaseRun:
    """The buffers of one case, open in a worker. A context manager."""

    def __init__(self, worker: Worker, binding: Binding, device: str, values: dict[str, Image]) -> None:
        self.worker, self.binding, self.device = worker, binding, device
        self.images = values
        first = next(iter(values.values()))
        scratch = worker.sandbox.root
        self._sealed = [sealed_copy(image.content, scratch) for image in values.values()]
        self._work = SharedMemory(first.content.numel(), scratch)
        sizes = [_nbytes(meta.shape, meta.dtype) for meta in binding.outputs.values()]
        self._out = SharedMemory(sum(sizes), scratch)
        self._work.fix_size()
        self._out.fix_size()
        self._open = {
            "do": "case",
            "device": device,
            "values": list(values),
            "inputs": [slot.message() if slot is not None else None for slot in first.slots],
            "output_bytes": sizes,
        }

    def __enter__(self) -> CaseRun:
        fds = [memory.fd for memory in (*self._sealed, self._work, self._out)]
        self._request(self._open, fds, timeout=self.worker.limits.run_seconds)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for memory in (*self._sealed, self._work, self._out):
            memory.close()

    def run(
        self,
        values: str,
        poison: int,
        *,
        hold: bool = False,
        trace: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """Run once and check everything but the outputs' values; `trace` names the framework's operators.

        Raises:
            Failed: an error, a mutated input, a broken guard band, a wrong dtype, shape, stride, device or
            alias. WorkerFailure: the worker is gone.
        """
        self._out.bytes.fill_(poison ^ 0xFF)
        message = {
            "do": "run",
            "values": values,
            "poison": poison,
            "hold": hold,
            "trace": trace,
            "params": portable(self.binding.params),
        }
        reply = self._request(message, timeout=timeout or self.worker.limits.run_seconds)
        calls = reply.get("calls")
        answer = Answer(
            self._described(reply), calls=tuple(map(str, calls)) if isinstance(calls, list) else ()
        )
        answer.tensors = [self._bytes_of(entry) for entry in answer.outputs]
        self._check_memory(values, reply)
        self._check_outputs(answer)
        written = (name for name in self.binding.results if name not in self.binding.outputs)
        answer.tensors += [self.mutated_input(name) for name in written]
        return answer

    def still_holds(self, answer: Answer) -> bool:
        """Whether the outputs of the held run have the bytes that they had then."""
        reply = self._request({"do": "recheck"}, timeout=self.worker.limits.run_seconds)
        now = [self._bytes_of(entry) for entry in self._described(reply)]
        filled = [i for i, tensor in enumerate(answer.tensors) if tensor.numel()]
        return len(now) == len(answer.tensors) and _same_bytes(
            [answer.tensors[i] for i in filled], [now[i] for i in filled]
        )

    def mutated_input(self, name: str) -> Tensor:
        """Current content of a mutated input."""
        image = next(iter(self.images.values()))
        slot = next(s for s in image.slots if s is not None and s.name == name)
        dtype = torch_dtype(slot.dtype)
        raw = self._work.bytes[slot.data : slot.end].clone()
        return raw[: len(raw) - len(raw) % dtype.itemsize].view(dtype).as_strided(slot.shape, slot.stride)

    def _request(self, message: dict[str, Any], fds: Sequence[int] = (), *, timeout: float) -> dict[str, Any]:
        reply = self.worker.ask(message, fds, timeout=timeout)
        if not reply["ok"]:
            raise Failed(*error_of(reply))
        return reply

    def _described(self, reply: dict[str, Any]) -> list[dict[str, Any]]:
        outputs = reply.get("outputs")
        if not isinstance(outputs, list) or not all(isinstance(entry, dict) for entry in outputs):
            raise Failed(
                ReasonCode.PROTOCOL_ERROR, f"outputs are {str(outputs)[:200]}, expected a list of objects"
            )
        return outputs

    def _bytes_of(self, entry: dict[str, Any]) -> Tensor | None:
        """Copy an output's bytes out of the shared memory, after validating every number of the answer."""
        if entry.get("offset") is None:
            return None
        offset, nbytes, shape = entry["offset"], entry.get("nbytes"), entry.get("shape")
        try:
            valid = (
                type(offset) is int
                and type(nbytes) is int
                and 0 <= offset <= offset + nbytes <= self._out.size
            )
            valid = valid and nbytes == _nbytes(shape, entry["dtype"])
            dtype = torch_dtype(entry["dtype"])
        except (TypeError, ValueError, KeyError):
            valid = False
        if not valid:
            raise _misdescribed(entry)
        return self._out.bytes[offset : offset + nbytes].clone().view(dtype).reshape(shape)

    def _check_memory(self, values: str, reply: dict[str, Any]) -> None:
        image = self.images[values]
        changes = changed_inputs(image, self._work.bytes[: image.content.numel()])
        mutable = self.binding.mutated
        for name, region in changes:
            if region == "data" and name not in mutable:
                raise Failed(
                    ReasonCode.INPUT_MUTATED, f"input {name} was written, the manifest does not allow it"
                )
        for name, region in changes:
            if region == "guard":
                raise Failed(ReasonCode.OUT_OF_BOUNDS_WRITE, f"memory next to input {name} was written")
        if reply.get("broken_guards"):
            broken = reply["broken_guards"]
            where = "; ".join(map(str, broken if isinstance(broken, list) else [broken]))[:500]
            raise Failed(ReasonCode.OUT_OF_BOUNDS_WRITE, f"outside an allocation, of {where}")

    def _check_outputs(self, answer: Answer) -> None:
        expected = list(self.binding.outputs.items())
        if len(answer.outputs) != len(expected):
            raise Failed(ReasonCode.WRONG_ARITY, f"{len(answer.outputs)} outputs, expected {len(expected)}")
        for entry, (name, meta) in zip(answer.outputs, expected, strict=True):
            if entry.get("type") != "torch.Tensor":
                raise Failed(
                    ReasonCode.WRONG_TYPE, f"{name} is {entry.get('type')}, expected a plain torch.Tensor"
                )
            shape = tuple(meta.shape)
            wanted = OutputMeta(meta.dtype, shape, contiguous_stride(shape), self.device)
            inplace = self.binding.entry.outputs[name].alias in self.binding.mutated
            got = _output_meta(entry)
            if inplace:
                wanted = OutputMeta(meta.dtype, shape, got.stride, self.device)
            finding = check_meta(name, got, wanted)
            if finding is not None:
                raise Failed(finding.code, finding.message, finding)
            alias = entry.get("alias")
            if alias is not None and not (type(alias) is int and 0 <= alias < len(self.binding.inputs)):
                raise _misdescribed(entry)
            self._check_alias(name, alias, inplace)
        for index, (name, meta) in enumerate(expected):
            if answer.tensors[index] is None and 0 not in meta.shape:
                raise Failed(ReasonCode.PROTOCOL_ERROR, f"the worker sent no bytes of {name}")
            if answer.tensors[index] is None:
                answer.tensors[index] = torch.empty(meta.shape, dtype=torch_dtype(meta.dtype))

    def _check_alias(self, name: str, alias: int | None, inplace: bool) -> None:
        inputs = list(self.binding.inputs)
        if alias is not None and not inplace:
            raise Failed(ReasonCode.ALIAS_OF_INPUT, f"{name} shares memory with input {inputs[alias]}")
        if inplace and (alias is None or inputs[alias] != self.binding.entry.outputs[name].alias):
            wanted = self.binding.entry.outputs[name].alias
            raise Failed(ReasonCode.WRONG_VALUE, f"{name} is not input {wanted}, as the manifest says it is")


def judge_case(
    worker: Worker,
    case: str,
    binding: Binding,
    device: str,
    first: Values,
    second: Values | None,
    *,
    own: bool = False,
) -> Verdict:
    """Judge one case; `second` has other values in the same layout (None: every input is empty or fixed).

    `own`: the op of tileops-kernels, which may not have the framework compute. A foreign candidate may.

    Raises:
        WorkerFailure: the worker is gone; the caller reports it and starts another one.
    """
    images = {"a": first.image} | ({"b": second.image} if second is not None else {})
    try:
        with CaseRun(worker, binding, device, images) as run:
            return Verdict(case, worst=_judge(run, first, second, own))
    except Failed as failed:
        return Verdict(case, failed.code, failed.message, failed.worst)


def _judge(run: CaseRun, first: Values, second: Values | None, own: bool) -> Finding | None:
    one = run.run("a", POISONS[0], hold=True)
    findings = first.compare(one)
    bad = next((finding for finding in findings if finding.code is not None), None)
    if bad is not None and second is not None and _all_good(second.compare(one)):
        raise Failed(ReasonCode.STALE_RESULT, "the result belongs to values of an earlier call", bad)
    _check_mutated(run, one)
    two = run.run("a", POISONS[1], trace=own)
    for index, reference in enumerate(first.references):
        _check_written(reference, one.tensors[index], two.tensors[index], findings[index])
    if bad is not None:
        raise Failed(bad.code, bad.message, bad)
    _check_determinism(run.binding, first, one, two)
    computed = delegated_calls(two.calls, integers=_has_integers(run.binding))
    if computed:
        raise Failed(ReasonCode.DELEGATED, f"the result came through {', '.join(computed)}")
    if second is not None:
        other = run.run("b", POISONS[0])
        bad = next((finding for finding in second.compare(other) if finding.code is not None), None)
        if bad is not None and _identical(one, other):
            raise Failed(
                ReasonCode.STALE_RESULT, "other values in the same buffers gave the same result", bad
            )
        if bad is not None:
            raise Failed(bad.code, f"on a second set of values: {bad.message}", bad)
    if not run.binding.mutated and not run.still_holds(one):
        raise Failed(ReasonCode.OUTPUT_REUSED, "a later call changed an output that was already returned")
    return max(findings, key=lambda finding: finding.ratio, default=None)


# What an op may ask of the framework: memory, views of it, copies and fills; of integer tables also whether
# their values are legal, before anything is launched.
_HANDLING = frozenset((
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "new_zeros", "zeros",
    "zeros_like", "ones_like", "full", "full_like", "fill_", "zero_", "copy_", "clone", "contiguous",
    "to", "_to_copy", "resize_", "set_", "detach", "alias", "view", "view_as", "_unsafe_view", "reshape",
    "reshape_as", "as_strided", "expand", "expand_as", "select", "slice", "narrow", "squeeze", "unsqueeze",
    "flatten", "unflatten",
    "permute", "transpose", "t", "mT", "movedim", "unbind", "split", "chunk", "view_as_real",
    "view_as_complex", "_reshape_alias", "resolve_conj", "resolve_neg", "lift_fresh", "record_stream",
))  # fmt: skip
_CHECKING = frozenset((
    "arange", "sort", "argsort", "scatter", "gather", "index", "index_select", "cumsum", "diff", "any",
    "all", "eq", "ne", "lt", "le", "gt", "ge", "__and__", "__or__", "bitwise_and", "bitwise_or",
    "bitwise_not", "logical_and", "logical_or", "logical_not", "add", "sub", "mul", "clamp", "max", "min",
    "amax", "amin", "sum", "bincount", "item", "is_nonzero", "_local_scalar_dense", "where",
    "masked_fill", "masked_select", "nonzero", "roll", "flip", "cat", "stack", "repeat_interleave",
    "remainder", "floor_divide",
))  # fmt: skip


def delegated_calls(calls: Sequence[str], *, integers: bool) -> list[str]:
    """The framework's operators among `calls` that compute, rather than handle memory or check tables.

    >>> delegated_calls(["aten::empty", "aten::copy_", "aten::_softmax"], integers=False)
    ['aten::_softmax']
    """
    allowed = _HANDLING | _CHECKING if integers else _HANDLING
    return [name for name in calls if name.removeprefix("aten::") not in allowed]


def _has_integers(binding: Binding) -> bool:
    """Whether an input has values that the entry restricts, so that the op must look at them."""
    return any(spec.values is not None for spec in binding.entry.inputs.values())


def _all_good(findings: Sequence[Finding]) -> bool:
    return all(finding.code is None for finding in findings)


def _check_written(
    reference: OutputReference, one: Tensor | None, two: Tensor | None, finding: Finding
) -> None:
    """Elements that hold the poison of both runs were not written, whatever the comparison made of them."""
    if finding.code is None or one.numel() == 0:
        return
    size = one.dtype.itemsize
    patterns = [
        torch.full((size,), poison, dtype=torch.uint8).view(raw_bits(one).dtype) for poison in POISONS
    ]
    untouched = (raw_bits(one) == patterns[0]) & (raw_bits(two) == patterns[1])
    count = int(untouched.sum())
    if count:
        message = f"{count} of {one.numel()} elements of {reference.name} were never written"
        raise Failed(ReasonCode.UNWRITTEN_OUTPUT, message, finding)


def _check_determinism(binding: Binding, values: Values, one: Answer, two: Answer) -> None:
    if binding.entry.numerics.determinism == "bitwise":
        if not _identical(one, two):
            raise Failed(ReasonCode.NONDETERMINISTIC, "a second run on the same inputs gave other bits")
        return
    bad = next((finding for finding in values.compare(two) if finding.code is not None), None)
    if bad is not None:
        raise Failed(ReasonCode.NONDETERMINISTIC, f"a second run left the bound: {bad.message}", bad)


def _check_mutated(run: CaseRun, answer: Answer) -> None:
    """An output that is a mutated input: the input's own memory must hold it too."""
    for tensor, (name, spec) in zip(answer.tensors, run.binding.entry.outputs.items(), strict=False):
        if spec.alias not in run.binding.mutated:
            continue
        if not torch.equal(raw_bits(run.mutated_input(spec.alias)), raw_bits(tensor)):
            raise Failed(ReasonCode.WRONG_VALUE, f"input {spec.alias} was not updated to {name}")


def _identical(one: Answer, two: Answer) -> bool:
    return _same_bytes(one.tensors, two.tensors)


def _same_bytes(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> bool:
    if len(a) != len(b):
        return False
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None or y is not None]
    return all(
        x is not None and y is not None and x.dtype == y.dtype and torch.equal(raw_bits(x), raw_bits(y))
        for x, y in pairs
    )


def error_of(reply: dict[str, Any]) -> tuple[ReasonCode, str]:
    """The reason code and message of a worker's error answer."""
    kinds = {"out_of_memory": ReasonCode.OUT_OF_MEMORY, "not_implemented": ReasonCode.NOT_IMPLEMENTED}
    message = str(reply.get("message", "no message"))[:2000]
    return kinds.get(str(reply.get("kind")), ReasonCode.EXCEPTION), message


def portable(params: dict[str, Any]) -> dict[str, Any]:
    """Params as JSON; a dtype travels as {"$dtype": name}."""
    return {
        name: {"$dtype": str(v).removeprefix("torch.")} if isinstance(v, torch.dtype) else v
        for name, v in params.items()
    }


def _output_meta(entry: dict[str, Any]) -> OutputMeta:
    try:
        return OutputMeta(entry["dtype"], tuple(entry["shape"]), tuple(entry["stride"]), entry["device"])
    except (KeyError, TypeError):
        raise _misdescribed(entry) from None


def _misdescribed(entry: dict[str, Any]) -> Failed:
    return Failed(ReasonCode.PROTOCOL_ERROR, f"an output is described as {str(entry)[:300]}")


def _nbytes(shape: Sequence[int], dtype: str) -> int:
    count = 1
    for size in shape:
        count *= size
    return count * torch_dtype(dtype).itemsize


__all__ = [
    "POISONS",
    "CaseRun",
    "Failed",
    "Values",
    "Verdict",
    "WorkerFailure",
    "error_of",
    "judge_case",
    "portable",
]
