"""A deferred output passes for the output."""

import numpy as np
import pytest
import torch

from neural_compressor.torch.structure.replay import Deferred, value_of


@pytest.fixture
def late():
    runs = []

    def run():
        runs.append(1)
        return torch.tensor([1.0, -2.0])

    return Deferred(run), runs


def test_nothing_runs_before_it_is_looked_at_and_then_once(late):
    output, runs = late
    assert not runs
    assert output.tolist() == output.tolist() == [1.0, -2.0]
    assert runs == [1]


USES = {
    "an attribute": lambda x: x.shape[0] == 2,
    "isinstance": lambda x: isinstance(x, torch.Tensor),
    "an operator": lambda x: (x + 1).tolist() == [2.0, -1.0],
    "an operator from the right": lambda x: (1 - x).tolist() == [0.0, 3.0],
    "a tensor on the left": lambda x: (torch.ones(2) * x).tolist() == [1.0, -2.0],
    "another deferred one": lambda x: (x * Deferred(lambda: torch.ones(2))).tolist() == [1.0, -2.0],
    "a function of torch": lambda x: torch.relu(x).tolist() == [1.0, 0.0],
    "a list of tensors": lambda x: torch.stack([x, x]).shape == (2, 2),
    "a keyword": lambda x: torch.sum(input=x).item() == -1.0,
    "numpy": lambda x: np.asarray(x).tolist() == [1.0, -2.0],
    "an index": lambda x: x[1].item() == -2.0,
    "iteration": lambda x: [v.item() for v in x] == [1.0, -2.0],
    "a length": lambda x: len(x) == 2,
    "a comparison": lambda x: (x > 0).tolist() == [True, False],
    "a number": lambda x: float(x[0]) == 1.0,
    "text": lambda x: "tensor" in repr(x) and "tensor" in f"{x}",
    "its value": lambda x: type(value_of(x)) is torch.Tensor,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_it_passes_for_the_value(late, use):
    assert use(late[0])
    assert late[1] == [1]


def test_a_mapping_and_an_object():
    output = Deferred(lambda: {"logits": torch.ones(1)})
    assert "logits" in output
    assert dict(**output)["logits"].item() == 1.0
    output["more"] = 2
    assert output["more"] == 2
    assert not Deferred(dict)


def test_an_error_is_raised_where_the_output_is_looked_at_and_again():
    output = Deferred(lambda: torch.ones(2) @ torch.ones(3))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inconsistent tensor size"):
            _ = output.shape
