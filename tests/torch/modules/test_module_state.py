import copy
import pickle

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from neural_compressor.errors import FormatError
from neural_compressor.schemes import float_op
from neural_compressor.torch.functional import Add, MatMul
from neural_compressor.torch.modules import quantized_module

STATIC = ("int8 channel safe", "uint8 asym", "static")
CASES = {
    "linear_static": (lambda **k: nn.Linear(16, 8, **k), STATIC, (5, 16)),
    "linear_dynamic": (lambda **k: nn.Linear(16, 8, **k), ("int8 tensor safe", "uint8 asym", "dynamic"), (5, 16)),
    "linear_asym": (lambda **k: nn.Linear(16, 8, **k), ("uint8 asym channel", "int8 sym", "static"), (5, 16)),
    "linear_int4": (lambda **k: nn.Linear(16, 8, **k), ("int4 8", "uint4 asym", "static"), (5, 16)),
    "linear_nvfp4": (lambda **k: nn.Linear(16, 8, **k), ("nvfp4",), (5, 16)),
    "linear_per_channel": (lambda **k: nn.Linear(16, 8, **k), ("int8", "int8 asym 4", "dynamic"), (5, 16)),
    "no_bias": (lambda **k: nn.Linear(16, 8, bias=False, **k), STATIC, (5, 16)),
    "conv1d": (lambda **k: nn.Conv1d(4, 8, 3, **k), STATIC, (2, 4, 9)),
    "conv2d": (lambda **k: nn.Conv2d(4, 8, 3, groups=2, **k), STATIC, (2, 4, 9, 9)),
    "conv2d_dynamic": (lambda **k: nn.Conv2d(4, 8, 3, **k), ("int8 channel safe", "int8 sym", "dynamic"), (2, 4, 9, 9)),
    "conv2d_uint3": (lambda **k: nn.Conv2d(4, 8, 3, **k), ("uint3 asym channel", "uint3 asym", "static"), (2, 4, 9, 9)),
    "conv3d": (lambda **k: nn.Conv3d(4, 8, 3, **k), STATIC, (2, 4, 5, 5, 5)),
    "transposed": (lambda **k: nn.ConvTranspose2d(4, 8, 3, groups=2, **k), STATIC, (2, 4, 5, 5)),
    "lstm_int4": (lambda **k: nn.LSTM(6, 5, 2, bidirectional=True, **k), ("int4 channel",), (3, 2, 6)),
    "gru": (lambda **k: nn.GRU(6, 5, bias=False, **k), ("int8 channel safe", "uint8 asym", "dynamic"), (3, 2, 6)),
    "bf16": (lambda **k: nn.Linear(16, 8, **k), "bf16", (5, 16)),
    "fp16": (lambda **k: nn.LSTM(6, 5, **k), "fp16", (3, 2, 6)),
}


def make(scheme, name):
    factory, how, shape = CASES[name]
    how = float_op(how) if isinstance(how, str) else scheme(*how)
    x = torch.randn(shape)
    return quantized_module(factory(), how, [(float(x.min()), float(x.max()))]), factory, how, x


def outputs(module, x):
    y = module(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_round_trip_through_a_file_is_exact(scheme, name, relu):
    if relu and ("lstm" in name or name in ("gru", "fp16")):
        relu = False
    factory, how, shape = CASES[name]
    how = float_op(how) if isinstance(how, str) else scheme(*how)
    x = torch.randn(shape)
    q = quantized_module(factory(), how, [(float(x.min()), float(x.max()))], relu=relu)
    stored = load(save({key: value.contiguous() for key, value in q.state_dict().items()}))
    for skeleton in (factory(), factory(device="meta")):  # other values, and none
        again = quantized_module(skeleton, how, state=stored, relu=relu)
        assert torch.equal(outputs(again, x), outputs(q, x))
        assert again.kernel == q.kernel
        assert again.state_dict().keys() == q.state_dict().keys()
        assert not any(t.is_meta for t in again.state_dict().values())


@pytest.mark.parametrize("name", CASES)
def test_copies_and_pickles_leave_the_kernels_weight_behind(scheme, name):
    q, _, _, x = make(scheme, name)
    y = outputs(q, x)  # builds it
    for twin in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert twin._prepacked == []
        assert torch.equal(outputs(twin, x), y)
    assert (q._prepacked != []) == (q.kernel.startswith(("fbgemm", "onednn", "onnxruntime", "torch int4pack")))


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_inference_mode_do_not_matter(scheme, name):
    q, _, _, x = make(scheme, name)
    y = outputs(q, x.clone().requires_grad_()).detach()
    # torch has other kernels for inference in half precision and for recurrences; of low bits there are no gradients,
    # and what is multiplied with gradients is the dequantized weight.
    tolerance = {"bf16": 2e-3, "fp16": 2e-3, "lstm_int4": 1e-6, "linear_nvfp4": 0.02}.get(name, 0.0)
    with torch.inference_mode():
        torch.testing.assert_close(outputs(q, x), y, rtol=0, atol=tolerance)
    torch.testing.assert_close(outputs(q, x), y, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_loading_another_state_replaces_the_kernels_weight(scheme, name):
    a, factory, how, x = make(scheme, name)
    b = quantized_module(factory(), how, [(-1.0, 1.0)])
    before = outputs(b, x).clone()
    b.load_state_dict(a.state_dict())
    assert torch.equal(outputs(b, x), outputs(a, x))
    assert not torch.equal(outputs(b, x), before)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("bf16", "fp16")])
def test_casting_a_model_does_not_round_its_scales(scheme, name):
    q, _, _, x = make(scheme, name)
    y = outputs(q, x)
    nn.Sequential(q).half().double().bfloat16()
    assert torch.equal(outputs(q, x), y)


@pytest.mark.parametrize("how", [("int8 channel",), "fp16"], ids=["int8", "fp16"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_cast_of_the_model_is_one_of_what_is_looked_up(scheme, kind, how):
    model = nn.Sequential(kind(8, 16), nn.LayerNorm(16))
    model[0] = quantized_module(model[0], float_op(how) if isinstance(how, str) else scheme(*how))
    assert model.bfloat16()(torch.arange(8).reshape(2, 4)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["linear_static", "conv2d", "conv2d_dynamic"])
def test_off_the_cpu_an_integer_op_says_simulated(scheme, name):
    q, _, _, _ = make(scheme, name)
    assert not q.simulated
    assert q.why_simulated() == ""
    q.to("meta")
    assert "on meta" in q.why_simulated()
    assert (q.kernel, q.input_qparams) == ("simulated", None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [name for name in CASES if name != "gru"])
def test_gpu_gives_what_the_cpu_gives(scheme, name):
    q, _, _, x = make(scheme, name)
    y = outputs(q, x)
    on_gpu = copy.deepcopy(q).cuda()
    # Where no kernel multiplies with the codes, the product of dequantized values may be in bfloat16.
    tolerance = 0.02 if name in ("bf16", "fp16", "linear_nvfp4") else 1e-3
    torch.testing.assert_close(outputs(on_gpu, x.cuda()).cpu(), y, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_module_on_the_gpu_is_quantized_there(scheme):
    module, x = nn.Conv2d(4, 8, 3).cuda(), torch.randn(2, 4, 9, 9)
    q = quantized_module(module, scheme(*STATIC), [(float(x.min()), float(x.max()))])
    assert {t.device.type for t in q.state_dict().values()} == {"cuda"}
    torch.testing.assert_close(q(x.cuda()), module(x.cuda()), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("weight", "bits"),
    [
        ("int8 channel", 8),
        ("int7 channel", 7),
        ("int4 channel", 4),
        ("int3 channel", 3),
        ("int2 channel", 2),
        ("int1 channel", 1),
    ],
)
@pytest.mark.parametrize("module", [nn.Linear(256, 64), nn.Conv2d(32, 64, 3)])
def test_state_shrinks_with_the_bits(scheme, module, weight, bits):
    q = quantized_module(module, scheme(weight))
    stored = sum(t.nbytes for t in q.state_dict().values())
    scales_and_bias = 2 * 4 * 64
    assert stored == module.weight.numel() * bits // 8 + scales_and_bias


def test_no_float_weight_stays_in_memory(scheme):
    q = quantized_module(nn.Linear(256, 64), scheme(*STATIC), [(-1.0, 1.0)])
    q(torch.randn(2, 256))
    assert not list(q.parameters())
    held = [t for t in vars(q).values() if isinstance(t, torch.Tensor)] + list(q.buffers())
    assert sum(t.nbytes for t in held if t.is_floating_point()) <= 4 * (64 + 64 + 1)


def test_stored_tensors_that_do_not_fit_are_named(scheme):
    how, module = scheme(*STATIC), nn.Linear(16, 8)
    state = quantized_module(module, how, [(-1.0, 1.0)]).state_dict()
    with pytest.raises(FormatError, match=r"missing \['weight_scale'\]"):
        quantized_module(module, how, state={k: v for k, v in state.items() if k != "weight_scale"})
    with pytest.raises(FormatError, match=r"missing \['input_scale'\]"):
        quantized_module(module, how, state={k: v for k, v in state.items() if k != "input_scale"})
    with pytest.raises(FormatError, match=r"not known \['extra'\]"):
        quantized_module(module, how, state={**state, "extra": torch.zeros(1)})
    with pytest.raises(FormatError, match="shape"):
        quantized_module(nn.Linear(12, 8), how, state=state)
    with pytest.raises(FormatError, match="shape"):
        quantized_module(module, how, state={**state, "bias": torch.zeros(3)})
    with pytest.raises(FormatError, match=r"'input_scale' has shape \(2,\)"):
        quantized_module(module, how, state={**state, "input_scale": torch.ones(2)})
    with pytest.raises(FormatError, match="do not make a Linear"):
        quantized_module(module, float_op("bf16"), state={"module.weight": torch.zeros(8, 16, dtype=torch.bfloat16)})
    with pytest.raises(FormatError, match="are not bf16"):
        quantized_module(module, float_op("bf16"), state={"module.weight": torch.zeros(8, 16)})


@pytest.mark.parametrize("module", [Add(), MatMul()])
def test_arithmetic_keeps_its_ranges(scheme, module):
    how, a, b = scheme(None, "uint8 asym", "static"), torch.randn(4, 4), torch.randn(4, 4)
    for ranges in ([(-3, 3), (-2, 2)], [(-3, 3), (-2, 2), (-5, 5)]):
        q = quantized_module(module, how, ranges)
        again = quantized_module(type(module)(), how, state=load(save(q.state_dict())))
        assert torch.equal(again(a, b), q(a, b))
        assert again.kernel == q.kernel
