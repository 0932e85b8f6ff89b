"""The PyTorch adaptor: from a hand-written tune_cfg to a quantized model."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.strategy.build import build_space
from neural_compressor.torch import functional, inspection
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.modules.kernels import table
from neural_compressor.torch.modules.kernels.integer import INTEGER_KERNELS

INT8 = {  # safe in pairs: real on every x86 CPU
    "weight": {
        "dtype": "int8",
        "scheme": "sym",
        "granularity": "per_channel",
        "algorithm": "minmax",
        "pair_safe": True,
    },
    "activation": {
        "dtype": "uint8",
        "scheme": "asym",
        "granularity": "per_tensor",
        "algorithm": "minmax",
        "quant_mode": "static",
    },
}
PLAIN = {name: value for name, value in INT8["weight"].items() if name != "pair_safe"}
INT4 = {"weight": {**PLAIN, "dtype": "int4"}, "activation": {**INT8["activation"], "dtype": "uint4"}}
FP32 = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
BF16 = {"weight": {"dtype": "bf16"}, "activation": {"dtype": "bf16"}}
KEYS = [("conv1", "Conv2d"), ("conv2", "Conv2d"), ("fc", "Linear")]


def relative_error(actual, expected):
    return float(((actual - expected).norm() / expected.norm()).detach())


def quantized(model, data, **ops):
    adaptor = PyTorchAdaptor({"dataloader": data})
    cfg = {"op": {key: ops.get(key[0], INT8) for key in KEYS}}
    return adaptor, adaptor.quantize(cfg, model, data)


def test_capability_lists_ops_in_the_order_they_run(convnet, images):
    capability = PyTorchAdaptor({"dataloader": images}).query_fw_capability(convnet)
    assert list(capability["opwise"]) == KEYS
    assert {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}} in capability["opwise"][KEYS[0]]
    assert set(capability["optypewise"]) == {"Conv2d", "Linear"}


def test_int8_is_close_smaller_and_real(convnet, images):
    before = copy.deepcopy(convnet.state_dict())
    adaptor, new = quantized(convnet, images)
    x = next(iter(images))[0]
    assert relative_error(new(x), convnet(x)) < 0.03
    assert all(torch.equal(before[k], v) for k, v in convnet.state_dict().items()), "the float model is left untouched"
    assert adaptor.model_size(new) < 0.5 * adaptor.model_size(convnet)
    records = {r.name: r for r in adaptor.summary(new)}
    assert not any(r.simulated for r in records.values())
    assert records["conv1"].weight_sqnr > 30
    assert records["conv1"].output_sqnr > 25
    assert isinstance(new.bn1, nn.Identity)


def saturating(monkeypatch):
    """Let the kernels be those of a CPU that adds pairs of products in 16 bits."""
    found = [replace(k, exact=lambda kind, act, codes: codes != "all") for k in INTEGER_KERNELS[:-1]]
    monkeypatch.setattr(table, "KERNELS", [*found, INTEGER_KERNELS[-1]])


def test_without_vnni_the_capability_asks_for_weights_that_cannot_overflow(convnet, images, monkeypatch):
    def weights(capability):
        static = [c for c in capability["opwise"][KEYS[0]] if c["activation"].get("quant_mode") == "static"]
        return {(c["weight"]["dtype"][0], *c["weight"].get("pair_safe", [])) for c in static}

    with monkeypatch.context() as patched:
        saturating(patched)
        adaptor = PyTorchAdaptor({"dataloader": images})
        capability = adaptor.query_fw_capability(convnet)
        assert ("int8", True) in weights(capability)
        assert not {("int8",), ("int4", True)} & weights(capability)
        plan = build_space(capability, PostTrainingQuantConfig(approach="static")).default_plan()
        assert all(scheme.weight.pair_safe for scheme in plan.ops.values())
        new = adaptor.quantize(plan.to_tune_cfg(), convnet, images)
        records = adaptor.summary(new)
    assert [(r.simulated, r.reason) for r in records] == [(False, "")] * 3
    x = next(iter(images))[0]
    assert relative_error(new(x), convnet(x)) < 0.03


def test_a_plan_that_would_saturate_is_simulated_with_the_reason_and_the_remedy(convnet, images, monkeypatch):
    saturating(monkeypatch)
    full = {**INT8, "weight": PLAIN}
    adaptor, new = quantized(convnet, images, conv1=full, conv2=full, fc=full)
    for record in adaptor.summary(new):
        assert record.simulated
        assert "16 bits" in record.reason
        assert "reduce_range=True" in record.reason


def test_training_sees_the_weights_that_will_be_stored(convnet, images):
    adaptor = PyTorchAdaptor({"dataloader": images})
    session = adaptor.prepare_training({"op": dict.fromkeys(KEYS, INT8)}, convnet)
    session.model(next(iter(images))[0])
    seen = session.model.conv2.weight.detach().clone()
    torch.testing.assert_close(session.finish().conv2.dequantized_weight(), seen)


def test_a_seed_style_int4_config_is_simulated(convnet, images):
    adaptor, new = quantized(convnet, images, conv1=INT4, conv2=INT4)
    records = {r.name: r for r in adaptor.summary(new)}
    conv1 = records["conv1"]
    assert (conv1.precision, conv1.activation, conv1.simulated) == ("int4", "uint4", True)
    assert not records["fc"].simulated
    x = next(iter(images))[0]
    assert relative_error(new(x), convnet(x)) < 0.6


def test_size_follows_the_bits():
    model = nn.Sequential(nn.Linear(256, 256, bias=False)).eval()
    adaptor, x = PyTorchAdaptor(), [(torch.randn(4, 256), torch.zeros(4))]
    sizes = {}
    for bits in (2, 3, 4, 5, 6, 7, 8):
        cfg = {
            "weight": {**PLAIN, "dtype": f"int{bits}"},
            "activation": {**INT8["activation"], "dtype": f"uint{bits}"},
        }
        sizes[bits] = adaptor.model_size(adaptor.quantize({"op": {("0", "Linear"): cfg}}, model, x))
    overhead = 256 * 4 + 16  # scales and activation parameters
    for bits, size in sizes.items():
        assert 256 * 256 * bits / 8 <= size <= 256 * 256 * bits / 8 + overhead


def test_only_dispatched_ops_change(convnet, images):
    _, new = quantized(convnet, images, conv2=FP32)
    assert type(new.conv2) is nn.Conv2d
    assert type(new.fc) is not nn.Linear


def test_framework_configuration(convnet, images):
    adaptor, _ = quantized(convnet, images, fc=BF16)
    assert adaptor.quantize_config["device"] == "CPU"
    assert adaptor.quantize_config["op_wise_config"]["conv1"] == (True, "minmax", True, 8)
    assert "fc" not in adaptor.quantize_config["op_wise_config"]
    assert adaptor.bf16_ops == [("fc", "Linear")]


def test_bf16_ops_are_half_the_size(convnet, images):
    adaptor, new = quantized(convnet, images, conv1=FP32, conv2=FP32, fc=BF16)
    record = next(r for r in adaptor.summary(new) if r.name == "fc")
    assert (record.precision, record.size_bytes) == ("bf16", 2 * (32 * 4 + 4))


def test_calibration_is_not_repeated_for_a_plan_with_fewer_ops(convnet, images):
    class Counting:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(images)

    data = Counting()
    adaptor = PyTorchAdaptor({"dataloader": data})
    adaptor.quantize({"op": dict.fromkeys(KEYS, INT8)}, convnet, data)
    before = data.passes
    adaptor.quantize({"op": {KEYS[0]: INT8, KEYS[1]: FP32}}, convnet, data)
    assert data.passes == before


def test_quantizing_twice_gives_the_same_bytes(convnet, images):
    first, second = quantized(convnet, images)[1], quantized(convnet, images)[1]
    assert first.state_dict().keys() == second.state_dict().keys()
    assert all(torch.equal(t, second.state_dict()[k]) for k, t in first.state_dict().items())


def test_functional_ops_and_an_op_called_several_times():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.add, self.matmul = functional.Add(), functional.MatMul()

        def forward(self, x):
            y = self.add(self.fc(x), self.fc(x * 2))
            return self.matmul(y, y.transpose(-1, -2))

    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(4, 6, 8)
    data = [(x, torch.zeros(4))]
    adaptor = PyTorchAdaptor({"dataloader": data})
    capability = adaptor.query_fw_capability(model)
    assert set(capability["opwise"]) == {("fc", "Linear"), ("add", "Add"), ("matmul", "MatMul")}
    act = {"activation": INT8["activation"]}
    cfg = {"op": {("fc", "Linear"): INT8, ("add", "Add"): act, ("matmul", "MatMul"): act}}
    new = adaptor.quantize(cfg, model, data)
    assert relative_error(new(x), model(x)) < 0.05


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_lstm_and_embedding_dynamic():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm, self.out = nn.Embedding(50, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 5)

        def forward(self, ids):
            return self.out(self.lstm(self.embed(ids))[0])

    torch.manual_seed(0)
    model, ids = Tagger().eval(), torch.randint(0, 50, (3, 7))
    adaptor = PyTorchAdaptor()
    capability = adaptor.query_fw_capability(model)
    cfg = {}
    for key, configs in capability["opwise"].items():
        dynamic = next(c for c in configs if c["activation"].get("quant_mode") == "dynamic")
        cfg[key] = {
            part: {f: v[0] if isinstance(v, list) else v for f, v in fields.items()} for part, fields in dynamic.items()
        }
    new = adaptor.quantize({"op": cfg}, model)
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's float recurrence is wrong on an emulated CPU
        expected = model(ids)
    assert relative_error(new(ids), expected) < 0.05
    assert adaptor.model_size(new) < 0.4 * adaptor.model_size(model)


def test_a_model_that_is_itself_an_op():
    model, x = nn.Linear(8, 4).eval(), torch.randn(4, 8)
    adaptor = PyTorchAdaptor()
    new = adaptor.quantize({"op": {("", "Linear"): INT8}}, model, [x])
    assert relative_error(new(x), model(x)) < 0.05


def test_transformer_layers_do_not_take_the_float_shortcut():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    capability = adaptor.query_fw_capability(layer)
    assert ("linear1", "Linear") in capability["opwise"]
    skipped = {name: reason for (name, _), reason in capability["skipped"].items()}
    assert "subclass" in skipped["self_attn.out_proj"]
    assert "works with directly" in skipped["self_attn.in_proj_weight"]
    new = adaptor.quantize({"op": dict.fromkeys(capability["opwise"], INT8)}, layer, [x])
    calls = []
    new.linear1.register_forward_hook(lambda *args: calls.append(1))
    with torch.no_grad():
        error = relative_error(new(x), layer(x))
    assert calls
    assert 0 < error < 0.05


def test_transformers_of_padded_inputs_take_no_nested_tensors():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = {"src": torch.randn(2, 5, 16), "src_key_padding_mask": torch.arange(5)[None] >= torch.tensor([[5], [3]])}
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    new = adaptor.quantize({"op": dict.fromkeys(adaptor.query_fw_capability(model)["opwise"], INT8)}, model, [x])
    with torch.no_grad():
        kept = ~x["src_key_padding_mask"]  # what stands at padding is nothing to anyone
        assert 0 < relative_error(new(**x)[kept], model(**x)[kept]) < 0.05


def test_shared_modules_stay_shared():
    fc = nn.Linear(8, 8)
    model = nn.Sequential(fc, nn.Tanh(), fc).eval()
    new = PyTorchAdaptor().quantize({"op": {("0", "Linear"): INT8}}, model, [torch.randn(4, 8)])
    assert new[0] is new[2]


@pytest.mark.parametrize("kind", ["weight", "activation", "all"])
def test_inspect_and_set_tensor(convnet, images, kind, tmp_path):
    adaptor = PyTorchAdaptor({"workspace": tmp_path})
    found = adaptor.inspect_tensor(convnet, images, ["fc"], [1, 2], kind, save_to_disk=True)
    if kind != "activation":
        np.testing.assert_array_equal(found["weight"]["fc"]["weight"], convnet.fc.weight.detach())
    if kind != "weight":
        x = next(iter(images))[0]
        assert len(found["activation"]) == 2
        np.testing.assert_allclose(found["activation"][0]["fc"]["output0"], convnet(x).detach(), rtol=1e-5)
    assert (tmp_path / "inspect_saved" / "inspect_result.npz").exists()
    new = adaptor.set_tensor(convnet, {"fc.bias": np.zeros(4)})
    assert not new.fc.bias.any()
    assert convnet.fc.bias.any()


def test_quantized_input(images):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4)).eval()
    adaptor = PyTorchAdaptor({"dataloader": images})
    new = adaptor.quantize({"op": {("0", "Conv2d"): INT8, ("2", "Linear"): INT8}}, model, images)
    new, (scale, zero_point) = adaptor.quantize_input(new)
    x = next(iter(images))[0]
    torch.testing.assert_close(new(torch.quantize_per_tensor(x, scale, zero_point, torch.quint8)), new(x))


def test_training_recovers_what_three_bits_lose():
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x @ torch.randn(8, 3)).argmax(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    data = [(x, y)]
    low = {"weight": {**PLAIN, "dtype": "int3"}, "activation": {**INT8["activation"], "dtype": "uint4"}}
    cfg = {"op": {("0", "Linear"): low, ("2", "Linear"): low}}
    loss = nn.functional.cross_entropy
    adaptor = PyTorchAdaptor({"dataloader": data})
    plain = adaptor.quantize(cfg, model.eval(), data)
    trained = adaptor.train(
        model, data, tune_cfg=cfg, criterion=loss, optimizer=lambda p: torch.optim.Adam(p, 0.01), epochs=200
    )
    assert loss(trained(x), y) < 0.7 * loss(plain(x), y)
    assert trained[0].scheme.precision == "int3"


def test_an_op_called_by_keyword():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x):
            return self.fc(input=x)

    torch.manual_seed(0)
    model, x = Keyword().eval(), torch.randn(16, 8)
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    new = adaptor.quantize({"op": {("fc", "Linear"): INT8}}, model, [x])
    assert relative_error(new(x), model(x)) < 0.05
    assert adaptor.summary(new)[0].output_sqnr > 25


def test_half_precision_models_have_a_summary():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).bfloat16().eval(), torch.randn(16, 8).bfloat16()
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    new = adaptor.quantize({"op": {("0", "Linear"): INT8, ("1", "Linear"): INT8}}, model, [x])
    assert all(record.output_sqnr > 20 for record in adaptor.summary(new))
    assert new(x).dtype == torch.bfloat16


def test_a_module_with_hooks_is_left_alone():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval(), torch.randn(4, 8)
    model[0].register_forward_hook(lambda module, args, output: output * 10)
    capability = PyTorchAdaptor({"dataloader": [x]}).query_fw_capability(model)
    assert "hooks" in capability["skipped"]["0", "Linear"]


def test_ranges_belong_to_the_data_they_were_seen_on(mlp):
    adaptor, x = PyTorchAdaptor(), torch.randn(16, 16)
    cfg = {"op": {("0", "Linear"): INT8}}
    small, large = [x], [50 * x]
    first = adaptor.quantize(cfg, mlp, small)
    second = adaptor.quantize(cfg, mlp, large)
    assert float(second[0].input_scale) > 40 * float(first[0].input_scale)


def test_bad_input(convnet, images):
    adaptor = PyTorchAdaptor()
    with pytest.raises(CalibrationError, match="empty"):
        PyTorchAdaptor({"dataloader": []}).query_fw_capability(convnet)
    with pytest.raises(CalibrationError, match=r"does not fit the model.*\(2, 3\)"):
        PyTorchAdaptor({"dataloader": [torch.randn(2, 3)]}).query_fw_capability(convnet)
    with pytest.raises(ConfigError, match="conv1"):
        adaptor.quantize({"op": {("conv9", "Conv2d"): INT8}}, convnet, images)
    with pytest.raises(ConfigError, match="Conv2d"):
        adaptor.quantize({"op": {("conv1", "Linear"): INT8}}, convnet, images)
    with pytest.raises(CalibrationError, match="input 'x' holds NaN"):
        adaptor.quantize({"op": {("conv1", "Conv2d"): INT8}}, convnet, [torch.full((1, 1, 8, 8), float("nan"))])
    with pytest.raises(CalibrationError, match="'conv1'"):
        adaptor.quantize({"op": {("conv1", "Conv2d"): INT8}}, convnet, [torch.full((1, 1, 8, 8), float("inf"))])
    with pytest.raises(CalibrationError, match="calib_dataloader or calib_func"):
        PyTorchAdaptor().quantize({"op": {("conv1", "Conv2d"): INT8}}, convnet)
    convnet.fc.weight.data[0, 0] = float("inf")
    with pytest.raises(QuantizationError, match=r"fc\.weight"):
        adaptor.query_fw_capability(convnet)


def scaled_model(extra):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x) * 2

        if extra:

            def forward(self, x):
                return self.layer(x) * 2 + 1

    return Scaled()


def test_the_code_of_a_model_is_part_of_what_it_is():
    adaptor = PyTorchAdaptor()
    assert adaptor.fingerprint(scaled_model(False)) == adaptor.fingerprint(scaled_model(False))
    assert adaptor.fingerprint(scaled_model(False)) != adaptor.fingerprint(scaled_model(True))
    patched = scaled_model(False)
    patched.forward = lambda x: x
    assert adaptor.fingerprint(patched) != adaptor.fingerprint(scaled_model(False))


def test_the_outputs_of_the_model_are_compared_with_those_of_the_float_one(convnet, images):
    adaptor, new = quantized(convnet, images)
    x = next(iter(images))[0]
    expected, noise = convnet(x).detach(), (new(x) - convnet(x)).detach()
    by_hand = 10 * torch.log10(expected.square().sum() / noise.square().sum())
    assert adaptor.output_sqnr(new) == pytest.approx(float(by_hand), abs=1e-3)
    assert adaptor.output_sqnr(convnet) is None, "the float model is not compared with itself"
    assert PyTorchAdaptor().output_sqnr(new) is None, "there is nothing to compare with"


def test_comparing_outputs_leaves_the_modes_of_modules_alone(convnet, images):
    adaptor, new = quantized(convnet, images)
    convnet.fc.train()
    modes = [module.training for module in convnet.modules()]
    adaptor.output_sqnr(new)
    assert [module.training for module in convnet.modules()] == modes


def test_time_shares_are_those_of_the_time_that_ops_take(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(inspection, "perf_counter", lambda: now[0])

    class Timed(nn.Linear):
        def __init__(self, seconds):
            super().__init__(8, 8)
            self.seconds = seconds

        def forward(self, x):
            now[0] += self.seconds
            return super().forward(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fast, self.slow = Timed(0.01), Timed(0.05)

        def forward(self, x):
            now[0] += 0.02  # what is no op
            return self.slow(self.fast(self.fast(x)))

    model = Model().eval()
    model.fast.train()
    shares = inspection.time_shares(model, torch.randn(4, 8))
    assert shares == pytest.approx({"fast": 2 / 9, "slow": 5 / 9})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert [m.training for m in model.children()] == [True, False], "modes are as they were"


def test_the_summary_has_the_time_of_ops_where_an_example_is_known(convnet, images):
    adaptor, new = quantized(convnet, images)
    assert all(0 < r.time_share < 1 and 0 < r.float_time_share < 1 for r in adaptor.summary(new))
    assert all(r.time_share is None for r in PyTorchAdaptor().summary(new))


@pytest.fixture
def two_threads():
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


def test_models_are_timed_on_one_thread(convnet, two_threads):
    adaptor = PyTorchAdaptor()
    with adaptor.on_one_thread([convnet]) as alone:
        assert alone
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError, match="out of memory"), adaptor.on_one_thread([convnet]):
        raise RuntimeError("out of memory")
    assert torch.get_num_threads() == 2


def test_the_time_of_a_thread_says_nothing_of_another_device(convnet, two_threads):
    with PyTorchAdaptor().on_one_thread([convnet, nn.Linear(2, 2, device="meta")]) as alone:
        assert not alone
        assert torch.get_num_threads() == 2


def test_settings_of_modules_are_part_of_what_a_model_is():
    torch.manual_seed(0)
    one, other = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, stride=2)
    other.load_state_dict(one.state_dict())
    assert PyTorchAdaptor().fingerprint(one) != PyTorchAdaptor().fingerprint(other)


@pytest.mark.parametrize("asked", [3, 4, 100])
def test_samples_are_counted(convnet, asked):
    batches = [torch.rand(2, 1, 8, 8) for _ in range(3)]
    adaptor = PyTorchAdaptor()
    adaptor.quantize({"op": {("conv1", "Conv2d"): INT8}, "calib_sampling_size": asked}, convnet, batches)
    assert adaptor.samples_seen == {asked: 4 if asked < 5 else 6}


def test_data_that_is_gone_leaves_no_ranges_to_other_data(mlp):
    adaptor = PyTorchAdaptor({"example_inputs": torch.ones(4, 16)})
    cfg = {"op": {("0", "Linear"): INT8}}
    scales = []
    for size in range(1, 9):
        x = torch.linspace(-size, size, 64).reshape(4, 16)
        # the function is gone after the call, and the next one may be where it was
        scales.append(
            adaptor.quantize(cfg, mlp, q_func=lambda model, x=x: model(x)).get_submodule("0").input_qparams[0]
        )
    np.testing.assert_allclose(scales, [2 * size / 255 for size in range(1, 9)], rtol=1e-3)


def test_the_same_data_is_read_once(mlp, make_data):
    data, adaptor = make_data(shape=(16,)), PyTorchAdaptor({"example_inputs": torch.ones(4, 16)})
    runs = []

    def calibrate(model):
        runs.append([model(x) for x, _ in data])

    for _ in range(2):
        adaptor.quantize({"op": {("0", "Linear"): INT8}}, mlp, q_func=calibrate)
    assert len(runs) == 1


def test_a_recipe_comes_beside_the_usual_passes(convnet, images):
    cfg = {"op": dict.fromkeys(KEYS, INT8), "recipe_cfgs": {"smooth_quant": True}}
    model = PyTorchAdaptor({"dataloader": images}).quantize(cfg, convnet, images)
    assert isinstance(model.bn1, nn.Identity)
    assert [step.name for step in model.quantization.plan.passes] == ["fold", "smooth", "correct_biases"]
    cfg["recipe_cfgs"] = {"weight_correction": True, "fast_bias_correction": False}
    model = PyTorchAdaptor({"dataloader": images}).quantize(cfg, convnet, images)
    assert [step.name for step in model.quantization.plan.passes] == ["fold", "correct_weights"]
    # another capability's passes, all of which a recipe takes away, do not come back as the usual ones
    cfg = {**cfg, "passes": [{"name": "correct_biases"}], "recipe_cfgs": {"fast_bias_correction": False}}
    model = PyTorchAdaptor({"dataloader": images}).quantize(cfg, convnet, images)
    assert model.quantization.plan.passes == ()


def test_one_adaptor_tells_models_apart_that_fold_alike():
    adaptor = PyTorchAdaptor({"dataloader": [torch.randn(2, 4)]})
    first, second = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
    assert set(adaptor.query_fw_capability(first.eval())["opwise"]) == {("0", "Linear")}
    assert set(adaptor.query_fw_capability(second.eval())["opwise"]) == {("1", "Linear")}
