"""`WorkloadBase`: the inputs of one call of one operator, as a pure function of what identifies the call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from tileops_manifest import Binding, Entry, Row, TensorMeta, TensorSpec

from . import layouts
from .bits import Stream
from .centred import CENTRED, in_groups
from .distributions import DISTRIBUTIONS, generate
from .domains import Request, generate_integers
from .dtypes import torch_dtype
from .errors import DomainError, LayoutError, ScaleError, require_name
from .scale import SCALES, scale_shape
from .shapes import Shape, empty, freeze_dims, zero_dim

# Part of every stream's name and of every digest: raise it when the bytes of some input change.
GENERATOR = "tileops-workloads/1"

# Where it is not said what comes of an overflow: a product of four such numbers is finite in float32.
_LARGEST_DEFINED = 2.0**24


class WorkloadBase:
    """Makes the inputs that an entry declares. Subclasses replace `gen_input` where an input's values have
    structure.

    Attributes:
        entry: the manifest entry.
        row: the workload row that the shape comes from, or None for a free shape.
        binding: the entry's binding: dims, dtypes, canonical params, input and output metas.
        seed, distribution, layout, scale: as given.
        device: where the inputs are made, a torch.device.

    >>> from tileops_manifest import load_manifest
    >>> from tileops_workloads import make_workload
    >>> entry = load_manifest()["RMSNormFwdOp"]
    >>> workload = make_workload(entry, None, {"T": "bfloat16"}, dims={"batch": (2,), "norm": (8,)})
    >>> {name: tuple(tensor.shape) for name, tensor in workload.gen_inputs().items()}
    {'x': (2, 8), 'weight': (8,)}
    """

    def __init__(
        self,
        entry: Entry,
        shape: Shape,
        *,
        row: Row | None = None,
        distribution: str = "normal",
        layout: str = "contiguous",
        seed: int = 0,
        device: torch.device | str = "cpu",
        scale: str | None = None,
    ):
        self.entry = entry
        self.row = row
        self.distribution = require_name("distribution", distribution, DISTRIBUTIONS)
        self.layout = require_name("layout", layout, layouts.LAYOUTS)
        self.seed = seed
        self.device = torch.device(device)
        self.scale = scale
        self._shape = self._final_shape(shape)
        self.binding: Binding = self._shape.bind(entry)
        self._check_layout()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the leading tensor: the first input, or output where there is none."""
        return self._leading.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the leading tensor."""
        return torch_dtype(self._leading.dtype)

    @property
    def params(self) -> dict[str, Any]:
        """Canonical params of the call: every param of the entry, defaults filled in."""
        return dict(self.binding.params)

    @cached_property
    def id(self) -> str:
        """A readable name, unique within the entry: `llama-8b-prefill-bfloat16-exact-strided-s1`."""
        where = (
            self.row.label if self.row else "-".join(f"{k}{_compact(v)}" for k, v in self._shape.dims.items())
        )
        parts = [where, *sorted(set(self.binding.dtypes.values()))]
        parts += [self.scale] if self.scale else []
        parts += [self.distribution] if self.distribution != "normal" else []
        parts += [self.layout] if self.layout != "contiguous" else []
        return "-".join([*parts, f"s{self.seed}"])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that the inputs' bytes depend on, the device not being among it."""
        identity = {
            "generator": GENERATOR,
            "class": type(self).__name__,
            "entry": self.entry.digest,
            "shape": [self._shape.dims, self._shape.params, self.binding.dtypes, sorted(self._shape.with_)],
            "values": dict(self._fixed_values()),
            "distribution": self.distribution,
            "layout": self.layout,
            "seed": self.seed,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()

    def gen_inputs(self) -> dict[str, torch.Tensor | None]:
        """New tensors for every input of the entry, in its order; None for an optional input that is not
        given.

        The same bytes at every call, on every machine and device. No global random state is read or written.

        Raises:
            DomainError: the legal values of an integer input cannot be met at this shape.
        """
        made: dict[str, torch.Tensor | None] = {}
        for name, spec in self.entry.inputs.items():
            meta = self.binding.inputs[name]
            made[name] = None if meta is None else self.gen_input(spec, meta, made)
        return {name: self._laid_out(name, tensor) for name, tensor in made.items()}

    def gen_input(
        self, spec: TensorSpec, meta: TensorMeta, made: Mapping[str, torch.Tensor | None]
    ) -> torch.Tensor:
        """One contiguous input. `made` holds the inputs before it, for values that depend on them."""
        fixed = self._fixed_values().get(spec.name)
        if fixed is not None:
            return self._fixed(spec.name, fixed, meta)
        if spec.values is None:
            return self.draw(spec.name, meta)
        domain = self.binding.domain(spec.name)
        dtype = torch_dtype(meta.dtype)
        stream = self.stream(spec.name)
        return generate_integers(
            Request(
                spec.name,
                domain,
                meta.shape,
                dtype,
                self.distribution,
                stream,
                self.device,
                made,
                of_row=self.row is not None,
            )
        )

    def draw(self, name: str, meta: TensorMeta, distribution: str | None = None) -> torch.Tensor:
        """Values of an input as its distribution alone has them; no NaN, no infinity, no large number where
        the entry leaves undefined what it gives. `shifted` is what the op subtracts a mean from, and nothing
        else.
        """
        chosen = self.distribution if distribution is None else distribution
        if chosen == "shifted":
            return self._shifted(name, torch_dtype(meta.dtype), meta.shape)
        values = generate(self.stream(name), meta.shape, torch_dtype(meta.dtype), chosen, self.device)
        if chosen == "adversarial" and values.is_floating_point():
            values = self._defined(values)
        return values

    def _shifted(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        centred, stream = CENTRED.get(self.entry.name), self.stream(name)
        if centred is None or centred.input != name:
            return generate(stream, shape, dtype, "normal", self.device)
        drawn = in_groups(
            self.binding, centred.groups, lambda rows: generate(stream, rows, dtype, "shifted", self.device)
        )
        return drawn.reshape(shape)

    def _defined(self, values: torch.Tensor) -> torch.Tensor:
        numerics = self.entry.numerics
        # 8-bit types convert and do nothing else; in float16 the bound itself would be infinite.
        wide = values.to(torch.float32) if values.dtype.itemsize < 4 else values
        if numerics.nan == "undefined":
            wide = wide.masked_fill(wide.isnan(), 0)
        if numerics.inf in ("undefined", "given"):
            kept = wide.isinf() if numerics.inf == "given" else torch.zeros_like(wide, dtype=torch.bool)
            wide = wide.masked_fill((wide.abs() > _LARGEST_DEFINED) & ~kept, 0)
        return wide.to(values.dtype)

    def stream(self, name: str, purpose: str = "values") -> Stream:
        """The random stream of one input; another `purpose` gives an unrelated one."""
        return Stream.named(GENERATOR, self.entry.name, name, purpose, self.distribution, self.seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.entry.name}, {self.id})"

    @property
    def _leading(self) -> TensorMeta:
        tensors = (*self.binding.inputs.values(), *self.binding.outputs.values())
        return next(meta for meta in tensors if meta is not None)

    def _final_shape(self, shape: Shape) -> Shape:
        if self.scale is not None:
            require_name("scale", self.scale, SCALES)
            if self.row is None:
                raise ScaleError(
                    f"{self.entry.name}: scale={self.scale!r} needs a row to scale, got a free shape"
                )
            shape = scale_shape(self.entry, shape, self.scale)
        reshape = {"zero-dim": zero_dim, "empty": empty}.get(self.layout)
        return reshape(self.entry, shape) if reshape else shape

    def _check_layout(self) -> None:
        if self.layout == "contiguous" or self.layout in layouts.SHAPE_LAYOUTS:
            return
        if not any(self._takes_layout(name) for name in self.entry.inputs):
            shapes = {name: meta.shape for name, meta in self.binding.inputs.items() if meta is not None}
            raise LayoutError(f"{self.entry.name}: no input can be {self.layout}, shapes are {shapes}")

    def _takes_layout(self, name: str) -> bool:
        """An input that the op writes is never expanded: its elements would share memory."""
        meta, spec = self.binding.inputs[name], self.entry.inputs[name]
        shared = self.layout == "expanded" and (name in self.binding.mutated or spec.values is not None)
        return meta is not None and not shared and layouts.can_take(meta.shape, self.layout)

    def _laid_out(self, name: str, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return (
            layouts.lay_out(tensor, self.layout)
            if tensor is not None and self._takes_layout(name)
            else tensor
        )

    def _fixed_values(self) -> Mapping[str, Any]:
        """Values that the row itself fixes: they fit the row's own shape only."""
        own = self.row is not None and self._shape.dims == freeze_dims(self.row.dims)
        return self.row.values if own else {}

    def _fixed(self, name: str, value: int | tuple[int, ...], meta: TensorMeta) -> torch.Tensor:
        values = torch.tensor(value, dtype=torch_dtype(meta.dtype), device=self.device)
        if values.dim() and values.numel() != _numel(meta):
            raise DomainError(f"{name}: the row fixes {values.numel()} values, its shape is {meta.shape}")
        return (values if values.dim() == 0 else values.reshape(meta.shape)).expand(meta.shape).clone()


def _numel(meta: TensorMeta) -> int:
    return torch.Size(meta.shape).numel()


def _compact(value: int | tuple[int, ...]) -> str:
    return str(value) if isinstance(value, int) else "x".join(map(str, value)) or "scalar"
