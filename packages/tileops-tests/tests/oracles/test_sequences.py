"""Sequence ops against each other: gradients against numerical ones, tokens and chunks against sequences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from tileops_tests.oracles import get_oracle

LENGTH, CHUNK = 7, 3  # three chunks, the last of one token


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(op: str, inputs: dict, **params: object) -> tuple[Tensor, ...]:
    return get_oracle(op).ref_program(inputs, params)


def delta_net(gated: bool) -> tuple[dict[str, Tensor], Callable, Callable]:
    """Inputs, forward pass with what it saves, and backward pass."""
    prefix = "GatedDeltaNet" if gated else "DeltaNet"
    inputs = {
        "q": draw(1, 2, LENGTH, 3, seed=1),
        "k": draw(1, 2, LENGTH, 3, seed=2) / 2,
        "v": draw(1, 2, LENGTH, 2, seed=3),
        "g": -draw(1, 2, LENGTH, seed=4).abs() / 4,
        "beta": draw(1, 2, LENGTH, seed=5).sigmoid(),
    }
    if not gated:
        del inputs["g"]

    def forward(given: dict) -> tuple[tuple[Tensor, ...], dict]:
        o, states, *_ = run(f"{prefix}{'BHTD' if gated else ''}FwdOp", given, chunk_size=CHUNK)
        return (o,), {"S": states}

    def backward(given: dict, saved: dict, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return run(f"{prefix}BwdOp", {"do": gradients[0], **given, **saved}, chunk_size=CHUNK)

    return inputs, forward, backward


def gated_linear() -> tuple[dict[str, Tensor], Callable, Callable]:
    inputs = {
        "q": draw(1, LENGTH, 2, 3, seed=1),
        "k": draw(1, LENGTH, 2, 3, seed=2),
        "v": draw(1, LENGTH, 2, 2, seed=3),
        "g": -draw(1, LENGTH, 2, 3, seed=4).abs() / 4,
    }
    first = draw(1, 2, 3, 2, seed=6)

    def states(given: dict, length: int) -> Tensor:
        part = {name: x[:, :length] for name, x in given.items()}
        return run("GLAFwdOp", {**part, "initial_state": first}, scale=-1.0)[1]

    def forward(given: dict) -> tuple[tuple[Tensor, ...], dict]:
        outputs = run("GLAFwdOp", {**given, "initial_state": first}, scale=-1.0)
        return outputs, {"h": torch.stack([states(given, n) for n in (0, 3, 6, LENGTH)], dim=1)}

    def backward(given: dict, saved: dict, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        do, dht = gradients
        params = {"chunk_size": CHUNK, "scale": -1.0, "has_initial_state": True}
        return run("GLABwdOp", {**given, **saved, "do": do, "dht": dht}, **params)

    return inputs, forward, backward


def engram() -> tuple[dict[str, Tensor], Callable, Callable]:
    inputs = {name: draw(2, LENGTH, 5, seed=i) for i, name in enumerate(("H", "k", "v"))}
    inputs |= {name: draw(5, seed=i) for i, name in enumerate(("rms_w_h", "rms_w_v"), 3)}
    inputs["conv_w"] = draw(4, 5, seed=6)
    saved_names = ("vhat", "alpha", "rrms_h", "rrms_k", "rrms_v")

    def forward(given: dict) -> tuple[tuple[Tensor, ...], dict]:
        y, *saved = run("EngramGateConvFwdOp", given, eps=0.01)
        return (y,), dict(zip(saved_names, saved, strict=True))

    def backward(given: dict, saved: dict, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return run("EngramGateConvBwdOp", {"dY": gradients[0], **given, **saved}, eps=0.01)

    return inputs, forward, backward


PAIRS = {
    "gated delta rule": lambda: delta_net(True),
    "delta rule": lambda: delta_net(False),
    "gated linear attention": gated_linear,
    "engram": engram,
}


def function_of(
    names: tuple[str, ...], forward: Callable, backward: Callable
) -> type[torch.autograd.Function]:
    """A differentiable function whose value and gradients are those of the two oracles."""

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            given = dict(zip(names, tensors, strict=True))
            outputs, saved = forward(given)
            ctx.given, ctx.saved = given, saved
            return outputs

        @staticmethod
        def backward(ctx, *gradients):
            return backward(ctx.given, ctx.saved, gradients)

    return Pair


@pytest.mark.parametrize("pair", PAIRS)
def test_backward_oracles_pass_gradcheck_on_their_forward_oracles(pair: str) -> None:
    inputs, forward, backward = PAIRS[pair]()
    leaves = tuple(x.clone().requires_grad_() for x in inputs.values())
    function = function_of(tuple(inputs), forward, backward)
    assert gradcheck(function.apply, leaves, atol=1e-7, rtol=1e-5)


def test_gradcheck_notices_a_wrong_gradient() -> None:
    inputs, forward, backward = delta_net(True)

    def wrong(given: dict, saved: dict, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        dq, dk, dv, dg, dbeta = backward(given, saved, gradients)
        return dq, dk, dv, dg * 1.01, dbeta

    leaves = tuple(x.clone().requires_grad_() for x in inputs.values())
    function = function_of(tuple(inputs), forward, wrong)
    with pytest.raises(GradcheckError):
        gradcheck(function.apply, leaves, atol=1e-7, rtol=1e-5)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=2.0**-36, atol=2.0**-36)


@pytest.mark.parametrize("gated", [True, False])
def test_delta_rules_token_by_token_are_the_sequence(gated: bool) -> None:
    inputs, forward, _ = delta_net(gated)
    (o,), saved = forward(inputs)
    state = torch.zeros(1, 2, 3, 2, dtype=torch.float64)
    for t in range(LENGTH):
        token = {name: x[:, :, t] for name, x in inputs.items()}
        row, state = run(f"{'Gated' if gated else ''}DeltaNetDecodeFwdOp", {**token, "state": state})
        assert close(row, o[:, :, t])
    assert close(state, saved["S"][:, :, -1])


def test_gated_linear_attention_token_by_token_is_the_sequence() -> None:
    inputs, forward, _ = gated_linear()
    (o, last), saved = forward(inputs)
    state = saved["h"][:, 0]
    for t in range(LENGTH):
        token = {name: inputs[name][:, t] for name in ("q", "k", "v")}
        token["gk"] = inputs["g"][:, t]
        row, state = run("GLADecodeFwdOp", {**token, "state": state}, scale=-1.0)
        assert close(row, o[:, t])
    assert close(state, last)


def test_engram_token_by_token_is_the_sequence() -> None:
    """With projections that are the identity, memory embeddings are keys and values alike."""
    inputs, forward, _ = engram()
    inputs["v"] = inputs["k"]
    (y,), _ = forward(inputs)
    eye, cache = torch.eye(5, dtype=torch.float64), torch.zeros(2, 4, 5, dtype=torch.float64)
    weights = {name: inputs[name] for name in ("rms_w_h", "rms_w_v", "conv_w")} | {"W_K": eye, "W_V": eye}
    for t in range(LENGTH):
        token = {
            "e_t": inputs["k"][:, t],
            "h_t": inputs["H"][:, t],
            "conv_state": cache,
            "W_K": eye,
            "W_V": eye,
        }
        row, cache = run("EngramDecodeFwdOp", {**token, **weights}, dilation=1, eps=0.01)
        assert close(row, y[:, t])


def state_space() -> dict[str, Tensor]:
    return {
        "x": draw(2, LENGTH, 4, 3, seed=1),
        "dt": draw(2, LENGTH, 4, seed=2) - 2,
        "A": -draw(4, seed=3).exp(),
        "B": draw(2, LENGTH, 2, 5, seed=4),
        "C": draw(2, LENGTH, 2, 5, seed=5),
        "dt_bias": draw(4, seed=6),
        "initial_states": draw(2, 4, 3, 5, seed=7),
    }


def test_a_state_space_chunk_by_chunk_is_the_sequence() -> None:
    inputs = state_space()
    y, last = run("Mamba2FwdOp", inputs, dt_softplus=True)
    steps = {name: inputs[name] for name in ("dt", "A", "dt_bias")}
    params = {"chunk_len": CHUNK, "dt_softplus": True, "dt_min": 0.0, "dt_max": math.inf}
    dt, total = run("DaCumsumFwdOp", steps, **params)
    (cb,) = run("CBProducerFwdOp", {"C_mat": inputs["C"], "B_mat": inputs["B"]}, chunk_len=CHUNK)
    tokens = {"x": inputs["x"], "dt": dt, "dA_cumsum": total}
    (states,) = run("SSDChunkStateFwdOp", {**tokens, "Bmat": inputs["B"]})
    passing = {"states": states.flatten(-2), "dA_chunk_cumsum": total[..., -1]}
    first = inputs["initial_states"].flatten(-2)
    before, final = run("SSDStatePassingFwdOp", {**passing, "initial_states": first})
    scan = {**tokens, "cb": cb, "C": inputs["C"], "prev_states": before.reshape(states.shape)}
    (scanned,) = run("SSDChunkScanFwdOp", scan)
    assert close(scanned, y)
    assert close(final.reshape(last.shape), last)


def test_a_state_space_token_by_token_is_the_sequence() -> None:
    inputs = state_space()
    y, last = run("Mamba2FwdOp", inputs, dt_softplus=False)
    state = inputs["initial_states"]
    step = (inputs["dt"] + inputs["dt_bias"]).clamp(min=0)
    for t in range(LENGTH):
        token = {
            "A": inputs["A"][:, None, None].expand(4, 3, 5),
            "dt": step[:, t, :, None].expand(2, 4, 3),
            "x": inputs["x"][:, t],
            "B_in": inputs["B"][:, t],
            "C_in": inputs["C"][:, t],
            "state": state,
        }
        row, state = run("SSDDecodeFwdOp", token)
        assert close(row, y[:, t])
    assert close(state, last)


def test_tokens_of_another_request_add_nothing_to_a_chunk() -> None:
    inputs = state_space()
    dt, total = (draw(2, 4, 3, CHUNK, seed=i).abs() / 4 for i in (8, 9))
    tokens = {"x": inputs["x"], "Bmat": inputs["B"], "dt": dt, "dA_cumsum": -total}
    numbers = torch.tensor([[0, 1, 1, 1, 1, 2, 2]] * 2, dtype=torch.int32)
    (seen,) = run("SSDChunkStateFwdOp", {**tokens, "seq_idx": numbers})
    alone = inputs["x"].clone()
    alone[:, [0, 3, 4]] = 0  # chunks end with requests 1, 2 and 2
    (expected,) = run("SSDChunkStateFwdOp", {**tokens, "x": alone})
    assert close(seen, expected)
    assert not close(seen, run("SSDChunkStateFwdOp", tokens)[0])
