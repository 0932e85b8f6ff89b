"""Converted graphs in forms that Inductor compiles right: convolutions of one dimension."""

import pytest
import torch
from torch import nn

from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import StaticQuantConfig, convert, load, prepare

pytest.importorskip("torchao")


class Signal(nn.Module):
    """Convolutions of one dimension in a chain, one called twice, with what one gives read in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.next = nn.Conv1d(8, 8, 5, padding=2), nn.Conv1d(8, 16, 3, 2, padding=1)
        self.last = nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=4)

    def forward(self, x):
        x = nn.functional.gelu(self.first(torch.relu(self.first(x))))
        y = torch.relu(self.next(x))
        return (y + self.last(y)).mean(-1), x


@pytest.fixture
def signal():
    torch.manual_seed(0)
    model, x = Signal().eval(), torch.randn(4, 8, 40)
    exported = export(model, x, {"x": {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}})
    prepared = prepare(exported, StaticQuantConfig().set_local("Conv1d", StaticQuantConfig()))
    prepared(x)
    return model, convert(prepared, quiet=True), x


def test_static_convolutions_of_one_dimension_are_written_with_two(signal, tmp_path):
    model, q_model, x = signal
    targets = [node.target for node in q_model.graph.nodes]
    assert targets.count(torch.ops.aten.conv2d.default) == 4
    assert torch.ops.aten.conv1d.default not in targets
    assert targets.count(torch.ops.aten.unsqueeze.default) == 1, "what one hands to the next stays in two dimensions"
    for length in (40, 31):
        for y, expected in zip(q_model(x[..., :length]), model(x[..., :length]), strict=True):
            assert y.shape == expected.shape
            assert (y - expected).norm() < 0.05 * expected.norm()
    assert set(q_model.quantization.plan) == {(name, "Conv1d") for name in ("first", "next", "last")}
    q_model.save(tmp_path / "saved")
    for y, expected in zip(load(tmp_path / "saved")(x), q_model(x), strict=True):
        assert torch.equal(y, expected)


@pytest.mark.slow
def test_convolutions_of_one_dimension_are_compiled_beside_an_addition(signal):
    _, q_model, x = signal
    with torch._inductor.config.patch(freezing=True):
        for y, expected in zip(torch.compile(q_model)(x), q_model(x), strict=True):
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
