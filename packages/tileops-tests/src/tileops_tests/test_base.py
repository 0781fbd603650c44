"""`TestBase`: a workload that also knows its reference and can check a result against it.

The verdict machinery (`tileops-tests verify`) is what a claim rests on; this class is the same comparison
for people who write a test by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from tileops_manifest import Entry
from tileops_tests.comparator import Finding, OutputReference, compare
from tileops_tests.oracles import get_oracle
from tileops_tests.reference import build_references
from tileops_tests.tolerance import constants_for
from tileops_workloads import WorkloadBase, make_workload


class CheckError(AssertionError):
    """An output does not agree with its reference; `finding.code` says in which way."""

    def __init__(self, op: str, finding: Finding) -> None:
        super().__init__(f"{op}: {finding.code}: {finding.message}")
        self.finding = finding


class TestBase(WorkloadBase):
    """Adds `ref_program()` and `check()` to a workload. Make one with `TestBase.of(workload)` or a row's
    label.

    >>> from tileops_manifest import load_manifest
    >>> entry = load_manifest()["RMSNormFwdOp"]
    >>> test = TestBase.at(entry, dims={"batch": (4,), "norm": (64,)}, dtypes="float32")
    >>> test.check(*test.ref_program(torch.float32))
    """

    __test__ = False

    @classmethod
    def of(cls, workload: WorkloadBase) -> TestBase:
        """The test of an existing workload: same shapes, same values, whatever class generates them."""
        mixed = type(f"{cls.__name__}{type(workload).__name__}", (cls, type(workload)), {"__test__": False})
        test = object.__new__(mixed)
        test.__dict__.update(workload.__dict__)
        return test

    @classmethod
    def at(cls, entry: Entry, row: str | None = None, *, dtypes: object, **arguments: object) -> TestBase:
        """The test of a workload row, or of free dims; arguments as of `make_workload`."""
        return cls.of(make_workload(entry, row, dtypes, **arguments))

    @cached_property
    def inputs(self) -> dict[str, Tensor | None]:
        """The inputs of this case, made once; pass copies to code that may write them."""
        return self.gen_inputs()

    def ref_program(self, compute_dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """The oracle's outputs on this workload's inputs, computed in `compute_dtype`, not rounded to the
        output dtype.
        """
        return get_oracle(self.entry.name).ref_program(self.inputs, self.params, compute_dtype)

    def references(self, target: str = "cpu") -> Sequence[OutputReference]:
        """What each output is compared with: rounded reference, bound, errors of the base and the lowered
        program.
        """
        return build_references(
            self.binding,
            get_oracle(self.entry.name),
            self.inputs,
            constants_for(self.entry.name, target),
            distribution=self.distribution,
        )

    def check(self, *outputs: Tensor, target: str = "cpu") -> None:
        """Compare the call's results with the reference: outputs, then the mutated inputs that no output is.

        Raises:
            CheckError: wrong number, dtype, shape or values of outputs.
        """
        references = self.references(target)
        if len(outputs) != len(references):
            raise ValueError(f"{self.entry.name}: got {len(outputs)} outputs, expected {len(references)}")
        plain = tuple(output.detach() for output in outputs)
        canonical = get_oracle(self.entry.name).canonical_form(self.inputs, self.params, plain)
        for output, reference in zip(canonical, references, strict=True):
            finding = compare(output, reference)
            if finding.code is not None:
                raise CheckError(self.entry.name, finding)
