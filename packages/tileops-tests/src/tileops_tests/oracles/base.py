"""What an oracle is: the definition of an op as a program in elementary tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor | None]
Params = Mapping[str, Any]
Outputs = tuple[Tensor, ...]
Magnitudes = tuple[Tensor | None, ...]

COMPUTE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Call:
    """One call in one compute dtype: `call["x"]` is an input, floating ones converted to that dtype, complex
    ones to pairs (real, imaginary) of that dtype in a further axis of size 2.

    `given` holds the inputs as they came, for what depends on their own dtype; `intermediates` the dtypes
    that the entry lets named intermediate values be rounded to: none where the definition itself is computed.
    """

    given: Inputs
    params: Params
    dtype: torch.dtype
    intermediates: Mapping[str, torch.dtype] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.get(name)
        if tensor is None:
            raise KeyError(f"input {name!r} is not given")
        return tensor

    def get(self, name: str) -> Tensor | None:
        """An input, or None where an optional one is not given."""
        tensor = self.given.get(name)
        if tensor is not None and tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        return tensor if tensor is None or not tensor.is_floating_point() else tensor.to(self.dtype)

    def rounded(self, intermediate: str, x: Tensor) -> Tensor:
        """`x`, a named intermediate value of the entry's numerics, with the rounding that it allows."""
        dtype = self.intermediates.get(intermediate)
        return x if dtype is None else x.to(dtype).to(x.dtype)

    def param(self, name: str) -> Any:
        """The value of a param; params are canonical, with defaults filled in."""
        return self.params[name]


Program = Callable[[Call], Outputs]
Opinion = Callable[[Call], Outputs]
Property = Callable[[Callable[[Inputs, Params], Outputs], Inputs, Params], bool]


def no_magnitudes(call: Call) -> Magnitudes:
    """Nothing is summed up: the magnitude of an output element is its own."""
    return (None,)


def none_for(outputs: int) -> Callable[[Call], Magnitudes]:
    """`no_magnitudes` of an op with several outputs."""
    return lambda call: (None,) * outputs


def unit_length(call: Call) -> int:
    """Nothing is reduced."""
    return 1


def as_they_are(call: Call, outputs: Outputs) -> Outputs:
    """The op has one right answer: outputs are compared as they are."""
    return outputs


@dataclass(frozen=True)
class Oracle:
    """The reference of one op.

    Attributes:
        op: manifest name.
        program: the definition; never calls the entry's own `ref_api`, shares no code with any kernel. Every
            floating intermediate has the call's dtype, and sums accumulate in it. It gives the call's results
            (`Binding.results`): the outputs, then what mutated inputs that no output is are afterwards.
            Complex results are pairs, as complex inputs are.
        opinion: the entry's `ref_api`, or where it has none another formulation, in float64.
        magnitudes: per output, the magnitude that each element accumulates (None: its own).
        length: how many terms a sum of the program has.
        canonical: outputs in a form in which all right answers are equal (an unordered set sorted), for ops
            whose entry leaves a choice.
        properties: mathematical properties that any right implementation has.
        wide: the definition in about twice the precision of float64, its results rounded to float64: what a
            program in float64 is judged by, for ops that accumulate in it.
        rounds: False where all results are numbers that every lower format holds (signs), so that there is
            no precision to lose.
    """

    op: str
    program: Program
    opinion: Opinion
    magnitudes: Callable[[Call], Magnitudes] = no_magnitudes
    length: Callable[[Call], int] = unit_length
    canonical: Callable[[Call, Outputs], Outputs] = as_they_are
    properties: tuple[Property, ...] = ()
    wide: Program | None = None
    rounds: bool = True

    def ref_program(
        self,
        inputs: Inputs,
        params: Params,
        compute_dtype: torch.dtype = torch.float64,
        intermediates: Mapping[str, torch.dtype] | None = None,
    ) -> Outputs:
        """The definition, computed in `compute_dtype`: floating outputs are in it, not rounded to the output
        dtype; integer and bool outputs have their own. With `intermediates`, those named values are rounded.

        Raises:
            ValueError: a compute dtype that torch has no arithmetic for.
        """
        if compute_dtype not in COMPUTE_DTYPES:
            expected = ", ".join(str(dtype) for dtype in COMPUTE_DTYPES)
            raise ValueError(f"{self.op}: compute_dtype is {compute_dtype}, expected one of {expected}")
        return self.program(Call(inputs, params, compute_dtype, intermediates or {}))

    def wide_program(self, inputs: Inputs, params: Params) -> Outputs:
        """The definition, precise to the last bit or two of float64.

        Raises:
            ValueError: the oracle has none, since its op does not accumulate in float64.
        """
        if self.wide is None:
            raise ValueError(f"{self.op}: the oracle has no program wider than float64")
        return self.wide(Call(inputs, params, torch.float64))

    def second_opinion(self, inputs: Inputs, params: Params) -> Outputs:
        """The same outputs computed in another way, in float64."""
        return self.opinion(Call(inputs, params, torch.float64))

    def scale(self, inputs: Inputs, params: Params) -> Magnitudes:
        """Per output, the magnitude that each element accumulates (float64, broadcastable), or None:
        |ref|.
        """
        return self.magnitudes(Call(inputs, params, torch.float64))

    def reduction_length(self, inputs: Inputs, params: Params) -> int:
        """Number of terms in the op's longest sum, at least 1."""
        return max(self.length(Call(inputs, params, torch.float64)), 1)

    def canonical_form(self, inputs: Inputs, params: Params, outputs: Outputs) -> Outputs:
        """`outputs` of any implementation, in the form in which all right answers are equal."""
        return self.canonical(Call(inputs, params, torch.float64), outputs)
