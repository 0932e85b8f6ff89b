"""Int8 tensors are handed on where, and only where, that changes no output."""

import pytest
import torch
from torch import nn

from neural_compressor.torch.adaptor import PyTorchAdaptor

INT8 = {
    "weight": {"dtype": "int8", "granularity": "per_channel"},
    "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
}


def quantized(model, x, leave=()):
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    ops = [key for key in adaptor.query_fw_capability(model)["opwise"] if key[0] not in leave]
    return adaptor, adaptor.quantize({"op": dict.fromkeys(ops, INT8)}, model, [x])


def without_relays(model):
    for name in model.quantization.relays:
        model.get_submodule(name).set_output_qparams(None)
    return model


@pytest.fixture
def chain():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 2)),
    ).eval()


def test_a_chain_stays_in_int8_and_computes_the_same(chain):
    x = torch.randn(4, 1, 8, 8)
    _, new = quantized(chain, x)
    assert new.quantization.relays == {"0": "4", "4": "7", "7": "8"}
    fast = new(x)
    assert torch.equal(fast, without_relays(new)(x))


def test_a_float_op_behind_gets_floats(chain):
    x = torch.randn(4, 1, 8, 8)
    _, new = quantized(chain, x, leave=("4",))
    assert new.quantization.relays == {"7": "8"}
    assert torch.equal(new(x), without_relays(new)(x))


def test_a_residual_is_not_relayed(convnet):
    x = torch.randn(4, 1, 8, 8)
    assert quantized(convnet, x)[1].quantization.relays == {}


def test_only_a_sequential_hands_on_because_other_code_may_branch():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            h = self.a(x)
            return self.b(h) if len(x) > 4 else torch.tanh(h)

    torch.manual_seed(0)
    model, x = Branch().eval(), torch.randn(16, 4)
    _, new = quantized(model, x)
    assert new.quantization.relays == {}
    torch.testing.assert_close(new(x[:2]), model(x[:2]), rtol=0.1, atol=0.05)


def test_a_shared_op_does_not_hand_on():
    fc = nn.Linear(4, 4)
    x = torch.randn(16, 4)
    assert quantized(nn.Sequential(fc, nn.ReLU(), fc, nn.Linear(4, 2)).eval(), x)[1].quantization.relays == {}


def test_relays_are_restored_on_load(chain, tmp_path):
    x = torch.randn(4, 1, 8, 8)
    adaptor, new = quantized(chain, x)
    adaptor.save(new, tmp_path / "m")
    again = adaptor.load(tmp_path / "m", chain)
    assert again[0](x).is_quantized
    assert torch.equal(again(x), new(x))
