"""What stands on the input of a layer serves every scheme alike."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor.algorithms.hadamard import Rotation
from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules import quantized_module
from neural_compressor.torch.modules.input_change import InputChange, rotated


def tensor(name, granularity="per_tensor", scheme="sym"):
    return {"dtype": name, "scheme": scheme, "granularity": granularity}


SCHEMES = {
    "int8 static": {
        "weight": tensor("int8", "per_channel"),
        "activation": {**tensor("uint8", scheme="asym"), "quant_mode": "static"},
    },
    "int8 dynamic": {
        "weight": tensor("int8", "per_channel"),
        "activation": {**tensor("uint8", scheme="asym"), "quant_mode": "dynamic"},
    },
    "fp8 static": {"weight": tensor("fp8_e4m3"), "activation": {**tensor("fp8_e4m3"), "quant_mode": "static"}},
    "fp8 dynamic": {"weight": tensor("fp8_e4m3"), "activation": {**tensor("fp8_e4m3"), "quant_mode": "dynamic"}},
    "int8 weight-only": {"weight": {**tensor("int8"), "granularity": "per_group", "group_size": 8}},
}
LINEAR = {
    "multiplier": lambda: InputChange(torch.rand(16) + 0.5),
    "rotation": lambda: InputChange(rotation=Rotation(16, seed=3)),
    "order": lambda: InputChange(order=torch.randperm(16)),
    "all": lambda: InputChange(torch.rand(16) + 0.5, Rotation(16, seed=3), torch.randperm(16)),
}


def ranges(x):
    return [(float(x.min()), float(x.max()))]


def expected_weight(weight, change):
    """The weight for changed inputs by a loop over unit vectors: column j answers to what becomes of input j."""
    undone = torch.linalg.inv(torch.stack([change.on_input(unit) for unit in torch.eye(16)]).double())
    return (undone @ weight.double().T).T.float()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("change", LINEAR)
def test_a_linear_layer_quantizes_the_changed_input_and_weight(scheme, change):
    torch.manual_seed(0)
    how, made = OpScheme.from_dict(SCHEMES[scheme]), LINEAR[change]()
    module, x = nn.Linear(16, 8), torch.randn(5, 16)
    inside = made.on_input(x)
    q = quantized_module(module, how, ranges(inside), change=made)
    changed = nn.Linear(16, 8)
    with torch.no_grad():
        changed.weight.copy_(expected_weight(module.weight, made))
        changed.bias.copy_(module.bias)
    plain = quantized_module(changed, how, ranges(inside))
    torch.testing.assert_close(q(x), plain(inside), rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(q(x), module(x), rtol=0, atol=0.15)
    torch.testing.assert_close(q.dequantized_weight(), module.weight.detach(), rtol=0, atol=0.03)
    assert q.simulated is plain.simulated
    assert q.input_qparams is None, "an int8 tensor of another op is not the changed input"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_state_copies_and_files_keep_the_change(scheme):
    how, made = OpScheme.from_dict(SCHEMES[scheme]), LINEAR["all"]()
    module, x = nn.Linear(16, 8), torch.randn(5, 16)
    q = quantized_module(module, how, ranges(made.on_input(x)), change=made)
    again = quantized_module(nn.Linear(16, 8), how, state=q.state_dict())
    torch.testing.assert_close(again(x), q(x), rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), q(x), rtol=0, atol=0)
    name = "input_scale" if how.mode == "weight_only" else "input_multiplier"
    with pytest.raises(FormatError, match=f"{name!r} has shape"):
        quantized_module(module, how, state={**q.state_dict(), name: torch.ones(3)})
    with pytest.raises(FormatError, match="is not an order of 16 inputs"):
        quantized_module(module, how, state={**q.state_dict(), "input_order": torch.zeros(16, dtype=torch.int32)})


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_outputs_are_of_the_type_of_the_input(kind):
    made, x = LINEAR["all"](), torch.randn(5, 16)
    q = quantized_module(nn.Linear(16, 8), OpScheme.from_dict(SCHEMES["int8 static"]), [(-4, 4)], change=made)
    assert q(x.to(kind)).dtype == kind


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("scheme", ["int8 static", "int8 dynamic", "fp8 static"])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
def test_a_convolution_multiplies_the_channels_of_its_input(kind, scheme, groups):
    torch.manual_seed(1)
    if kind is nn.ConvTranspose2d and scheme == "int8 dynamic":
        pytest.skip("transposed convolutions are static")
    dims = 1 if kind is nn.Conv1d else 2
    module, x = kind(6, 12, 3, padding=1, groups=groups), torch.randn(2, 6, *(7,) * dims)
    x[:, 0] *= 50
    how = SCHEMES[scheme]
    if kind is nn.ConvTranspose2d:
        how = {**how, "weight": {**how["weight"], "granularity": "per_tensor"}}
    made = InputChange(1 / torch.tensor([50.0, 1, 1, 1, 1, 1]))
    q = quantized_module(module, OpScheme.from_dict(how), ranges(x / x.abs().amax()), change=made)
    assert q.input_multiplier.tolist() == pytest.approx([0.02, 1, 1, 1, 1, 1])
    weight = module.weight.detach().clone()
    for out, within in [(o, i) for o in range(12) for i in range(6 // groups)]:
        if kind is not nn.ConvTranspose2d and out // (12 // groups) * (6 // groups) + within == 0:
            weight[out, within] *= 50  # the only weights that channel 0 meets
    if kind is nn.ConvTranspose2d:
        weight[0] *= 50
    held = q._product_weight()
    step = held.abs().amax()
    torch.testing.assert_close(held / step, weight / step, rtol=0, atol=0.04)
    torch.testing.assert_close(q.dequantized_weight()[1:], module.weight.detach()[1:], rtol=0, atol=float(step) / 10)


def test_smoothing_without_folding_saves_a_static_layer_with_an_outlier():
    torch.manual_seed(0)
    module, x = nn.Linear(16, 8, bias=False), torch.randn(64, 16)
    x[:, 5] *= 100
    how, s = OpScheme.from_dict(SCHEMES["int8 static"]), x.abs().amax(0).sqrt()
    plain = quantized_module(module, how, ranges(x))
    smooth = quantized_module(module, how, ranges(x / s), change=InputChange(1 / s))
    error, less = ((q(x) - module(x)).pow(2).mean() for q in (plain, smooth))
    assert less < error / 10


def test_what_does_not_fit_is_refused():
    static = OpScheme.from_dict(SCHEMES["int8 static"])
    with pytest.raises(QuantizationError, match="16 channels cannot be multiplied by a tensor of"):
        quantized_module(nn.Linear(16, 8), static, [(-1, 1)], change=InputChange(torch.ones(8)))
    with pytest.raises(QuantizationError, match="nowhere zero"):
        quantized_module(nn.Linear(16, 8), static, [(-1, 1)], change=InputChange(torch.zeros(16)))
    with pytest.raises(QuantizationError, match="none of 16 channels"):
        quantized_module(nn.Linear(16, 8), static, [(-1, 1)], change=InputChange(order=torch.zeros(16)))
    with pytest.raises(QuantizationError, match="does not fit 16 channels"):
        quantized_module(nn.Linear(16, 8), static, [(-1, 1)], change=InputChange(rotation=Rotation(8)))
    with pytest.raises(QuantizationError, match="of 2 groups cannot mix"):
        quantized_module(nn.Conv2d(4, 4, 1, groups=2), static, [(-1, 1)], change=InputChange(rotation=Rotation(4)))
    table = OpScheme.from_dict({"weight": tensor("int8", "per_channel")})
    with pytest.raises(QuantizationError, match="indices"):
        quantized_module(nn.Embedding(4, 8), table, change=InputChange(torch.ones(8)))


def sylvester(n):
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / n**0.5


@pytest.mark.parametrize(
    ("features", "block"), [(1, 1), (2, 2), (8, 8), (32, 32), (96, 32), (96, 4), (576, 64), (5, 1)]
)
def test_blocks_are_turned_by_the_matrix_of_sylvester(features, block):
    x = torch.randn(3, features, dtype=torch.float64)
    blocks = x.numpy().reshape(3, -1, block) @ sylvester(block)
    found = rotated(x, Rotation(features, block))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), blocks.reshape(3, features), atol=1e-6)


def test_an_empty_batch():
    assert rotated(torch.empty(2, 0, 64), Rotation(64, seed=1)).shape == (2, 0, 64)


@pytest.mark.parametrize("shape", [(64,), (2, 3, 64)])
def test_signs_are_those_of_the_seed(shape):
    x, turn = torch.randn(shape), Rotation(64, seed=11)
    assert rotated(x, turn).shape == shape
    torch.testing.assert_close(rotated(x, turn), turn.apply(x))
    assert not torch.allclose(rotated(torch.ones(64), turn), rotated(torch.ones(64), Rotation(64, seed=12)))


def test_halves_are_turned_in_float32():
    x = torch.randn(4, 1024).bfloat16()
    assert rotated(x, Rotation(1024)).dtype == torch.float32
    torch.testing.assert_close(rotated(x, Rotation(1024)), Rotation(1024).apply(x.float()))
