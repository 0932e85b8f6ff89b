"""Double quantization and HQQ's quantized zero points from the configuration to the file, byte by byte."""

import copy
import json

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import quantize_parameter
from neural_compressor.errors import FormatError
from neural_compressor.formats import FORMATS
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    TEQConfig,
    convert,
    get_default_double_quant_config,
    load,
    quantize,
)

DOUBLE = {"use_double_quant": True}
OUTPUTS, INPUTS = 256, 1024
WEIGHTS = OUTPUTS * INPUTS


def one_layer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))


def data_bytes(folder):
    """Bytes of the tensors in the file of a saved model, without the header that names them."""
    content = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + header])
    return len(content) - 8 - header


def runs(count, size, bits=8, zero=1):
    """Bytes of ``count`` numbers of ``bits`` bits with a float scale and ``zero`` bytes a run."""
    return -(-count * bits // 8) + -(-count // size) * (4 + zero)


G32, G64 = WEIGHTS // 32, WEIGHTS // 64
SIZES = {
    "int4 g32": (RTNConfig(), WEIGHTS // 2 + 4 * G32),
    "int4 g32 double": (RTNConfig(**DOUBLE), WEIGHTS // 2 + runs(G32, 256)),
    "uint4 g32 double": (RTNConfig(use_sym=False, **DOUBLE), WEIGHTS // 2 + G32 + runs(G32, 256)),
    "int4 g32 double 6 bits": (
        RTNConfig(double_quant_bits=6, double_quant_use_sym=True, double_quant_group_size=8, **DOUBLE),
        WEIGHTS // 2 + runs(G32, 8, bits=6, zero=0),
    ),
    "int4 g32 double in one run": (RTNConfig(double_quant_group_size=-1, **DOUBLE), WEIGHTS // 2 + runs(G32, G32)),
    "nf4 double": (get_default_double_quant_config(), WEIGHTS // 2 + runs(G32, 256)),
    "int8 channel double": (RTNConfig(bits=8, group_size=-1, **DOUBLE), WEIGHTS + runs(OUTPUTS, 256)),
    "hqq": (HQQConfig(), WEIGHTS // 2 + 4 * G64 + runs(G64, 128)),
    "hqq floats": (HQQConfig(quant_zero=False), WEIGHTS // 2 + 8 * G64),
    "hqq double": (HQQConfig(quant_scale=True), WEIGHTS // 2 + 2 * runs(G64, 128)),
    "hqq double in one run": (
        HQQConfig(quant_scale=True, scale_quant_group_size=-1),
        WEIGHTS // 2 + 2 * runs(G64, G64),
    ),
}


@pytest.mark.parametrize(("config", "size"), SIZES.values(), ids=SIZES)
def test_a_saved_model_takes_the_bytes_of_the_arithmetic(config, size, tmp_path):
    model = convert(one_layer(), config)
    model.save(tmp_path / "m")
    assert data_bytes(tmp_path / "m") == size
    assert PyTorchAdaptor({}).model_size(model) == size
    assert model[0].layer_result().array.nbytes_packed == size
    again = load(tmp_path / "m", original_model=one_layer())
    assert again[0].scheme == model[0].scheme
    assert torch.equal(again[0].dequantized_weight(), model[0].dequantized_weight())
    for rows in (1, 400):
        x = torch.randn(rows, INPUTS)
        assert torch.equal(again(x), model(x))


def test_bits_a_weight():
    bits = {name: size * 8 / WEIGHTS for name, (_, size) in SIZES.items()}
    assert bits["int4 g32"] == 5
    assert bits["int4 g32 double"] == pytest.approx(4.255, abs=0.001)
    assert bits["hqq double"] == pytest.approx(4.26, abs=0.01)


@pytest.mark.parametrize("config", [GPTQConfig, AWQConfig, TEQConfig, RTNConfig])
def test_each_layer_has_runs_of_its_own(config, stack, run):
    """Layers that share an input are quantized as one; their scales are rounded as if each had been alone."""
    stack.blocks = stack.blocks[:1]
    fields = {"group_size": 8, "double_quant_group_size": 96}  # which divides no layer's scales
    plain = quantize(copy.deepcopy(stack), config(**fields), run_fn=run)
    double = quantize(copy.deepcopy(stack), config(**fields, **DOUBLE), run_fn=run)
    how = config(**fields, **DOUBLE).double_quant_scheme()
    for name in ("up", "gate"):
        before, after = (getattr(m.blocks[0], name).layer_result().array for m in (plain, double))
        if config is not RTNConfig:  # which has no reason to keep codes that are no longer the nearest
            assert torch.equal(after.codes, before.codes)
        expected = quantize_parameter(before.scale, how).dequantize().reshape(before.scale.shape)
        assert torch.equal(after.qparams.scale, expected)


@pytest.mark.parametrize(
    "config", [lambda **more: RTNConfig(**more, double_quant_bits=5), lambda **_: HQQConfig(quant_scale=True)]
)
def test_rounding_takes_the_codes_nearest_on_the_stored_grid(config):
    layer = one_layer()
    weight = layer[0].weight.detach().clone()
    array = convert(layer, config(**DOUBLE))[0].layer_result().array
    scale = array.qparams.scale if hasattr(array, "qparams") else None
    values = array.dequantize()
    if scale is not None:
        steps = scale.abs().repeat_interleave(weight.shape[1] // scale.shape[1], dim=1)
        inside = (array.codes.abs() < 7) & (array.codes > -8)
        assert ((weight - values).abs()[inside] <= 0.501 * steps[inside]).all()
    else:
        assert torch.equal(array.rounded(weight).codes, array.codes)


def test_a_whole_model_comes_back_bit_for_bit(stack, run, tokens, tmp_path):
    config = GPTQConfig(group_size=16, use_sym=False, act_order=True, **DOUBLE)
    config.set_local(r".*\.down", HQQConfig(group_size=16, quant_scale=True))
    model = quantize(copy.deepcopy(stack), config, run_fn=run)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", original_model=stack)
    assert sum(isinstance(m, WeightOnlyLinear) for m in again.modules()) == 9
    assert torch.equal(again(tokens[0]), model(tokens[0]))
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())


def test_a_tampered_plan_is_refused(tmp_path):
    convert(one_layer(), RTNConfig(**DOUBLE)).save(tmp_path / "m")
    file = tmp_path / "m" / "qconfig.json"
    text = file.read_text()
    assert '"scales"' in text
    settings = json.loads(text)
    del settings["plan"]["op"][0][2]["weight"]["scales"]
    file.write_text(json.dumps(settings))
    with pytest.raises(FormatError, match="changed after it was written"):
        load(tmp_path / "m", original_model=one_layer())
    del settings["checksum"]  # as in files of earlier releases
    file.write_text(json.dumps({**settings, "version": 1}))
    with pytest.raises(FormatError, match=r"missing \['weight_scale'\]"):
        load(tmp_path / "m", original_model=one_layer())


@pytest.mark.parametrize(
    ("name", "symmetric"),
    [("pack-quantized", True), ("gptq", True), ("gptq_v2", False), ("awq", False), ("gguf", True)],
)
def test_other_formats_get_float_scales(name, symmetric):
    layer = convert(one_layer(), RTNConfig(use_sym=symmetric, **DOUBLE))[0]
    weight = layer.linear_weight()
    assert weight.scale.dtype == torch.float32
    assert torch.equal(weight.dequantize(), layer.dequantized_weight())
    stored = FORMATS[name].compress(weight, "layer")
    back = FORMATS[name].decompress(stored, FORMATS[name].config({"layer": weight.spec}), "layer")
    torch.testing.assert_close(back.dequantize(), layer.dequantized_weight(), rtol=2e-3, atol=1e-5)


def test_float_zero_points_have_no_other_format():
    layer = convert(one_layer(), HQQConfig())[0]
    with pytest.raises(FormatError, match="float zero-points"):
        layer.linear_weight()
