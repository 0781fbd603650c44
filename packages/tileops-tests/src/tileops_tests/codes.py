"""Reason codes: why a case did not pass. One code per kind of fault, so that a wrong reason is itself
visible.
"""

from __future__ import annotations

from enum import StrEnum


class ReasonCode(StrEnum):
    """The closed list of reasons. The value is what a verification record carries."""

    WRONG_VALUE = "wrong_value"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_SHAPE = "wrong_shape"
    WRONG_STRIDE = "wrong_stride"
    WRONG_DEVICE = "wrong_device"
    WRONG_ARITY = "wrong_arity"
    WRONG_TYPE = "wrong_type"
    NAN_MISMATCH = "nan_mismatch"
    INF_MISMATCH = "inf_mismatch"
    INPUT_MUTATED = "input_mutated"
    OUT_OF_BOUNDS_WRITE = "out_of_bounds_write"
    NONDETERMINISTIC = "nondeterministic"
    STALE_RESULT = "stale_result"
    DELEGATED = "delegated"
    OUTPUT_REUSED = "output_reused"
    ALIAS_OF_INPUT = "alias_of_input"
    UNWRITTEN_OUTPUT = "unwritten_output"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    EXCEPTION = "exception"
    NOT_IMPLEMENTED = "not_implemented"
    LOAD_FAILED = "load_failed"
    NOT_RUN = "not_run"
    BAD_INPUT_ACCEPTED = "bad_input_accepted"
    WRONG_ERROR = "wrong_error"
    INSENSITIVE_WORKLOAD = "insensitive_workload"
    PROTOCOL_ERROR = "protocol_error"
    UNEXPECTED_PASS = "unexpected_pass"
    ORACLE_ERROR = "oracle_error"

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return MEANINGS[self]


MEANINGS: dict[ReasonCode, str] = {
    ReasonCode.WRONG_VALUE: "an element is further from the oracle than its bound",
    ReasonCode.WRONG_DTYPE: "an output's dtype is not the manifest's",
    ReasonCode.WRONG_SHAPE: "an output's shape is not the manifest's",
    ReasonCode.WRONG_STRIDE: "an output is not laid out as a contiguous tensor",
    ReasonCode.WRONG_DEVICE: "an output lies on another device than the inputs",
    ReasonCode.WRONG_ARITY: "the number of outputs is not the manifest's",
    ReasonCode.WRONG_TYPE: "an output is not a plain torch.Tensor",
    ReasonCode.NAN_MISMATCH: "NaN where the oracle has none, or the reverse",
    ReasonCode.INF_MISMATCH: "±Inf where the oracle has none or the other sign, or the reverse",
    ReasonCode.INPUT_MUTATED: "an input that the manifest does not declare mutated was written",
    ReasonCode.OUT_OF_BOUNDS_WRITE: "memory just outside an input or an output was written",
    ReasonCode.NONDETERMINISTIC: "two runs on the same inputs differ beyond the declared determinism",
    ReasonCode.STALE_RESULT: "new values in the same buffers gave the old result",
    ReasonCode.DELEGATED: "the op had the framework compute; it may have it allocate, copy and check values",
    ReasonCode.OUTPUT_REUSED: "a later call changed an output that an earlier call had returned",
    ReasonCode.ALIAS_OF_INPUT: "an output shares memory with an input without the manifest allowing it",
    ReasonCode.UNWRITTEN_OUTPUT: "elements of an output were never written: they hold the poison",
    ReasonCode.CRASH: "the worker process died",
    ReasonCode.TIMEOUT: "the time limit was exceeded",
    ReasonCode.OUT_OF_MEMORY: "the memory limit was exceeded",
    ReasonCode.EXCEPTION: "the candidate raised an error on legal inputs",
    ReasonCode.NOT_IMPLEMENTED: "the candidate says that it does not implement the case",
    ReasonCode.LOAD_FAILED: "the candidate could not be imported or constructed",
    ReasonCode.NOT_RUN: "the worker was given up on before this case",
    ReasonCode.BAD_INPUT_ACCEPTED: "inputs that the manifest forbids were accepted",
    ReasonCode.WRONG_ERROR: "inputs that the manifest forbids raised an error of another kind",
    ReasonCode.INSENSITIVE_WORKLOAD: "the workload could not have told a wrong result from a right one",
    ReasonCode.PROTOCOL_ERROR: "the worker's answer does not follow the protocol",
    ReasonCode.ORACLE_ERROR: "the oracle failed or is missing: nothing can be said about the candidate",
    ReasonCode.UNEXPECTED_PASS: "a case that the ledger lists as a known failure passed",
}
