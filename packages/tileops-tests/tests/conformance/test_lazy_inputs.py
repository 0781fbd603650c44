"""Inputs in a lazy form of torch (conjugates, negatives, zeros without memory) count by their values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tileops_kernels.ops import get_function

FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugate": torch.conj,
    "negative": torch._neg_view,
    "negative conjugate": lambda z: torch._neg_view(z.conj()),
    "conjugate, transposed": lambda z: z.conj().mT.contiguous().mT,
    "zeros": lambda z: torch._efficientzerotensor(z.shape, dtype=z.dtype, device=z.device),
}
REAL_FORMS = {
    "imaginary part of a conjugate": lambda z: z.conj().imag,
    "negative": lambda z: torch._neg_view(z.real),
    "negative, every second": lambda z: torch._neg_view(z.real)[:, ::2],
    "zeros": lambda z: torch._efficientzerotensor(z.shape, device=z.device),
}
OF_COMPLEX = {
    "all": lambda x: x.all(1),
    "any": lambda x: x.any(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
}


def values(device: str) -> torch.Tensor:
    """Complex values, of which some are zero in one part, some in both, and one row is zero."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(-2, 3, (6, 10, 2), generator=generator).float()
    z[0] = 0
    return torch.view_as_complex(z).to(device)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OF_COMPLEX)
def test_lazy_complex_input(target, name, form):
    lazy = FORMS[form](values(target))
    assert torch.equal(get_function(name)(lazy, dim=[1]), OF_COMPLEX[name](lazy.clone()))


REFERENCES = {
    "relu": (lambda x: x.relu(), {}),
    "sum": (lambda x: x.sum(1), {"dim": [1]}),
    "cumsum": (lambda x: x.cumsum(1), {"dim": 1}),
    "amax": (lambda x: x.amax(1), {"dim": [1]}),
    "argmin": (lambda x: x.argmin(1), {"dim": 1}),
    "add": (lambda x, y: x + y, {}),
}


@pytest.mark.parametrize("form", REAL_FORMS)
@pytest.mark.parametrize("name", REFERENCES)
def test_lazy_real_input(target, name, form):
    reference, params = REFERENCES[name]
    lazy = REAL_FORMS[form](values(target))
    inputs = (lazy, lazy.clone()) if name == "add" else (lazy,)
    function = get_function(name)
    function(*[x.clone() for x in inputs], **params)  # a plan of a dense input is there already
    assert torch.equal(function(*inputs, **params), reference(*[x.clone() for x in inputs]))
