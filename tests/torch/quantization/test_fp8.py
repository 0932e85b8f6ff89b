"""FP8 with ``prepare`` and ``convert``: scale methods, lists, runs with statistics in files, and what is refused."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError, FormatError
from neural_compressor.torch import functional
from neural_compressor.torch.modules import QuantConv2d, QuantEmbedding, QuantEmbeddingBag, QuantLinear, QuantMatMul
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    FP8Config,
    RTNConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    convert,
    finalize_calibration,
    load,
    prepare,
    prepare_qat,
    quantize,
    save,
)
from neural_compressor.torch.quantization.config.fp8_scales import SCALE_METHODS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.bag = nn.Embedding(10, 16), nn.EmbeddingBag(10, 16, mode="sum", padding_idx=0)
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.fc, self.product, self.out = nn.Linear(16, 32), functional.MatMul(), nn.Linear(32, 4)

    def forward(self, indices):
        x = self.table(indices) + self.bag(indices).unsqueeze(1)
        x = x + self.conv(x.unsqueeze(1)).sum(1)
        x = self.fc(x)
        return self.out(self.product(self.product(x, x.transpose(-1, -2)).softmax(-1), x))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def data():
    torch.manual_seed(1)
    return [torch.randint(0, 10, (4, 6)) for _ in range(4)]


def calibrated(net, config, data):
    model = prepare(copy.deepcopy(net), config)
    with torch.no_grad():
        for x in data:
            model(x)
    return model


def quantized(net, config, data):
    return convert(calibrated(net, config, data), quiet=True)


def inputs_of(net, name, data):
    seen = []
    handle = net.get_submodule(name).register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    for x in data:
        net(x)
    handle.remove()
    return torch.cat([t.flatten() for t in seen])


def up_to_power(x):
    return 2.0 ** math.ceil(math.log2(x))


@pytest.mark.parametrize(
    ("method", "kind"), [*((m, "E4M3") for m in SCALE_METHODS), ("maxabs_hw", "E5M2"), ("maxabs_pcs_pow2", "E5M2")]
)
@torch.no_grad()
def test_every_scale_method_reaches_every_op(net, data, method, kind):
    model = quantized(net, FP8Config(fp8_config=kind, scale_method=method.upper()), data)
    found = {name: type(module) for name, module in model.named_children()}
    assert found == {
        "table": QuantEmbedding,
        "bag": QuantEmbeddingBag,
        "conv": QuantConv2d,
        "fc": QuantLinear,
        "product": QuantMatMul,
        "out": QuantLinear,
    }
    y, expected = model(data[0]), net(data[0])
    assert (y - expected).norm() / expected.norm() < (0.25 if kind == "E4M3" else 0.5)
    full = 448.0 if kind == "E4M3" else 57344.0
    seen, weight = inputs_of(net, "fc", data).abs().max(), net.fc.weight.abs().max()
    if method.startswith(("maxabs_hw", "maxabs_pow2", "act_maxabs_hw", "act_maxabs_pow2")):
        assert float(model.fc.input_scale) == up_to_power(float(seen) / (full * 0.25))
    if method in ("maxabs_hw", "maxabs_pow2", "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw"):
        assert float(model.fc.weight_scale) == up_to_power(float(weight) / (full * 0.5))
    if "weights_pcs" in method or method == "maxabs_pcs_pow2":
        assert model.fc.weight_scale.shape == (32,)
    if SCALE_METHODS[method].dynamic:
        assert model.fc.input_scale is None
    if method in ("unit_scale", "hw_aligned_single_scale"):
        assert float(model.fc.weight_scale) == float(model.fc.input_scale) == 1.0
    assert model.fc.kernel == "simulated"


def test_a_unit_scale_needs_no_data(net, data):
    model = convert(net, FP8Config(scale_method="unit_scale"), quiet=True)
    assert model(data[0]).isfinite().all()


def test_the_dict_form_speaks_of_nodes_before_layers_before_types(net, data):
    config = FP8Config(
        scale_method={
            "default": "maxabs_pow2",
            "layer_types": {
                "Linear": {"weight": {"granularity": "PCS", "rounding_method": "identity", "backoff": 1.0}}
            },
            "layers": {"ou": {"activation": {"rounding_method": "IDENTITY", "backoff": 0.5}}},
            "nodes": {"fc": {"weight": {"scale_value_type": "OPT", "granularity": "PTS"}}},
        }
    )
    model = quantized(net, config, data)
    seen = float(inputs_of(net, "out", data).abs().max())
    assert float(model.out.input_scale) == pytest.approx(seen / 224, rel=1e-5)
    assert model.fc.weight_scale.shape == ()
    assert model.fc.scheme.weight.scaling.value == "opt"
    assert float(model.conv.input_scale) == up_to_power(float(model.conv.input_scale))
    again = FP8Config.from_dict(config.to_dict())
    assert again.scale_method == config.scale_method
    with pytest.raises(ConfigError, match=r"'fcc' among the nodes matches no op.*'fc'"):
        prepare(net, FP8Config(scale_method={"nodes": {"fcc": "maxabs_hw"}}))


def test_devices_have_scales_of_their_own(net, data):
    model = quantized(net, FP8Config(device_for_scales="GAUDI2"), data)
    assert {float(m.input_scale) for m in (model.fc, model.out, model.conv)} <= {16.0, 1.0, 2.0**-4, 2.0**-8}
    backed = quantized(net, FP8Config(scale_method="maxabs_arbitrary", scale_params={"input_backoff": 1.0}), data)
    seen = float(inputs_of(net, "fc", data).abs().max())
    assert float(backed.fc.input_scale) == pytest.approx(seen / 448, rel=1e-5)


def test_saved_and_loaded_it_is_the_same(net, data, tmp_path):
    model = quantized(net, FP8Config(scale_method="act_maxabs_hw_weights_pcs_opt_pow2"), data)
    save(model, tmp_path / "m")
    again = load(tmp_path / "m", net)
    same(again, model)
    assert again.fc.scheme == model.fc.scheme
    with torch.no_grad():
        torch.testing.assert_close(again(data[0]), model(data[0]), rtol=0, atol=0)


def test_scale_methods_are_a_space_to_tune_over(net, data):
    methods = ["unit_scale", "maxabs_hw"]
    tune = TuningConfig(config_set=FP8Config(scale_method=methods), tolerable_loss=0.5, max_trials=2)
    with torch.no_grad():
        expected = net(data[0])
        best = autotune(
            net,
            tune,
            eval_fn=lambda model: 1 - float((model(data[0]) - expected).norm() / expected.norm()),
            run_fn=lambda model: [model(x) for x in data],
        )
    assert best.fc.scheme.activation.scaling.value in ("unit", "maxabs")


# -- runs ---------------------------------------------------------------------------------------------------------------


def measured(net, data, path, **more):
    model = prepare(copy.deepcopy(net), FP8Config(mode="MEASURE", dump_stats_path=str(path), **more))
    with torch.no_grad():
        for x in data:
            model(x)
    return finalize_calibration(model)


def same(one, other):
    assert one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(one.state_dict()[name], t) for name, t in other.state_dict().items())


@pytest.mark.parametrize("observer", ["maxabs", "maxabs_per_channel", "save"])
def test_two_runs_give_what_one_gives(net, data, tmp_path, observer):
    model = measured(net, data, tmp_path / "m", observer=observer)
    assert type(model.fc) is nn.Linear, "a model that was measured is a float model again"
    config = FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m"), observer=observer)
    two = convert(copy.deepcopy(net), config, quiet=True)
    same(two, quantized(net, FP8Config(), data))
    again = convert(copy.deepcopy(net), config, quiet=True)  # with the scales in the file
    same(again, two)
    config.mode = "LOAD"
    same(convert(copy.deepcopy(net), config, quiet=True), two)
    if observer == "save":
        assert len(list(tmp_path.glob("*fc*.safetensors"))) == len(data)
    if observer == "maxabs_per_channel":
        stored = json.loads((tmp_path / "m_hooks_maxabs_per_channel.json").read_text())
        assert len(stored["ops"]["fc"]["inputs"][0]["high"]) == 16


def test_scales_of_another_method_are_recalculated_and_not_loaded(net, data, tmp_path):
    measured(net, data, tmp_path / "m")
    convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m")), quiet=True)
    other = {"scale_method": "maxabs_arbitrary", "dump_stats_path": str(tmp_path / "m")}
    with pytest.raises(
        FormatError, match=r"has scales of scale_method 'maxabs_hw', and here it is 'maxabs_arbitrary':"
    ):
        convert(copy.deepcopy(net), FP8Config(mode="LOAD", **other), quiet=True)
    two = convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", **other), quiet=True)
    same(two, quantized(net, FP8Config(scale_method="maxabs_arbitrary"), data))


def test_stored_scales_serve_only_where_every_op_has_one(net, data, tmp_path):
    measured(net, data, tmp_path / "m")
    path = {"dump_stats_path": str(tmp_path / "m")}
    convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", blocklist={"names": ["fc"]}, **path), quiet=True)
    with pytest.raises(FormatError, match=r"op 'fc' \(Linear\).*no scales in .*m_hooks_maxabs_scales\.json"):
        convert(copy.deepcopy(net), FP8Config(mode="LOAD", **path))
    model = convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", **path), quiet=True)
    same(model, quantized(net, FP8Config(), data))
    rule = FP8Config(scale_method="maxabs_arbitrary")
    ruled = convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", **path).set_local("fc", rule), quiet=True)
    assert float(ruled.fc.input_scale) != up_to_power(float(ruled.fc.input_scale))


def test_integers_of_a_rule_keep_their_ranges(net, data, tmp_path):
    def config(mode):
        rule = StaticQuantConfig()
        return FP8Config(mode=mode, dump_stats_path=str(tmp_path / "m")).set_local("fc", rule)

    finalize_calibration(calibrated(net, config("MEASURE"), data))
    models = [convert(copy.deepcopy(net), config(mode), quiet=True) for mode in ("QUANTIZE", "QUANTIZE", "LOAD")]
    seen = inputs_of(net, "fc", data)
    assert float(models[0].fc.qparams("input").scale) == pytest.approx(float(seen.max() - seen.min()) / 255, rel=1e-3)
    for model in models[1:]:
        same(model, models[0])


@pytest.mark.parametrize(
    "fields", [{"mode": "MEASURE"}, {"scale_method": "unit_scale"}, {"dynamic_quantization": True}]
)
def test_data_is_run_where_files_ask_for_it(net, data, tmp_path, fields):
    config = FP8Config(**fields, dump_stats_path=str(tmp_path / "m"))
    assert config.needs_calibration
    model = quantize(copy.deepcopy(net), config, run_fn=lambda model: [model(x) for x in data], quiet=True)
    assert type(model.fc) is (nn.Linear if "mode" in fields else QuantLinear)
    assert json.loads((tmp_path / "m_hooks_maxabs.json").read_text())["runs"] == len(data)
    assert not FP8Config(mode="QUANTIZE").needs_calibration
    with pytest.raises(CalibrationError, match="at batch 1"):
        quantize(net, config, run_fn=lambda model: [model(x) for x in (data[0], "no tensor")])


@pytest.mark.parametrize("mode", ["AUTO", "MEASURE"])
def test_a_model_in_training_stays_in_training(net, data, tmp_path, mode):
    config = FP8Config(mode=mode, dump_stats_path=str(tmp_path / "m"))
    model = finalize_calibration(calibrated(net.train(), config, data))
    assert all(module.training for module in model.modules())


def test_ranks_are_merged(net, data, tmp_path):
    for rank in (0, 1):
        measured(net, data[rank::2], tmp_path / "m", local_rank=rank, world_size=2)
    config = FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m"), local_rank=0, world_size=2)
    same(convert(copy.deepcopy(net), config, quiet=True), quantized(net, FP8Config(), data))
    (tmp_path / "m_hooks_maxabs_1_2.json").unlink()
    with pytest.raises(FormatError, match=r"no statistics in .*_1_2\.json.*on rank 1"):
        convert(net, config)
    with pytest.raises(ConfigError, match="global_rank: got 5, expected 0 to 1"):
        FP8Config(global_rank=5, world_size=2)
    with pytest.raises(ConfigError, match="local_rank: got 0 without a world_size"):
        prepare(net, FP8Config(mode="MEASURE", local_rank=0))
    with pytest.raises(ConfigError, match="seperate_measure_files"):
        prepare(net, FP8Config(mode="MEASURE", local_rank=0, world_size=2, seperate_measure_files=False))


@pytest.mark.parametrize("mode", ["MEASURE", "AUTO"])
def test_some_runs_may_be_left_out(net, data, tmp_path, mode):
    data = [data[0], torch.zeros_like(data[0]), data[1]]
    more = {"calibration_sample_interval": 2}
    if mode == "AUTO":
        same(quantized(net, FP8Config(**more), data), quantized(net, FP8Config(), data[::2]))
        return
    measured(net, data, tmp_path / "m", **more)
    found = convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m")), quiet=True)
    same(found, quantized(net, FP8Config(), data[::2]))


def test_what_is_excluded_is_not_measured(net, data, tmp_path):
    measured(net, data, tmp_path / "all", measure_exclude="NONE")
    stored = json.loads((tmp_path / "all_hooks_maxabs.json").read_text())["ops"]["fc"]
    assert stored["params"]["weight"] == pytest.approx(float(net.fc.weight.abs().max()))
    assert len(stored["outputs"]) == 1
    measured(net, data, tmp_path / "no", measure_exclude="PARAMS")
    assert json.loads((tmp_path / "no_hooks_maxabs.json").read_text())["ops"]["fc"]["params"] == {}
    measured(net, data, tmp_path / "none", measure_exclude="INPUT")
    with pytest.raises(FormatError, match="have no statistics"):
        convert(net, FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="measure_exclude: got 'ALL'"):
        FP8Config(measure_exclude="ALL")


def test_auto_leaves_statistics_where_it_is_told_a_place(net, data, tmp_path):
    one = quantized(net, FP8Config(dump_stats_path=str(tmp_path / "m")), data)
    two = convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m")), quiet=True)
    same(one, two)


def test_auto_reads_statistics_where_no_data_can_run(net, data, tmp_path):
    config = FP8Config(dump_stats_path=str(tmp_path / "m"))
    one = quantized(net, config, data)
    same(convert(copy.deepcopy(net), config, quiet=True), one)
    assert config.mode == "AUTO"


def test_shapes_alone_do_not_make_scales(net, data, tmp_path):
    model = calibrated(net, FP8Config(mode="SHAPE", dump_stats_path=str(tmp_path / "m")), data)
    finalize_calibration(model)
    stored = json.loads((tmp_path / "m_hooks_shape.json").read_text())
    assert stored["ops"]["fc"]["inputs"][0] == {"shapes": [[4, 6, 16]], "low": None, "high": None}
    with pytest.raises(FormatError, match="shapes alone"):
        convert(net, FP8Config(mode="QUANTIZE", observer="shape", dump_stats_path=str(tmp_path / "m")))


# -- bad input ----------------------------------------------------------------------------------------------------------


def test_statistics_of_another_model_or_of_half_a_run_are_refused(net, data, tmp_path):
    quantize = FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m"))
    with pytest.raises(FormatError, match=r"no statistics in .*m_hooks_maxabs\.json.*mode='MEASURE'"):
        convert(net, quantize)
    calibrated(net, FP8Config(mode="MEASURE", dump_stats_path=str(tmp_path / "m")), data)
    with pytest.raises(FormatError, match="did not end with finalize_calibration"):
        convert(net, quantize)
    measured(net, data, tmp_path / "m")
    with pytest.raises(FormatError, match="of another model"):
        convert(nn.Sequential(nn.Linear(16, 32)), quantize)
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed.fc.weight.mul_(3)
    with pytest.raises(FormatError, match=r"op 'fc' \(Linear\): the weight that was measured"):
        convert(changed, quantize)
    file = tmp_path / "m_hooks_maxabs.json"
    file.write_text(file.read_text().replace('"runs": 4', '"runs": 5'))
    with pytest.raises(FormatError, match="was changed since it was written"):
        convert(net, quantize)


def test_ops_without_statistics_are_named_or_left_in_float(net, data, tmp_path):
    measured(net, data, tmp_path / "m", blocklist={"names": ["out"]})
    quantize = {"mode": "QUANTIZE", "dump_stats_path": str(tmp_path / "m")}
    with pytest.raises(FormatError, match=r"op 'out' \(Linear\).*ignore_modules_wo_measures"):
        convert(copy.deepcopy(net), FP8Config(**quantize))
    model = convert(net, FP8Config(**quantize, ignore_modules_wo_measures=True), quiet=True)
    assert type(model.out) is nn.Linear
    assert model.quantization.reasons["out", "Linear"]


def test_steps_in_the_wrong_order_are_refused(net, data, tmp_path):
    config = FP8Config(mode="MEASURE", dump_stats_path=str(tmp_path / "m"))
    model = prepare(copy.deepcopy(net), config)
    with pytest.raises(ConfigError, match="prepared already"):
        prepare(model, config)
    with pytest.raises(CalibrationError, match="nothing was measured"):
        finalize_calibration(model)
    with pytest.raises(ConfigError, match="mode is 'MEASURE', which measures"):
        convert(calibrated(net, config, data))
    with pytest.raises(CalibrationError, match="need calibration"):
        convert(prepare(copy.deepcopy(net), FP8Config()))
    with pytest.raises(ConfigError, match="'MEASURE' is a run of its own"):
        prepare(net, config + RTNConfig(white_list=["out"]))


@pytest.mark.parametrize("mode", ["AUTO", "QUANTIZE", "LOAD"])
@pytest.mark.parametrize(
    "other",
    [RTNConfig(white_list=["fc"]), StaticQuantConfig(act_algo="minmax", white_list=["fc"])],
    ids=["rtn", "int8"],
)
def test_statistics_in_files_serve_a_sum_of_configurations(net, data, tmp_path, mode, other):
    files = {"dump_stats_path": str(tmp_path / "m")}
    measured(net, data, tmp_path / "m")
    if mode == "LOAD":
        convert(copy.deepcopy(net), FP8Config(mode="QUANTIZE", **files) + other, quiet=True)
    model = convert(copy.deepcopy(net), other + FP8Config(mode=mode, **files), quiet=True)
    expected = quantized(net, other + FP8Config(), data)
    assert all(torch.equal(model(batch), expected(batch)) for batch in data)


def test_files_are_those_of_one_configuration(net, tmp_path):
    config = FP8Config(mode="QUANTIZE", dump_stats_path=str(tmp_path / "m"))
    with pytest.raises(ConfigError, match=r"one FP8Config alone, and another FP8Config.*set_local"):
        convert(net, config + FP8Config(white_list=["fc"]))
    for kl in (
        config + StaticQuantConfig(act_algo="kl", white_list=["fc"]),
        config.set_local("fc", StaticQuantConfig(act_algo="kl")),
    ):
        with pytest.raises(ConfigError, match=r"StaticQuantConfig\.act_algo: got 'kl'.*leave it out"):
            convert(net, kl)
    attention = AutoRoundConfig(static_attention_dtype="fp8", white_list=["fc"])
    with pytest.raises(ConfigError, match=r"one FP8Config alone, and AutoRoundConfig\.static_attention_dtype"):
        convert(net, config + attention)


@pytest.mark.parametrize("mode", ["AUTO", "MEASURE"])
def test_activations_that_are_not_finite_or_constant_are_named(net, data, tmp_path, mode, caplog):
    config = FP8Config(mode=mode, dump_stats_path=str(tmp_path / "m"), blocklist={"names": ["table", "bag"]})
    broken = copy.deepcopy(net)
    with torch.no_grad():
        broken.table.weight.fill_(0)
        broken.bag.weight.fill_(0)
    finalize_calibration(calibrated(broken, config, data))
    assert "op 'conv'" in caplog.text
    assert "in every sample" in caplog.text
    with torch.no_grad():
        broken.conv.bias.fill_(float("nan"))
    with pytest.raises(Exception, match=r"NaN|op 'fc' \(Linear\): NaN or Inf") as error:
        calibrated(broken, config, data)
    assert "conv" in str(error.value) or "fc" in str(error.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale_method": "maxabs_pcs_pow2", "dynamic_quantization": False}, "dynamic_quantization"),
        ({"scale_method": {"default": {"weight": {"scale_value_type": "SMOOTHQUANT_MAXABS"}}}}, "smooths the model"),
        ({"scale_method": {"defaults": {}}}, "'default'"),
        ({"scale_params": {"backoff": 1}}, "input_backoff"),
        ({"observer": "save"}, "mode='MEASURE'"),
        ({"mode": "NEVER"}, "MEASURE"),
        ({"mod_dict": {"MyLinear": "linear"}}, "mod_dict"),
        ({"calibration_sample_interval": 0}, "whole number"),
        ({"device_for_scales": "gaudi5"}, "gaudi3"),
        ({"kv_cache": True, "hadamard": "folded"}, "kv_cache: got True with hadamard='folded'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields, said):
    with pytest.raises(ConfigError, match=said):
        FP8Config(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hp_dtype": "fp16"}, "hp_dtype: got 'fp16'.*float32"),
        ({"scale_method": {"default": {"activation": {"granularity": "pcs"}}}}, "a scale a channel of an activation"),
        ({"scale_method": {"default": {"activation": {"scale_value_type": "opt"}}}}, "weights alone"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(net, fields, said):
    with pytest.raises(ConfigError, match=said):
        prepare(net, FP8Config(**fields))


def test_a_layer_that_was_given_no_rows_was_not_reached():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            to_one = x[:, 0] > -100
            return self.one(x[to_one]).sum() + self.other(x[~to_one]).sum()

    model = quantized(Routed().eval(), FP8Config(), [torch.randn(4, 8)])
    assert type(model.one) is QuantLinear
    assert model.quantization.reasons == {("other", "Linear"): "calibration never reached it"}
    with pytest.raises(CalibrationError, match="calibration reached none of the ops"):
        quantized(nn.Sequential(nn.Linear(8, 8)), FP8Config(), [torch.zeros(0, 8)])


def test_flags_are_words_in_the_json_files_of_others(tmp_path):
    (tmp_path / "maxabs.json").write_text(
        json.dumps({"mode": "AUTO", "fake_quant": "True", "use_qdq": "False", "dynamic_quantization": "true"})
    )
    config = FP8Config.from_json_file(str(tmp_path / "maxabs.json"))
    assert (config.fake_quant, config.use_qdq, config.dynamic_quantization) == (True, False, True)
    with pytest.raises(ConfigError, match="fake_quant: got 'maybe', expected True or False"):
        FP8Config(fake_quant="maybe")


@pytest.mark.parametrize("method", ["maxabs_hw", {"default": "maxabs_hw"}, {"nodes": {"fc": "maxabs_pow2"}}])
def test_inputs_over_their_own_range_have_no_headroom(method):
    of_inputs = FP8Config(scale_method=method, dynamic_quantization=True).wanted_for("fc", "Linear").activation
    assert of_inputs.scaling.backoff == 1.0
    assert FP8Config(scale_method=method).wanted_for("fc", "Linear").activation.scaling.backoff == 0.25


RUNS = [{"mode": "MEASURE"}, {"kv_cache": True}, {"calibration_sample_interval": 2}, {"dump_stats_path": "m"}]


@pytest.mark.parametrize("fields", RUNS)
def test_runs_are_refused_where_there_is_none(net, fields):
    config, name = FP8Config(**fields), next(iter(fields))
    for outer in (FP8Config(), RTNConfig()):
        with pytest.raises(ConfigError, match=rf"FP8Config\.{name}: got .* in the rule for .*fc.*outer"):
            prepare(net, outer.set_local("fc", config))
    with pytest.raises(ConfigError, match=rf"FP8Config\.{name}: got .*autotune has no runs"):
        autotune(net, TuningConfig(config_set=config), eval_fn=lambda model: 1.0)
    with pytest.raises(ConfigError, match=rf"FP8Config\.{name}: got .*prepare_qat has no runs"):
        prepare_qat(net, config)
    config.white_list = ["out"]
    with pytest.raises(ConfigError, match=rf"FP8Config\.{name}: got .* in one part of a sum"):
        prepare(net, FP8Config(white_list=["fc"]) + config)


def test_configurations_are_read_from_json_files(tmp_path):
    (tmp_path / "c.json").write_text('{"method": "HOOKS", "mode": "MEASURE", "observer": "maxabs_per_channel"}')
    config = FP8Config.from_json_file(tmp_path / "c.json")
    assert (config.measure, config.quantize, config.json_file) == (True, False, str(tmp_path / "c.json"))
    again = FP8Config.from_json_file(FP8Config(fp8_config="E5M2", mode="LOAD").save_temp_json_file())
    assert (again.fp8_config, again.mode, again.measure, again.quantize) == ("E5M2", "LOAD", False, True)
    assert FP8Config.from_json_file(FP8Config().json_file).to_dict() == FP8Config().to_dict()
    assert isinstance(StaticQuantConfig(fp8_config="E4M3"), FP8Config)


def test_what_files_say_beside_the_fields():
    said = {"method": "HOOKS", "quantize_weight": False, "dump_stats_xlsx_path": "s.xlsx", "hp_dtype": "BF16"}
    assert FP8Config.from_dict({**said, "fake_quant": "False", "use_qdq": "True"}) == FP8Config(use_qdq=True)
    with pytest.raises(ConfigError, match="quantize_weight: got True, expected False"):
        FP8Config.from_dict({"quantize_weight": True})


def test_mode_none_leaves_the_model_as_it_is(net, data, tmp_path, caplog):
    expected, config = net(data[0]), FP8Config(mode="none", dump_stats_path=str(tmp_path / "stats"))
    prepared = prepare(net, config)
    assert torch.equal(prepared(data[0]), expected)
    found = convert(prepared)
    assert found is net
    assert torch.equal(found(data[0]), expected)
    assert "FP8Config.mode is 'NONE': the model stays in float" in caplog.text
    assert quantize(net, config, run_fn=lambda m: m(data[0])) is net
    assert not list(tmp_path.iterdir())
    assert type(convert(prepare(net, FP8Config(dynamic_quantization=True))).fc) is not torch.nn.Linear
