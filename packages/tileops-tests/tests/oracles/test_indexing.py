"""What counts as the same selection: any choice among equal scores, and nothing else."""

from __future__ import annotations

import pytest
import torch

from tileops_tests.oracles import get_oracle

SCORES = [5.0, 0.0, -0.0, 3.0, -1.0]


def selected(*indexes: int) -> list[float]:
    inputs = {
        "index_score": torch.tensor(SCORES).reshape(1, 1, -1, 1),
        "starts": torch.tensor([[0]], dtype=torch.int32),
        "ends": torch.tensor([[4]], dtype=torch.int32),
    }
    chosen = torch.tensor(indexes, dtype=torch.int32).reshape(1, 1, 1, -1)
    (values,) = get_oracle("TopkSelectorFwdOp").canonical_form(inputs, {"topk": len(indexes)}, (chosen,))
    return [*map(str, values.flatten().tolist())]


def test_order_and_the_sign_of_a_chosen_zero_are_free() -> None:
    assert selected(0, 3, 1) == selected(2, 3, 0) == ["5.0", "3.0", "0.0"]


@pytest.mark.parametrize("indexes", [(0, 3, 3), (0, 3, 4), (0, 3, 5)], ids=["twice", "past", "nowhere"])
def test_what_may_not_be_chosen_equals_nothing(indexes: tuple[int, ...]) -> None:
    assert "nan" in selected(*indexes)


def test_a_lesser_choice_differs() -> None:
    assert selected(0, 1, 2) != selected(0, 1, 3)
    assert selected(0, 3, -1) != selected(0, 3, 1)
