"""Mathematical properties that any right implementation has, whatever its rounding.

A property takes a program `(inputs, params) -> outputs`, inputs and params, and says whether it holds for
them. NaN is equal to NaN here. Relations that rounding could break are tested with a relative slack of
2^-30, so they are for programs in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Run = Callable[[Mapping[str, Tensor | None], Mapping[str, Any]], tuple[Tensor, ...]]
Inputs = Mapping[str, Tensor | None]
Params = Mapping[str, Any]

SLACK = 2.0**-30


def close(a: Tensor, b: Tensor, magnitude: Tensor | float = 0.0) -> bool:
    """Equal up to the slack, relative to the greater of `b` and `magnitude`; NaN and infinities must be the
    same.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    same = (a == b) | (a.isnan() & b.isnan())
    within = (a - b).abs() <= SLACK * torch.maximum(b.abs(), torch.as_tensor(magnitude, dtype=b.dtype))
    return bool((same | within).all())


def _leading(inputs: Inputs) -> tuple[str, Tensor]:
    return next((name, tensor) for name, tensor in inputs.items() if tensor is not None)


def doubled(x: Tensor) -> Tensor:
    """2 x without overflow: floating tensors in float64."""
    return 2 * (x.to(torch.float64) if x.is_floating_point() else x)


def _with(inputs: Inputs, name: str, value: Tensor) -> Inputs:
    return {**inputs, name: value}


def is_odd(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(-x) = -f(x)."""
    name, x = _leading(inputs)
    return close(run(_with(inputs, name, -x), params)[0], -run(inputs, params)[0])


def is_even(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(-x) = f(x)."""
    name, x = _leading(inputs)
    return close(run(_with(inputs, name, -x), params)[0], run(inputs, params)[0])


def is_idempotent(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(f(x)) = f(x)."""
    name, _ = _leading(inputs)
    once = run(inputs, params)[0]
    return close(run(_with(inputs, name, once), params)[0], once)


def is_involution(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(f(x)) = x."""
    name, x = _leading(inputs)
    once = run(inputs, params)[0]
    return close(run(_with(inputs, name, once), params)[0], x.to(once.dtype))


def is_monotone(run: Run, inputs: Inputs, params: Params) -> bool:
    """x <= y implies f(x) <= f(y)."""
    name, x = _leading(inputs)
    ordered = x.reshape(-1).sort().values
    ordered = ordered[~ordered.isnan()]
    values = run(_with(inputs, name, ordered), params)[0]
    rising = values.diff()
    return bool((rising.isnan() | (rising >= -SLACK * values[1:].abs())).all())


def agrees_with_itself_swapped(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(x, y) = f(y, x)."""
    swapped = {"input": inputs["other"], "other": inputs["input"]}
    return close(run(swapped, params)[0], run(inputs, params)[0])


def is_asymmetric(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(x, y) and f(y, x) are never both true."""
    swapped = {"input": inputs["other"], "other": inputs["input"]}
    return not bool((run(swapped, params)[0] & run(inputs, params)[0]).any())


def ignores_order(run: Run, inputs: Inputs, params: Params) -> bool:
    """Reversing every axis that is reduced leaves the result: here all axes are reversed, and the result
    back.
    """
    name, x = _leading(inputs)
    axes = tuple(range(x.dim()))
    reversed_run = run(_with(inputs, name, x.flip(axes)), params)[0]
    restored = reversed_run.flip(tuple(range(reversed_run.dim())))
    magnitude = x.to(torch.float64).abs().nan_to_num(0, 0, 0).sum() if restored.is_floating_point() else 0.0
    return close(restored, run(inputs, params)[0], magnitude)


def is_homogeneous(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(2 x) = 2 f(x): doubling is exact."""
    name, x = _leading(inputs)
    return close(run(_with(inputs, name, doubled(x)), params)[0], run(inputs, params)[0] * 2)


def ignores_a_shift(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(x + 1) = f(x), in float64."""
    name, x = _leading(inputs)
    wide = x.to(torch.float64)
    return close(
        run(_with(inputs, name, wide + 1), params)[0], run(_with(inputs, name, wide), params)[0], 1.0
    )


def ignores_the_scale(run: Run, inputs: Inputs, params: Params) -> bool:
    """f(2 x) = f(x) when epsilon is negligible."""
    name, x = _leading(inputs)
    small = {**params, "eps": 1e-30}
    return close(run(_with(inputs, name, doubled(x)), small)[0], run(inputs, small)[0], 1.0)


def doubles_with(*names: str, outputs: int | None = None) -> Callable[[Run, Inputs, Params], bool]:
    """The property that the first `outputs` outputs (all of them) double when these inputs do: linearity."""

    def doubles(run: Run, inputs: Inputs, params: Params) -> bool:
        given = {name: doubled(inputs[name]) for name in names if inputs[name] is not None}
        twice, once = run({**inputs, **given}, params), run(inputs, params)
        pairs = list(zip(twice, once, strict=True))[:outputs]
        return all(close(a, 2 * b, b.abs().max() if b.numel() else 0.0) for a, b in pairs)

    doubles.__name__ = f"doubles_with_{'_and_'.join(names)}"
    return doubles


def is_causal(axis: int) -> Callable[[Run, Inputs, Params], bool]:
    """The property that outputs at tokens before the last third do not change with inputs of that third.

    `axis` is that of tokens, in the leading output and in every input that is as long there as the leading.
    """

    def causal(run: Run, inputs: Inputs, params: Params) -> bool:
        _, leading = _leading(inputs)
        length = leading.shape[axis]
        seen = length - length // 3

        def changed(x: Tensor | None) -> Tensor | None:
            if x is None or x.dim() <= axis or x.shape[axis] != length:
                return x
            return torch.cat((x.narrow(axis, 0, seen), x.narrow(axis, seen, length - seen) / 2), dim=axis)

        before = run(inputs, params)[0]
        after = run({name: changed(x) for name, x in inputs.items()}, params)[0]
        same = torch.equal(before.narrow(axis, 0, seen), after.narrow(axis, 0, seen))
        return same and not torch.equal(before, after)

    causal.__name__ = "is_causal"
    return causal
