"""Sequence ops: recurrences and gates, whose inputs have roles.

A state that is multiplied at every token stays of one size only if decays are at most 1, keys about as long
as 1 and steps short; and one infinity fills every later token. So each input gets values of its role, made
from the plain ones by exact or once rounded steps, and none is large, also in `adversarial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from tileops_manifest import TensorMeta, TensorSpec

from .base import WorkloadBase
from .bits import below
from .domains import Request, generate_integers
from .dtypes import torch_dtype
from .registry import register
from .structured import Made

# Bell values end at 3.47, those of the other distributions at 4.
_LARGEST = 4.0

Role = Callable[[torch.Tensor], torch.Tensor]


def log_decay(x: torch.Tensor) -> torch.Tensor:
    """Logarithms of decays: in [-1/4, 0], so that about twenty tokens are remembered."""
    return x.abs() / -16


def fraction(x: torch.Tensor) -> torch.Tensor:
    """In [0, 1], around 1/2."""
    return x / 8 + 0.5


def near_one(x: torch.Tensor) -> torch.Tensor:
    """Weights: in [0, 2], around 1."""
    return x / 4 + 1


def positive(x: torch.Tensor) -> torch.Tensor:
    """Reciprocal roots: in [1/2, 5/2]."""
    return x.abs() / 2 + 0.5


def step(x: torch.Tensor) -> torch.Tensor:
    """Step sizes: in [0, 1/4]."""
    return x.abs() / 16


def step_logit(x: torch.Tensor) -> torch.Tensor:
    """Arguments of a softplus that gives step sizes: around -4."""
    return x - 4


def rate(x: torch.Tensor) -> torch.Tensor:
    """Diagonals of a state matrix: in [-5, -1]."""
    return -1 - x.abs()


def shrinking(x: torch.Tensor) -> torch.Tensor:
    """Logarithms of the decay of a whole chunk: at most 0."""
    return -x.abs()


def _unit(x: torch.Tensor, terms: int, slack: int) -> torch.Tensor:
    """Vectors of `terms` elements no longer than about 1: divided by a power of two, which is exact."""
    return x * 2.0 ** -math.ceil(math.log2(max(terms, 1)) / 2 + slack)


class SequenceWorkload(WorkloadBase):
    """`roles` says what the values of an input mean; `unit_along`, along which axis it is a unit vector."""

    roles: ClassVar[Mapping[str, Role]] = {}
    unit_along: ClassVar[Mapping[str, int]] = {}

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        plain = super().gen_input(spec, meta, made)
        if spec.values is not None:
            return plain
        bounded = plain.nan_to_num(0).clamp(-_LARGEST, _LARGEST)
        if spec.name in self.unit_along:
            # Two bits more where values may all be 4.
            terms = meta.shape[self.unit_along[spec.name]]
            return _unit(bounded, terms, 0 if self.distribution == "normal" else 2)
        role = self.role_of(spec.name)
        return bounded if role is None else role(bounded)

    def role_of(self, name: str) -> Role | None:
        """The role of an input, None for any values."""
        return self.roles.get(name)


@register(
    "GatedDeltaNetPrefillBTHDFwdOp",
    "GatedDeltaNetPrefillBHTDFwdOp",
    "GatedDeltaNetDecodeFwdOp",
    "DeltaNetDecodeFwdOp",
    "GatedDeltaNetBHTDFwdOp",
    "GatedDeltaNetBTHDFwdOp",
    "GatedDeltaNetBwdOp",
    "DeltaNetFwdOp",
)
class DeltaRuleWorkload(SequenceWorkload):
    """Delta rules: a key longer than sqrt(2 / beta) would let the state grow at every token."""

    roles: ClassVar[Mapping[str, Role]] = {"g": log_decay, "beta": fraction}
    unit_along: ClassVar[Mapping[str, int]] = {"k": -1}


@register("DeltaNetBwdOp")
class SavedByDeltaNetWorkload(DeltaRuleWorkload):
    """Aw, Au, w and u as the forward pass returns them for these keys, values and betas.

    An implementation may read them or compute them again: they cannot be any values.
    """

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name not in ("Aw", "Au", "w", "u"):
            return super().gen_input(spec, meta, made)
        if spec.name == "Au":
            return made["Aw"].clone()
        size = self.binding.params["chunk_size"]
        beta = _in_chunks(made["beta"], size)
        if spec.name == "Aw":
            saved = _inverse(_in_chunks(made["k"], size), beta)
        else:
            vectors = _in_chunks(made["k" if spec.name == "w" else "v"], size)
            saved = _product(_in_chunks(made["Aw"], size), beta[..., None] * vectors)
        saved = saved.flatten(2, 3)[:, :, : meta.shape[2]]
        return saved.to(torch_dtype(meta.dtype)).contiguous()


def _in_chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, L, ...] as [B, H, chunks, size, ...] in float64, filled up with zeros."""
    batch, heads, length = x.shape[:3]
    chunks = -(-length // size)
    padded = torch.zeros((batch, heads, chunks * size, *x.shape[3:]), dtype=torch.float64, device=x.device)
    padded[:, :, :length] = x
    return padded.reshape(batch, heads, chunks, size, *x.shape[3:])


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrices multiplied by rank-1 steps: in an order of its own, the bits would depend on the machine."""
    out = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
    for column, row in zip(a.unsqueeze(-1).unbind(-2), b.unsqueeze(-3).unbind(-2), strict=True):
        out += column * row
    return out


def _inverse(k: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """(I + the part of beta_i k_i.k_j below the diagonal)^-1 of each chunk, column by column."""
    size = k.shape[-2]
    below_diagonal = (beta[..., None] * _product(k, k.mT)).tril(-1)
    inverse = torch.eye(size, dtype=k.dtype, device=k.device).expand_as(below_diagonal).clone()
    for j in range(size):
        inverse[..., j + 1 :, :] -= below_diagonal[..., j + 1 :, j, None] * inverse[..., j, None, :]
    return inverse


@register("GLADecodeFwdOp", "GLAFwdOp", "GLABwdOp")
class GatedLinearAttentionWorkload(SequenceWorkload):
    """Gated linear attention: decays per key channel."""

    roles: ClassVar[Mapping[str, Role]] = {"g": log_decay, "gk": log_decay}


@register("SSDChunkStateFwdOp", "SSDStatePassingFwdOp", "SSDChunkScanFwdOp", "SSDDecodeFwdOp")
class StateSpaceWorkload(SequenceWorkload):
    """Steps, rates and running sums of decay exponents; a few requests packed into a sequence."""

    roles: ClassVar[Mapping[str, Role]] = {"dt": step, "A": rate, "dA_chunk_cumsum": shrinking}

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name == "dA_cumsum":
            return self._falling(spec.name, meta)
        if spec.name == "seq_idx":
            return self._packed(spec.name, meta, made)
        return super().gen_input(spec, meta, made)

    def _falling(self, name: str, meta: TensorMeta) -> torch.Tensor:
        """Running sums along a chunk of steps of at most 1/16: of integers, exact in any order."""
        steps = below(self.stream(name), math.prod(meta.shape), 1 << 10, self.device).reshape(meta.shape)
        return (steps.cumsum(-1) * -(2.0**-14)).to(torch_dtype(meta.dtype))

    def _packed(self, name: str, meta: TensorMeta, made: Made) -> torch.Tensor:
        """About one boundary between requests in each chunk."""
        domain = self.binding.domain(name)
        few = replace(domain, high=min(domain.high, self.binding.dims["NC"] + 1))
        dtype, stream = torch_dtype(meta.dtype), self.stream(name)
        return generate_integers(
            Request(name, few, meta.shape, dtype, self.distribution, stream, self.device, made)
        )


@register("DaCumsumFwdOp", "Mamba2FwdOp")
class StepWorkload(SequenceWorkload):
    """Raw steps, which a softplus may still turn into short ones."""

    roles: ClassVar[Mapping[str, Role]] = {"A": rate, "dt_bias": step}

    def role_of(self, name: str) -> Role | None:
        if name == "dt":
            return step_logit if self.binding.params["dt_softplus"] else step
        return super().role_of(name)


@register("EngramGateConvFwdOp", "EngramGateConvBwdOp", "EngramDecodeFwdOp")
class EngramWorkload(SequenceWorkload):
    """Gated memory: projections of unit length, weights around 1, gates between 0 and 1."""

    roles: ClassVar[Mapping[str, Role]] = {
        "rms_w_h": near_one,
        "rms_w_v": near_one,
        "alpha": fraction,
        "rrms_h": positive,
        "rrms_k": positive,
        "rrms_v": positive,
    }
    unit_along: ClassVar[Mapping[str, int]] = {"W_K": 0, "W_V": 0}

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        """Keys are not structured as hidden states are: gates of rows that are alike would all be 1."""
        if spec.name == "k" and self.distribution == "structured":
            return self.draw(spec.name, meta, "normal")
        return super().gen_input(spec, meta, made)


@register("MHCPreFwdOp")
class HyperConnectionWorkload(SequenceWorkload):
    """Projections of unit length: gates and mixing weights are neither all 0 nor all 1."""

    unit_along: ClassVar[Mapping[str, int]] = {"phi": 0}
