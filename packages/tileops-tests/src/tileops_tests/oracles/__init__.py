"""Oracles: for every op its definition, written in elementary tensor operations and computed in float64.

An oracle is independent three times over: it never calls the function that the entry names as its `ref_api`,
it shares no code with any kernel, and it is held against a second opinion by its own tests.

>>> import torch
>>> oracle = get_oracle("SumFwdOp")
>>> oracle.ref_program({"x": torch.ones(3, dtype=torch.float16)}, {"dim": None, "keepdim": False})
(tensor(3., dtype=torch.float64),)
"""

from __future__ import annotations

from difflib import get_close_matches

from tileops_tests.oracles import (
    activation,
    attention,
    attention_backward,
    attention_decode,
    attention_packed,
    attention_paged_prefill,
    batch_norm,
    convolution,
    delta_rule,
    dropout,
    elementwise,
    engram,
    experts,
    gated,
    gated_linear,
    grouped,
    hyper_connections,
    index_scores,
    indexing,
    matmul,
    moe,
    norm,
    pairs,
    pool,
    position,
    quantization,
    quantized_matmul,
    reduction,
    rounding,
    scaled_position,
    scan,
    softmax,
    spectral,
    state_space,
    state_space_chunks,
    tables,
)
from tileops_tests.oracles.base import Oracle

_FAMILIES = (
    activation,
    attention,
    attention_backward,
    attention_decode,
    attention_packed,
    attention_paged_prefill,
    batch_norm,
    convolution,
    delta_rule,
    dropout,
    elementwise,
    engram,
    experts,
    gated,
    gated_linear,
    grouped,
    hyper_connections,
    index_scores,
    indexing,
    matmul,
    moe,
    norm,
    pairs,
    pool,
    position,
    quantization,
    quantized_matmul,
    reduction,
    rounding,
    scaled_position,
    scan,
    softmax,
    spectral,
    state_space,
    state_space_chunks,
    tables,
)
_ORACLES: dict[str, Oracle] = {oracle.op: oracle for family in _FAMILIES for oracle in family.ORACLES}
_HOMES = {oracle.op: family.__name__ for family in _FAMILIES for oracle in family.ORACLES}


class UnknownOracleError(LookupError):
    """An op that no oracle is written for; the message suggests the nearest that has one."""

    def __init__(self, op: str) -> None:
        self.op = op
        close = get_close_matches(op, _ORACLES, n=1, cutoff=0.7)  # all names end alike
        super().__init__(f"no oracle for {op!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def get_oracle(op: str) -> Oracle:
    """The oracle of an op, by manifest name.

    Raises:
        UnknownOracleError: there is none.
    """
    try:
        return _ORACLES[op]
    except KeyError:
        raise UnknownOracleError(op) from None


def module_of(oracle: Oracle) -> str:
    """Name of the module that an oracle stands in; for one that no family lists, that of its program."""
    return _HOMES[oracle.op] if _ORACLES.get(oracle.op) is oracle else oracle.program.__module__


def list_oracles() -> tuple[str, ...]:
    """Names of all ops that have an oracle, in order."""
    return tuple(sorted(_ORACLES))


__all__ = ["Oracle", "UnknownOracleError", "get_oracle", "list_oracles", "module_of"]
