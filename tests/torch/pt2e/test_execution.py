"""Exported graphs quantized: what is quantized and how, by configurations as for other models."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neural_compressor.errors import CalibrationError, ConfigError, NothingToQuantizeError, QuantizationError
from neural_compressor.observers import KLObserver
from neural_compressor.schemes import is_pair_safe
from neural_compressor.torch.algorithms.smooth_quant import TorchSmoothQuant
from neural_compressor.torch.export import export
from neural_compressor.torch.modules.kernels import integer, table
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    convert,
    load,
    prepare,
    quantize,
)

FLOAT = StaticQuantConfig(w_dtype="fp32", act_dtype="fp32")
ALL = StaticQuantConfig()
IMAGES = (4, 3, 8, 8)


def observed_inputs(model):
    """By layer the scale and zero point its input is quantized with, as they stand in the graph."""
    found = {}
    for node in model.graph.nodes:
        if node.target in (torch.ops.aten.linear.default, torch.ops.aten.conv2d.default):
            x = node.args[0]
            name = list(node.meta["nn_module_stack"].values())[-1][0]
            found[name] = x.args[1:3] if "dequantize_per_tensor" in str(x.target) else None
    return found


def quantized(model, config, x, calls=1):
    prepared = prepare(export(model, x), config)
    for _ in range(calls):
        prepared(x)
    return convert(prepared, quiet=True)


def test_the_four_steps(cnn, capsys):
    x = torch.randn(IMAGES)
    exported = export(cnn, x)
    before = exported(x)
    prepared = prepare(exported, quant_config=StaticQuantConfig())
    torch.testing.assert_close(prepared(x), before, rtol=1e-4, atol=1e-4)  # observers change nothing
    q_model = convert(prepared)
    assert "2 Conv2d (Inductor int8)" in capsys.readouterr().err
    assert set(q_model.quantization.plan) == {("stem", "Conv2d"), ("body", "Conv2d"), ("head", "Linear")}
    error = (q_model(x) - before).abs().max()
    assert 0 < error < 0.05 * before.abs().max()
    assert torch.equal(exported(x), before)  # the float graph is still there


def test_a_layer_by_hand():
    torch.manual_seed(1)
    fc, x = nn.Linear(6, 3), torch.randn(5, 6)
    q_model = quantized(nn.Sequential(fc), StaticQuantConfig(act_algo="minmax"), x)
    w, b, data = (t.detach().double().numpy() for t in (fc.weight, fc.bias, x))
    w_scale = np.abs(w).max(1) / 127
    codes = np.round(w / w_scale[:, None])
    scale = (data.max() - data.min()) / 255
    zero = np.round(-data.min() / scale)
    rounded = np.clip(np.round(data / scale) + zero, 0, 255) - zero
    shift = (w - codes * w_scale[:, None]) @ data.mean(0)  # what rounding takes from the mean output
    expected = (rounded @ codes.T) * scale * w_scale + b + shift
    np.testing.assert_allclose(q_model(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    state = q_model.state_dict()
    if not q_model.quantization.plan["0", "Linear"].weight.pair_safe:
        np.testing.assert_array_equal(state["0.weight_codes"].numpy(), codes)


@pytest.mark.parametrize(("groups", "bias"), [(1, True), (4, False), (2, True)])
def test_biases_take_up_the_mean_error_of_convolutions(groups, bias):
    """Without padding the mean output is that of the float weights, but for rounded inputs."""
    torch.manual_seed(groups)
    conv, x = nn.Conv2d(4, 8, 3, groups=groups, bias=bias), torch.rand(64, 4, 3, 3) + 3
    q_model = quantized(nn.Sequential(conv), StaticQuantConfig(), x)
    state = q_model.state_dict()
    rounded = state["0.weight_codes"] * state["0.weight_scale"].reshape(-1, 1, 1, 1)
    plain = F.conv2d(x, rounded, conv.bias, groups=groups).mean((0, 2, 3))
    wanted, found = conv(x).mean((0, 2, 3)), q_model(x).mean((0, 2, 3))
    assert (found - wanted).abs().max() < 0.2 * (plain - wanted).abs().max()


def test_dead_float_weights_are_gone():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    q_model = quantized(model, StaticQuantConfig(), torch.randn(2, 64))
    size = sum(t.numel() * t.element_size() for t in q_model.state_dict().values())
    assert size < 0.4 * sum(p.numel() * p.element_size() for p in model.parameters())
    assert not any(t.dtype == torch.float32 and t.dim() > 1 for t in q_model.state_dict().values())


@pytest.mark.parametrize("config", [StaticQuantConfig(), DynamicQuantConfig()])
def test_products_and_masks_have_no_observers(llama, config):
    """Observed are inputs of layers: four in each of two blocks (one for q, k and v together), and that of the head."""
    ids = torch.randint(0, 64, (1, 6))
    prepared = prepare(export(llama, ids), config)
    observers = [node for node in prepared.graph.nodes if str(node.target).startswith("activation_post_process")]
    assert len({node.args[0].name for node in observers if node.args[0].op != "get_attr"}) == 9
    prepared(ids)
    q_model = convert(prepared, quiet=True)
    assert len(q_model.quantization.plan) == 15
    torch.testing.assert_close(q_model(ids).logits, llama(ids).logits, rtol=0, atol=0.05)


def test_a_tied_embedding_keeps_its_floats(llama):
    q_model = quantized(llama, DynamicQuantConfig(), torch.randint(0, 64, (1, 6)))
    tables = [t for t in q_model.state_dict().values() if t.shape == (64, 32) and t.is_floating_point()]
    assert len(tables) == 1
    assert torch.equal(tables[0], llama.model.embed_tokens.weight)
    assert ("lm_head", "Linear") in q_model.quantization.plan


def test_set_local_by_name_pattern_and_type(cnn):
    x = torch.randn(IMAGES)
    by_name = quantized(cnn, StaticQuantConfig().set_local("body", FLOAT), x)
    assert {name for name, _ in by_name.quantization.plan} == {"stem", "head"}
    assert by_name.quantization.reasons["body", "Conv2d"] == "its configuration leaves it in float"
    by_pattern = quantized(cnn, StaticQuantConfig().set_local("st.*|he.*", FLOAT), x)
    assert {name for name, _ in by_pattern.quantization.plan} == {"body"}
    by_type = quantized(cnn, StaticQuantConfig().set_local(nn.Conv2d, FLOAT), x)
    assert {name for name, _ in by_type.quantization.plan} == {"head"}
    assert observed_inputs(by_type)["stem"] is None


def test_a_name_that_matches_nothing(cnn):
    with pytest.raises(ConfigError, match=r"boody.*body"):
        prepare(export(cnn, torch.randn(IMAGES)), StaticQuantConfig().set_local("boody", FLOAT))


def test_ops_that_read_one_tensor_can_differ_in_the_algorithm():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x) + self.b(x) * 2 + self.c(x) * 3

    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    x[0, 0] = 60
    config = StaticQuantConfig(act_algo="minmax").set_local("b", StaticQuantConfig(act_algo="kl"))
    q_model = quantized(Two(), config, x)
    scales = {name: qparams[0] for name, qparams in observed_inputs(q_model).items()}
    assert scales["a"] == scales["c"] == pytest.approx(float(x.max() - x.min()) / 255)
    observer = KLObserver()
    observer.update(x)
    low, high = observer.range(q_model.quantization.plan["b", "Linear"].activation)
    assert scales["b"] == pytest.approx(float(high - low) / 255, rel=1e-5)
    assert scales["b"] < scales["a"]


def test_ranges_make_the_least_squared_error_unless_another_algorithm_is_named():
    """Brute force over shrunk ranges; a value far out is given up for the many near zero."""
    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    x[0, 0] = 30
    model = nn.Sequential(nn.Linear(8, 8))

    def error(scale, zero_point):
        codes = (x / scale).round().add(zero_point).clamp(0, 255)
        return float(((codes - zero_point) * scale - x).square().mean())

    chosen, named = (
        observed_inputs(quantized(model, config, x))["0"]
        for config in (StaticQuantConfig(), StaticQuantConfig(act_algo="minmax"))
    )
    assert named[0] == pytest.approx(float(x.max() - x.min()) / 255)
    least = float("inf")
    for low in torch.linspace(0.2, 1, 17) * x.min():
        for high in torch.linspace(0.05, 1, 39) * x.max():
            scale = float(high - low) / 255
            least = min(least, error(scale, round(float(-low) / scale)))
    assert error(*chosen) < 1.05 * least
    assert error(*chosen) < error(*named)


def test_signed_activations_are_stored_128_higher():
    torch.manual_seed(0)
    x = torch.randn(16, 8)
    q_model = quantized(
        nn.Sequential(nn.Linear(8, 8)), StaticQuantConfig(act_dtype="int8", act_sym=True, act_algo="minmax"), x
    )
    scale, zero_point = observed_inputs(q_model)["0"]
    assert zero_point == 128
    assert scale == pytest.approx(float(x.abs().max()) / 127)


def test_one_scale_for_a_weight():
    model = nn.Sequential(nn.Linear(8, 8))
    q_model = quantized(model, StaticQuantConfig(w_granularity="per_tensor"), torch.randn(2, 8))
    scales = q_model.state_dict()["0.weight_scale"]
    assert scales.shape == (8,)
    assert len(scales.unique()) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (StaticQuantConfig(w_dtype="int4"), "weight dtype 'int4'"),
        (StaticQuantConfig(w_sym=False), "weight scheme 'asym'"),
        (StaticQuantConfig(w_algo="kl"), "weight algorithm 'kl'"),
        (StaticQuantConfig(act_granularity="per_channel"), "activation granularity 'per_channel'"),
        (StaticQuantConfig(act_dtype="uint4"), "activation dtype 'uint4'"),
        (DynamicQuantConfig(act_dtype="int8"), "activation dtype 'int8'"),
        (DynamicQuantConfig(act_sym=True), "activation scheme 'sym'"),
        (StaticQuantConfig(excluded_precisions=["int8"]), "excluded_precisions 'int8'"),
        (RTNConfig(), "weights are not quantized alone"),
        (StaticQuantConfig(w_dtype="fp32"), "not 'static' with a float weight; an op in float has both in fp32"),
        (DynamicQuantConfig().set_local("0", DynamicQuantConfig(w_dtype="fp32")), "'0'.* with a float weight"),
    ],
)
def test_what_is_not_run_is_refused_by_name(mlp, config, message):
    with pytest.raises(ConfigError, match=message):
        prepare(export(mlp, torch.randn(2, 16)), config)


def test_a_module_called_twice_and_functions_are_layers():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return F.linear(self.fc(torch.relu(self.fc(x))), self.weight) + 1.0

    x = torch.randn(4, 8)
    model = Odd()
    q_model = quantized(model, StaticQuantConfig(), x)
    assert set(q_model.quantization.plan) == {("fc", "Linear"), ("linear", "Linear")}
    torch.testing.assert_close(q_model(x), model(x), rtol=0, atol=0.2)
    codes = [name for name in q_model.state_dict() if name.startswith("fc.weight_codes")]
    assert len(codes) == 2  # one for each call: Inductor lowers no weight that two layers read


class Pooled(nn.Module):
    """A layer, pooling, and another one."""

    def __init__(self, size):
        super().__init__()
        self.conv, self.last, self.size = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), size

    def forward(self, x):
        return self.last(F.adaptive_avg_pool2d(torch.relu(self.conv(x)), self.size))


@pytest.mark.parametrize(("size", "rule", "in_int8"), [(2, None, True), (2, "last", False), (1, None, False)])
def test_pooling_between_layers_is_quantized(size, rule, in_int8):
    """Int8 is handed on to layers that take it, and nowhere else; a mean has a range of its own."""
    torch.manual_seed(0)
    model, x = Pooled(size), torch.randn(8, 3, 10, 10)
    config = ALL if rule is None else StaticQuantConfig().set_local(rule, FLOAT)
    q_model = quantized(model, config, x)
    pool = next(node for node in q_model.graph.nodes if "adaptive_avg_pool2d" in str(node.target))
    assert ("quantize" in str(pool.args[0].target)) == in_int8
    assert any("quantize" in str(user.target) for user in pool.users) == (rule is None)
    if not in_int8:
        expected = model(x)
        assert (q_model(x) - expected).norm() < 0.01 * expected.norm()


def test_what_stays_in_float_is_listed():
    class Rest(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.fc, self.even = (
                nn.ConvTranspose2d(2, 2, 2),
                nn.Linear(4, 4),
                nn.Conv2d(2, 2, 2, padding="same"),
            )

        def forward(self, x):
            x = self.even(self.up(x))[..., :4]
            return self.fc(x) @ x.transpose(-1, -2)

    q_model = quantized(Rest(), StaticQuantConfig(), torch.randn(2, 2, 4, 4))
    assert set(q_model.quantization.plan) == {("fc", "Linear")}
    reasons = q_model.quantization.reasons
    assert "transposed" not in reasons["up", "ConvTranspose2d"]
    assert "no int8 form" in reasons["up", "ConvTranspose2d"]
    assert "one side" in reasons["even", "Conv2d"]
    assert "two activations" in reasons["matmul", "matmul"]


def test_products_that_stay_in_float_are_listed():
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.weight = nn.Linear(4, 4), nn.Parameter(torch.eye(4))

        def forward(self, x):
            x = self.fc(x)
            x = torch.baddbmm(x, x, x)
            x = torch.einsum("bij,bjk->bik", x, x)
            x = torch.addmm(x[0], x[0], x[1])
            return self.weight.t() @ x

    q_model = quantized(Products(), StaticQuantConfig(), torch.randn(2, 4, 4))
    reasons = q_model.quantization.reasons
    for name in ("baddbmm", "einsum", "addmm"):
        assert "two activations" in reasons[name, name]
    assert "with a weight" in reasons["matmul", "matmul"]
    assert set(q_model.quantization.plan) == {("fc", "Linear")}


def test_nothing_foreign_is_warned_of(cnn, recwarn):
    quantized(cnn, StaticQuantConfig(), torch.randn(2, 3, 8, 8))
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("step", ["exported", "prepared", "copied", "quantized"])
def test_graphs_keep_their_data_types(mlp, step):
    graph = export(mlp, torch.randn(4, 16))
    if step != "exported":
        graph = prepare(graph, DynamicQuantConfig())
    if step == "copied":
        graph = copy.deepcopy(graph)
    if step == "quantized":
        graph = convert(graph, quiet=True)
    with pytest.raises(ConfigError, match=r"torch.float32, as the model was exported, .* to torch.bfloat16"):
        graph.to(torch.bfloat16)
    with pytest.raises(ConfigError, match="export it again"):
        nn.Sequential(graph).half()
    assert graph.to("cpu", torch.float32) is graph.float() is graph
    assert graph(torch.randn(4, 16)).dtype == next(mlp.parameters()).dtype == torch.float32


def test_bf16_models(mlp):
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    model = mlp.bfloat16()
    q_model = quantized(model, StaticQuantConfig(), x)
    assert q_model(x).dtype == torch.bfloat16
    torch.testing.assert_close(q_model(x).float(), model(x).float(), rtol=0, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_layers_of_what_inductor_does_not_quantize_stay_in_float(mlp, dtype):
    x = torch.randn(4, 16, dtype=dtype)
    with pytest.raises(NothingToQuantizeError, match=rf"\(Linear\): its input is {dtype}; Inductor quantizes"):
        prepare(export(mlp.to(dtype), x), StaticQuantConfig())


def test_weights_are_safe_where_pairs_are_added_in_16_bits(monkeypatch):
    """As on a CPU without VNNI: no kernel is exact on all codes, those that are safe in pairs are fine."""
    kernels = [
        replace(k, exact=lambda op, largest, codes: codes != "all") if isinstance(k, integer.IntegerKernel) else k
        for k in table.KERNELS
    ]
    monkeypatch.setattr(table, "KERNELS", kernels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    q_model = quantized(model, StaticQuantConfig(), torch.randn(2, 4, 8, 8))
    for name, kind in (("0", "Conv2d"), ("3", "Linear")):
        assert q_model.quantization.plan[name, kind].weight.pair_safe
        codes = q_model.state_dict()[f"{name}.weight_codes"]
        assert is_pair_safe(codes.flatten(1), integer.kernel_pairs(kind, codes.shape))


class TestBadInput:
    def test_convert_before_calibration(self, mlp):
        with pytest.raises(CalibrationError, match="3 static ops need calibration"):
            convert(prepare(export(mlp, torch.randn(2, 16)), StaticQuantConfig()))

    def test_empty_calibration(self, mlp):
        prepared = prepare(export(mlp, torch.randn(2, 16)), StaticQuantConfig())
        prepared(torch.empty(0, 16))
        with pytest.raises(CalibrationError, match="calibration never reached op '0'"):
            convert(prepared)

    def test_convert_of_the_exported_model(self, mlp):
        exported = export(mlp, torch.randn(2, 16))
        prepare(exported, StaticQuantConfig())
        with pytest.raises(ConfigError, match="the model that prepare returned"):
            convert(exported)

    def test_double_prepare(self, mlp):
        prepared = prepare(export(mlp, torch.randn(2, 16)), StaticQuantConfig())
        with pytest.raises(ConfigError, match="prepared already"):
            prepare(prepared, StaticQuantConfig())

    def test_prepare_of_a_quantized_model(self, mlp):
        with pytest.raises(ConfigError, match="quantized already"):
            prepare(quantized(mlp, StaticQuantConfig(), torch.randn(2, 16)), StaticQuantConfig())

    def test_nan_in_the_data(self, mlp):
        prepared = prepare(export(mlp, torch.randn(2, 16)), StaticQuantConfig())
        with pytest.raises(CalibrationError, match="input 'input' holds NaN"):
            prepared(torch.full((2, 16), float("nan")))

    def test_nan_inside_names_the_layer(self):
        class Log(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                return self.second(torch.log(self.first(x) * 0 - 1))

        prepared = prepare(export(Log(), torch.randn(2, 4)), StaticQuantConfig())
        with pytest.raises(CalibrationError, match=r"op 'second' \(Linear\): NaN or Inf"):
            prepared(torch.randn(2, 4))

    def test_nan_in_a_weight(self, mlp):
        exported = export(mlp, torch.randn(2, 16))
        with torch.no_grad():
            mlp[2].weight[0, 0] = float("inf")
        with pytest.raises(QuantizationError, match=r"'2.weight' of shape .* holds NaN or Inf"):
            prepare(exported, StaticQuantConfig())

    def test_a_graph_of_torch_export(self, mlp):
        graph = torch.export.export(mlp, (torch.randn(2, 16),)).module()
        with pytest.raises(ConfigError, match=r"does not come from neural_compressor\.torch\.export"):
            prepare(graph, StaticQuantConfig())

    def test_a_graph_of_modules_is_a_model_like_others(self, mlp):
        traced = torch.fx.symbolic_trace(mlp)
        prepared = prepare(traced, StaticQuantConfig())
        prepared(torch.randn(2, 16))
        assert convert(prepared, quiet=True)(torch.randn(2, 16)).shape == (2, 4)

    def test_nothing_to_quantize(self):
        with pytest.raises(ConfigError, match="no layer that could be quantized"):
            prepare(export(nn.ReLU(), torch.randn(2, 4)), StaticQuantConfig())


def test_dynamic_needs_no_data(mlp):
    x = torch.randn(3, 16)
    q_model = convert(export(mlp, x), DynamicQuantConfig(), quiet=True)
    torch.testing.assert_close(q_model(x), mlp(x), rtol=0, atol=0.05)


def test_quantize_and_converting_twice_from_one_calibration(mlp):
    x = torch.randn(8, 16)
    exported = export(mlp, x)
    q_model = quantize(exported, StaticQuantConfig(), run_fn=lambda model: model(x), quiet=True)
    again = quantize(exported, StaticQuantConfig(), run_fn=lambda model: model(x), quiet=True)
    assert torch.equal(q_model(x), again(x))


def test_gradients_are_off_by_themselves(mlp):
    """With gradients on, Inductor would use no int8 kernel, and say nothing."""
    x = torch.randn(2, 16)
    assert not quantized(mlp, StaticQuantConfig(), x)(x).requires_grad


def test_the_parameters_of_the_eager_model_keep_their_gradients(cnn):
    x = torch.randn(IMAGES)
    config = StaticQuantConfig().set_local("body", FLOAT)
    q_model = quantized(cnn, config, x)
    assert all(parameter.requires_grad for parameter in cnn.parameters())
    assert not any(parameter.requires_grad for parameter in q_model.parameters())
    assert q_model.get_parameter("body.weight").data_ptr() == cnn.body.weight.data_ptr()


def test_inplace_false_is_a_graph_over_weights_of_its_own(cnn):
    x = torch.randn(IMAGES)
    exported = export(cnn, x)
    prepared = prepare(exported, StaticQuantConfig().set_local("body", FLOAT), inplace=False)
    before = prepared(x)
    with torch.no_grad():
        cnn.body.weight.zero_()
    assert torch.equal(prepared(x), before)
    assert not torch.equal(exported(x), before)


def test_with_inplace_false_the_prepared_graph_can_be_converted_again(mlp):
    x = torch.randn(8, 16)
    prepared = prepare(export(mlp, x), StaticQuantConfig())
    prepared(x)
    first = convert(prepared, inplace=False, quiet=True)
    assert torch.equal(first(x), convert(prepared, quiet=True)(x))
    with pytest.raises(ConfigError, match="not prepared"):
        convert(prepared)


def test_example_inputs_are_refused(mlp):
    x = torch.randn(8, 16)
    with pytest.raises(ConfigError, match="leave out example_inputs"):
        prepare(export(mlp, x), StaticQuantConfig(), example_inputs=x)


def test_a_mean_error_that_is_chance_is_left():
    """Calls whose means are opposite: nothing is shifted in the mean, and a bias would err in both."""
    torch.manual_seed(0)
    fc, x = nn.Linear(6, 3), torch.rand(4, 6) + 1
    prepared = prepare(export(nn.Sequential(fc), x), StaticQuantConfig())
    for sign in (1, -1, 0.999, -1):
        prepared(sign * x)
    q_model = convert(prepared, quiet=True)
    assert [str(step) for step in q_model.quantization.plan.passes] == ["correct_biases()"]
    assert torch.equal(q_model.get_parameter("0.bias"), fc.bias)


def test_data_that_was_forgotten_can_run_after_convert_has_said_so(mlp):
    x = torch.randn(8, 16)
    prepared = prepare(export(mlp, x), StaticQuantConfig())
    with pytest.raises(CalibrationError, match="run the model that prepare returned on data"):
        convert(prepared)
    prepared(x)
    assert torch.equal(convert(prepared, quiet=True)(x), quantized(mlp, StaticQuantConfig(), x)(x))


def test_deep_copies_are_called_calibrated_and_saved_like_the_model(mlp, tmp_path):
    x = torch.randn(8, 16)
    exported = export(mlp, {"input": x})
    copied = copy.deepcopy(exported)
    assert torch.equal(copied(x), exported(input=x))
    with pytest.raises(ConfigError, match="is 15 in dimension 1"):
        copied(x[:, :15])
    prepared = prepare(copied, StaticQuantConfig(act_algo="minmax").set_local("Linear", StaticQuantConfig()))
    prepared(x)
    wider = copy.deepcopy(prepared)
    wider(10 * x)
    with pytest.raises(ConfigError, match="was prepared with"):
        convert(wider, StaticQuantConfig(act_algo="kl"))
    q_model, other = convert(prepared, quiet=True), convert(wider, quiet=True)
    assert not torch.equal(q_model(x), other(x))
    again = copy.deepcopy(q_model)
    assert torch.equal(again(x), q_model(x))
    assert not again(x).requires_grad
    assert again.quantization.plan == q_model.quantization.plan
    again.save(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model")(x), q_model(x))


@pytest.mark.parametrize("folding", [True, False])
def test_what_was_smoothed_before_export_loses_less(llama, folding):
    for name, parameter in llama.named_parameters():
        if "norm" in name:
            parameter.data[::8] *= 40
    batches = [torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    expected, errors = llama(batches[0], use_cache=False).logits, []
    for smoothed in (False, True):
        if smoothed:
            llama = TorchSmoothQuant(llama, batches).transform(folding=folding)
        prepared = prepare(export(llama, {"input_ids": batches[0]}), StaticQuantConfig().set_local("Linear", ALL))
        for batch in batches:
            prepared(batch)
        errors.append(float((convert(prepared, quiet=True)(batches[0]).logits - expected).detach().norm()))
    assert errors[1] < 0.9 * errors[0]  # folded, layers behind products keep their inputs


class Counting(nn.Module):
    """Counts its calls, and keeps what it saw last, in buffers."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2, 8))

    def forward(self, x):
        self.calls += 1
        y = self.fc(x) + self.calls + self.last[1]
        self.last[0] = y[0]
        self.last[1] = y[-1]
        return y


@pytest.mark.parametrize("config", [StaticQuantConfig(), DynamicQuantConfig(), SmoothQuantConfig()])
def test_buffers_that_a_forward_writes_begin_as_in_the_float_model(config):
    torch.manual_seed(0)
    model, x = Counting().eval(), torch.randn(4, 16)
    exported = export(model, x)
    prepared = prepare(exported, config)
    for _ in range(3):
        prepared(x)
    quantized = convert(prepared, quiet=True)
    assert (model.calls, exported.calls, quantized.calls) == (0, 0, 0)
    for call in (1, 2):
        torch.testing.assert_close(quantized(x), model(x), atol=0.2, rtol=0)
        assert (model.calls, exported.calls, quantized.calls) == (call, 0, call)
    assert not quantized.last.requires_grad


def test_a_buffer_under_two_names_is_one_in_each_graph():
    class TwoNames(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.inner = nn.Linear(16, 8), nn.Module()
            self.register_buffer("calls", torch.zeros(()))
            self.inner.register_buffer("calls", self.calls)

        def forward(self, x):
            self.calls += 1
            self.inner.calls += 1
            return self.fc(x) + self.calls

    model, x = TwoNames().eval(), torch.randn(4, 16)
    exported = export(model, x)
    quantized = quantize(exported, DynamicQuantConfig(), quiet=True)
    exported(x)
    assert (model.calls, exported.calls, quantized.calls) == (0, 2, 0)
    quantized(x)
    assert (model.calls, exported.calls, quantized.calls) == (0, 2, 2)
