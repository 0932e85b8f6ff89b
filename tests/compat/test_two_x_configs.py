"""Fields of 2.x configurations as existing programs read and write them."""

import pytest
import torch

from neural_compressor import benchmark, mix_precision, quantization
from neural_compressor.config import (
    AccuracyCriterion,
    BenchmarkConfig,
    MixedPrecisionConfig,
    PostTrainingQuantConfig,
    TuningCriterion,
)
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_TENSOR
from neural_compressor.torch.quantization import RTNConfig, quantize
from neural_compressor.utils import constant


def test_recipes_that_nobody_asked_for():
    conf = PostTrainingQuantConfig(recipes={"layer_wise_quant": True})
    assert conf.recipes["smooth_quant"] is False
    assert conf.recipes["optypes_to_exclude_output_quant"] == []
    assert conf.to_dict()["recipes"] == {"layer_wise_quant": True}
    assert PostTrainingQuantConfig().recipes["smooth_quant"] is False
    assert PostTrainingQuantConfig().recipes == {}
    assert PostTrainingQuantConfig.from_dict(conf.to_dict()) == conf
    with pytest.raises(KeyError, match="smooth_qant"):
        conf.recipes["smooth_qant"]


def test_fields_can_be_assigned():
    conf = PostTrainingQuantConfig()
    conf.recipes = {"smooth_quant": True}
    assert conf.recipes["smooth_quant"] is True
    assert conf.recipes["weight_correction"] is False
    with pytest.raises(ConfigError, match="smooth_qant"):
        conf.recipes = {"smooth_qant": True}


def test_a_loss_by_its_criterion():
    criterion = AccuracyCriterion()
    criterion.absolute = 5
    assert (criterion.criterion, criterion.tolerable_loss, criterion.relative) == ("absolute", 5, None)
    with pytest.raises(ConfigError, match="which is 500% of the float model's metric"):
        criterion.relative = 5
    assert criterion.absolute == 5
    criterion.relative = 0.05
    assert criterion == AccuracyCriterion(tolerable_loss=0.05)


def test_rules_by_the_names_of_their_settings(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    conf = PostTrainingQuantConfig(
        op_name_dict={"0": constant.FP32, "1": {"weight": constant.INT8_SYM_MINMAX_PERTENSOR}}
    )
    made = quantization.fit(model, conf, [torch.randn(4, 8)], workspace=tmp_path, quiet=True)
    assert type(made.model[0]) is torch.nn.Linear
    scheme = made.model[1].scheme.weight
    assert (scheme.dtype.name, scheme.symmetric, scheme.granularity) == ("int8", True, PER_TENSOR)


def test_fields_have_names():
    with pytest.raises(ConfigError, match=r"AccuracyCriterion takes fields by name, as in higher_is_better="):
        AccuracyCriterion(False)


def test_no_workload_is_written():
    assert PostTrainingQuantConfig(ni_workload_name="quantization") == PostTrainingQuantConfig()
    with pytest.raises(ConfigError, match="ni_workload_name"):
        PostTrainingQuantConfig(ni_workload_name="mine")


def test_precision_is_another_word_for_precisions():
    assert MixedPrecisionConfig(precision="fp16") == MixedPrecisionConfig(precisions="fp16")
    with pytest.raises(ConfigError, match="twice"):
        MixedPrecisionConfig(precision="fp16", precisions="bf16")


def test_another_name_of_fp8():
    assert RTNConfig(dtype="fp8_e4m3fn").identity == RTNConfig(dtype="fp8_e4m3").identity


@pytest.mark.parametrize("name", ["fp8_e4m3fnuz", "fp8_e5m2fnuz"])
def test_eight_bit_floats_without_a_negative_zero(name):
    weight = torch.nn.Linear(64, 8)
    made = quantize(torch.nn.Sequential(weight).eval(), RTNConfig(dtype=name, group_size=-1), quiet=True)[0]
    kind = getattr(torch, f"float8_{name.removeprefix('fp8_')}")
    values = weight.weight.detach()
    scale = values.abs().amax(1, keepdim=True) / torch.finfo(kind).max
    expected = (values / scale).to(kind).float() * scale
    torch.testing.assert_close(made.dequantized_weight(), expected)


class WithNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.fc, self.conv = torch.nn.LayerNorm(32), torch.nn.Linear(32, 32), torch.nn.Conv1d(1, 1, 3)

    def forward(self, x):
        return self.conv(self.fc(self.norm(x)).unsqueeze(1))


@pytest.mark.parametrize("algorithm", ["RTN", "GPTQ", "AWQ", "TEQ", "AUTOROUND"])
def test_weight_only_algorithms_for_whatever_can_be(tmp_path, algorithm):
    weight = {"bits": 4, "group_size": 32, "scheme": "sym", "algorithm": algorithm}
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={".*": {"weight": weight}})
    x = torch.randn(16, 32)
    made = quantization.fit(WithNorm().eval(), conf, [(x, 0)], workspace=tmp_path, quiet=True)
    assert made.model.fc.scheme.weight.dtype.name == "int4"
    assert made.model.fc.scheme.method.name == algorithm.lower()
    left = {record.name: record.reason for record in made.adaptor.summary(made.model) if record.name != "fc"}
    assert left
    assert all(left.values())


@pytest.mark.parametrize("strategy", ["mse", "mse_v2", "hawq_v2", "bayesian", "tpe"])
def test_strategies(tmp_path, strategy):
    options = {"hawq_v2_loss": torch.nn.functional.cross_entropy} if strategy == "hawq_v2" else {}
    tuning = TuningCriterion(strategy=strategy, max_trials=2, strategy_kwargs=options)
    conf = PostTrainingQuantConfig(quant_level=1, tuning_criterion=tuning)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    data = [(torch.randn(8, 8), torch.zeros(8, dtype=torch.long))]
    made = quantization.fit(model, conf, data, eval_func=lambda model: 1.0, workspace=tmp_path, quiet=True)
    assert made.result.trials


def test_a_strategy_that_is_a_service():
    with pytest.raises(ConfigError, match=r"'sigopt', a service.*'tpe' or 'bayesian'"):
        TuningCriterion(strategy="sigopt")


def test_a_configuration_goes_by_two_names():
    found = mix_precision.fit(
        torch.nn.Sequential(torch.nn.Linear(8, 8)).eval(), config=MixedPrecisionConfig(), quiet=True
    )
    assert type(found.model[0]).__name__ == "HalfModule"
    with pytest.raises(ConfigError, match="twice"):
        mix_precision.fit(found.model, MixedPrecisionConfig(), config=MixedPrecisionConfig())
    with pytest.raises(ConfigError, match="twice"):
        benchmark.fit(found.model, BenchmarkConfig(), conf=BenchmarkConfig())
    with pytest.raises(ConfigError, match="NoneType"):
        mix_precision.fit(found.model)
