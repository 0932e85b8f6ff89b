"""Mixed precision as a user calls it: ops in bf16 or fp16, back to fp32 where the promise asks for it."""

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor import mix_precision
from neural_compressor.config import AccuracyCriterion, MixedPrecisionConfig, PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import CapabilityError, ConfigError


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)).eval()


def precisions(model):
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "scheme"):
            found[name] = module.scheme.precision
        elif isinstance(module, nn.Linear) and ".module" not in name:
            found[name] = "fp32"
    return found


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_without_an_evaluation_everything_that_can_goes_down(model, precision, tmp_path):
    new = mix_precision.fit(model, MixedPrecisionConfig(precisions=precision), workspace=tmp_path, quiet=True)
    assert precisions(new.model) == dict.fromkeys(("0", "2", "4"), precision)
    x = torch.randn(4, 8)
    torch.testing.assert_close(new(x), model(x), atol=0.05, rtol=0.05)
    new.save(tmp_path / "out")
    assert torch.equal(mix_precision.load(tmp_path / "out", model)(x), new(x))


def test_ops_that_cost_accuracy_go_back(model, tmp_path):
    # Accuracy counts the layers in bf16 that must not be: 2 has to go back, and nothing else.
    def evaluate(m):
        return 1.0 - 0.5 * (precisions(m).get("2") != "fp32")

    conf = MixedPrecisionConfig(tuning_criterion=TuningCriterion(objective="accuracy", max_trials=20))
    new = mix_precision.fit(model, conf, eval_func=evaluate, workspace=tmp_path, quiet=True)
    assert new.result.met
    assert precisions(new.model) == {"0": "bf16", "2": "fp32", "4": "bf16"}


@pytest.mark.parametrize(("level", "kept"), [(0, {"fp32"}), (1, {"fp32", "bf16"})])
def test_the_level_says_what_falls_back(model, level, kept, tmp_path):
    conf = MixedPrecisionConfig(quant_level=level, accuracy_criterion=AccuracyCriterion(tolerable_loss=0.01))
    new = mix_precision.fit(
        model, conf, eval_func=lambda m: float(precisions(m)["2"] == "fp32"), workspace=tmp_path, quiet=True
    )
    stages = [trial.stage for trial in new.result.trials]
    assert any(stage == "2 to fp32" for stage in stages) == (level == 1)
    assert set(precisions(new.model).values()) == (kept if level == 1 else {"bf16"})
    assert new.result.met == (level == 1)  # with every type back there is nothing left but the baseline


def test_rules(model, tmp_path):
    keep = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
    conf = MixedPrecisionConfig(
        precisions=["fp16", "bf16"], op_name_dict={"0": keep, "2": {"weight": {"dtype": "bf16"}}}
    )
    new = mix_precision.fit(model, conf, workspace=tmp_path, quiet=True)
    assert precisions(new.model) == {"0": "fp32", "2": "bf16", "4": "fp16"}
    reasons = {record.name: record.reason for record in new.result.ops}
    assert "op_name_dict" in reasons["0"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op_type_dict": {"Linear": {"weight": {"dtype": "int8"}}}}, "names a dtype among"),
        ({"op_type_dict": {"Linear": {"weight": {"scheme": "sym"}}}}, "names a dtype among"),
        ({"op_name_dict": {"0": {"weight": {"dtype": "fp16"}}}}, "it has: 'bf16', 'fp32'"),
        ({"op_type_dict": {"Linaer": {"weight": {"dtype": "fp32"}}}}, "matches no op type"),
        ({"excluded_precisions": ["bf16"]}, "nothing in the model can run in bf16"),
        ({"inputs": ["x"]}, "does not apply inputs"),
        ({"quant_level": 1}, "has no effect without an evaluation"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_first(model, fields, message, tmp_path):
    with pytest.raises((ConfigError, CapabilityError), match=message):
        mix_precision.fit(model, MixedPrecisionConfig(**fields), workspace=tmp_path, quiet=True)


@pytest.mark.parametrize("argument", [{"title": 5}, {"resume": "no"}, {"quiet": 1}], ids=str)
def test_arguments_of_a_run_are_checked(model, argument, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(argument))):
        mix_precision.fit(model, MixedPrecisionConfig(), workspace=tmp_path, **argument)


def test_another_configuration_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match="takes a MixedPrecisionConfig"):
        mix_precision.fit(model, PostTrainingQuantConfig(approach="dynamic"), workspace=tmp_path)


def test_onnx_models(tmp_path):
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(16, 16)).astype("float32")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 16])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 16])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "float.onnx"
    onnx.save(model, path)
    conf = MixedPrecisionConfig(precisions="fp16")
    with pytest.raises(ConfigError, match=r"nothing in the model can run in fp16.*'MatMul'"):  # on the CPU provider
        mix_precision.fit(str(path), conf, workspace=tmp_path / "w", quiet=True)
    conf = MixedPrecisionConfig(precisions="fp16", device="gpu", backend="onnxrt_cuda_ep")
    (record,) = mix_precision.fit(str(path), conf, workspace=tmp_path / "w", quiet=True).result.ops
    assert (record.precision, record.reason) == ("fp16", "the plan has it compute in fp16")
