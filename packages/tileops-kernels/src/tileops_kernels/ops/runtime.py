"""What one op does when it is called: the eager fast path, the checked slow path, and the way into the
dispatcher."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.errors import LayoutError
from tileops_kernels.kernels.together import compiled_together
from tileops_kernels.ops import checks, library
from tileops_kernels.ops.memory import check_distinct_places, with_memory_checks
from tileops_kernels.ops.mutation import Mutation
from tileops_kernels.ops.plan import PlanCache, eager_key, is_intercepted, param_key, tensor_key
from tileops_kernels.ops.registry import FLOWS, require_flow
from tileops_kernels.ops.schema import from_text, is_text, param_schema_type, to_text
from tileops_kernels.ops.signature import CallSignature
from tileops_kernels.ops.values import checked_inputs, with_value_checks

if TYPE_CHECKING:
    from tileops_kernels.ops.commitments import Commitment
    from tileops_kernels.ops.flows.base import Flow, Run
    from tileops_manifest import Binding, Entry

__all__ = ["OpRuntime"]


class OpRuntime:
    """Everything derived from one manifest entry that calls of the op share. Thread-safe.

    Attributes:
        entry: the manifest entry.
        signature: layout of the arguments.
        plans: closures prepared so far, by plan key.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.signature = CallSignature.of(entry)
        self.plans: PlanCache[Run] = PlanCache()
        types = [str(entry.params[name].type) for name in self.signature.params]
        self._dtype_params = tuple(i for i, text in enumerate(types) if "dtype" in text)
        self._text_params = tuple(i for i, text in enumerate(types) if is_text(text))
        self._list_params = tuple(
            (i, int(found[1])) for i, text in enumerate(types) if (found := _int_list(entry.name, text))
        )
        self.mutation = Mutation.of(entry, self.signature)
        always = self.mutation is not None and not self.mutation.conditional
        self.overload = None if always else library.register(self)
        self.in_place_overload = None if self.mutation is None else library.register(self, self.mutation)

    @cached_property
    def flow(self) -> Flow:
        """The flow of the op. Reading it loads the flow modules.

        Raises:
            NotImplementedOpError: the op is spec-only.
        """
        require_flow(self.entry.name)
        return FLOWS[self.entry.name]

    @cached_property
    def alignment(self) -> int:
        """Bytes that plans distinguish the inputs' addresses by; 1 for a spec-only op, which has shapes."""
        kernels = self.flow.kernels if self.entry.name in FLOWS else ()
        return max((kernel.ALIGNMENT for kernel in kernels), default=1)

    def call(
        self,
        inputs: tuple[Any, ...],
        params: tuple[Any, ...],
        params_key: Hashable,
        commitments: tuple[Commitment, ...] = (),
    ) -> Any:
        """Run the op. `params_key` stands for `params` and `commitments` in the plan key."""
        if not inputs and not is_intercepted():
            return self.create(params)
        try:
            key = eager_key(params_key, inputs, self.alignment)
        except RuntimeError:  # a layout without strides: the checks name it
            return self.dispatch(inputs, params, commitments)
        if key is None:
            return self.dispatch(inputs, params, commitments)
        plan = self.plans.get(key)
        if plan is not None:
            return plan(*inputs)
        if any(tensor is not None and tensor.device.type not in checks.SERVED_DEVICES for tensor in inputs):
            return self.dispatch(inputs, params, commitments)
        return self._first_call(key, inputs, params, commitments)

    def dispatch(
        self, inputs: tuple[Any, ...], params: tuple[Any, ...], commitments: tuple[Commitment, ...] = ()
    ) -> Any:
        """Run the op through PyTorch's dispatcher, after checks with better errors than the dispatcher's."""
        checks.check_tensors(self.entry, inputs)
        if not any(map(_is_symbolic, params)):
            self.canonical_params(params)
        for commitment in commitments:
            commitment.check(inputs)
        if self.mutation is not None and self.mutation.applies(params):
            self._check_in_place(inputs)
        return self.call_overload(inputs, params)

    def call_overload(self, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
        """Call the torch operator: the whole path of a traced call."""
        params = self.torch_params(params)
        if not inputs:
            # The dispatcher does not see `with torch.device(...)`; Dynamo traces no plainer question.
            return self.overload(*params, device=torch.empty(0).device)
        if self.mutation is not None and self.mutation.applies(params):
            return self.mutation.restore(self.in_place_overload(*inputs, *params), inputs)
        return self.overload(*inputs, *params)

    def execute(self, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
        """Run on real tensors, below the dispatcher: what `torch.ops.tileops.<name>` does on CPU and CUDA."""
        key = tensor_key(tuple([param_key(value) for value in params]), inputs, self.alignment)
        plan = self.plans.get(key)
        if plan is not None:
            return plan(*inputs)
        return self._first_call(key, inputs, params, ())

    def create(self, params: tuple[Any, ...], device: torch.device | None = None) -> Any:
        """Run an op without inputs on `device`, or on torch's default one.

        Raises:
            DeviceError: there is no such device, or no target serves it.
        """
        device = checks.default_device(self.entry.name, device)
        if device.type == "meta":
            outputs = self.empty_outputs((), params, device)
            return outputs[0] if len(outputs) == 1 else outputs
        key = (tuple([param_key(value) for value in params]), device)
        plan = self.plans.get(key)
        if plan is not None:
            return plan()
        with device:
            return self._first_call(key, (), params, ())

    def empty_outputs(
        self, inputs: Sequence[torch.Tensor | None], params: Sequence[Any], device: torch.device | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Check a call and return its outputs without values, for an op without inputs on `device`."""
        outputs = self.bind(inputs, params).outputs.values()
        empty = checks.first_tensor(inputs).new_empty if inputs else partial(torch.empty, device=device)
        return tuple([empty(meta.shape, dtype=torch_dtype(meta.dtype)) for meta in outputs])

    def bind(self, inputs: Sequence[torch.Tensor | None], params: Sequence[Any]) -> Binding:
        """Check a call against the entry; see `checks.bind`."""
        return checks.bind(self.entry, inputs, self.named_params(params))

    def canonical_params(self, params: Sequence[Any]) -> dict[str, Any]:
        """Check params and return them in the manifest's canonical form.

        Raises:
            ParamError: see `Entry.canonical_params`.
        """
        return self.entry.canonical_params(self.named_params(params))

    def torch_params(self, params: Sequence[Any]) -> tuple[Any, ...]:
        """Return params as the dispatcher wants them: a dtype given by its name becomes the dtype, one int
        where a list may stand becomes a list (the dispatcher does that for an int, not for a symbolic one),
        what no schema can say becomes text.
        """
        if not self._dtype_params and not self._list_params and not self._text_params:
            return tuple(params)
        values = list(params)
        for i, length in self._list_params:
            if isinstance(values[i], int | torch.SymInt):
                values[i] = [values[i]] * length
        for i in self._text_params:
            values[i] = to_text(values[i])
        for i in self._dtype_params:
            if isinstance(values[i], str):
                values[i] = torch_dtype(values[i])
        return tuple(values)

    def from_torch(self, params: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return params that came through the dispatcher in the form in which the op takes them."""
        if not self._text_params:
            return params
        values = list(params)
        for i in self._text_params:
            values[i] = from_text(values[i])
        return tuple(values)

    def named_params(self, params: Sequence[Any]) -> dict[str, Any]:
        """Return params by name, unchecked, as the manifest spells them."""
        return {
            name: checks.spec_value(value) for name, value in zip(self.signature.params, params, strict=True)
        }

    def _first_call(
        self,
        key: Hashable,
        inputs: tuple[Any, ...],
        params: tuple[Any, ...],
        commitments: tuple[Commitment, ...],
    ) -> Any:
        plan = self._prepare(inputs, params, commitments)
        result = plan(*inputs)
        # Only a call that went through earns its place: an error must not be remembered as a plan.
        self.plans.put(key, plan)
        return result

    def _prepare(
        self, inputs: tuple[Any, ...], params: tuple[Any, ...], commitments: tuple[Commitment, ...]
    ) -> Run:
        checks.check_tensors(self.entry, inputs)
        checks.check_memory(self.entry, inputs)
        binding = self.bind(inputs, params)
        for commitment in commitments:
            commitment.check(inputs)
        writes = self.mutation is not None and self.mutation.applies(params)
        if writes:
            self._check_writable(inputs)
        run = compiled_together(lambda: self.flow.prepare(binding, inputs))
        domains = checked_inputs(binding)
        if domains:
            run = with_value_checks(run, self.entry, domains, checks.first_tensor(inputs).device)
        if writes:
            run = _with_version_bumps(run, self.mutation.inputs)
            run = with_memory_checks(run, self.entry, self.mutation.inputs, inputs)
        return run

    def _check_in_place(self, inputs: Sequence[torch.Tensor | None]) -> None:
        # The dispatcher resolves such views, and writes back only what an operator returns: ours return new
        # tensors alone.
        for i in self.mutation.inputs:
            tensor = inputs[i]
            if tensor is not None and (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()):
                raise LayoutError(
                    self.entry.name,
                    argument=self.signature.inputs[i],
                    got="a lazily negated, conjugated or zero tensor",
                    expected="a tensor whose memory holds its values",
                    rule="an input that is written is its memory",
                )

    def _check_writable(self, inputs: Sequence[torch.Tensor | None]) -> None:
        for i in self.mutation.inputs:
            if inputs[i] is not None:
                check_distinct_places(self.entry.name, self.signature.inputs[i], inputs[i])


def _int_list(op: str, declared: str) -> re.Match[str] | None:
    """Match the schema type of a list that one int may stand for; its group is the list's length."""
    return re.match(r"int\[(\d+)\]", param_schema_type(op, "", declared))


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_symbolic, value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _with_version_bumps(run: Run, mutated: tuple[int, ...]) -> Run:
    """Tell autograd that inputs were written: kernels write through raw pointers, which it cannot see."""

    def bumped(*inputs: Any) -> Any:
        result = run(*inputs)
        torch.autograd.graph.increment_version([inputs[i] for i in mutated if inputs[i] is not None])
        return result

    return bumped
