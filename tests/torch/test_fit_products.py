"""Products that forwards compute by functions, through ``quantization.fit``: ops where a rule speaks of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neural_compressor import PostTrainingQuantConfig, mix_precision, quantization
from neural_compressor.config import (
    AccuracyCriterion,
    MixedPrecisionConfig,
    QuantizationAwareTrainingConfig,
    TuningCriterion,
)
from neural_compressor.errors import CapabilityError, ConfigError
from neural_compressor.schemes import float_op
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.modules import QuantMatMul
from neural_compressor.torch.quantization import (
    FP8Config,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    convert,
    prepare,
)
from neural_compressor.training import prepare_compression

UINT8 = {"activation": {"dtype": ["uint8"]}}
FP32 = {"activation": {"dtype": "fp32"}}
FP8 = {"weight": {"dtype": ["fp8_e4m3"]}, "activation": {"dtype": ["fp8_e4m3"]}}
OF_ATTENTION = ("scaled_dot_product_attention.qk", "scaled_dot_product_attention.av")


class Attention(nn.Module):
    """Two products, then those inside attention, then a layer."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        mixed = (self.query(x) @ self.key(x).mT).softmax(-1) @ x
        return self.out(F.scaled_dot_product_attention(mixed, mixed, x))


NAMES = ["matmul", "matmul_1", *OF_ATTENTION]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Attention().eval()


@pytest.fixture
def loader():
    return [torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def fitted(model, loader, tmp_path, eval_func=None, **conf):
    conf = PostTrainingQuantConfig(**conf)
    return quantization.fit(
        model, conf, calib_dataloader=loader, eval_func=eval_func, workspace=tmp_path / "work", quiet=True
    )


def products_of(model):
    return [name for name, module in model.named_modules() if isinstance(module, QuantMatMul)]


def same_bytes(first, second):
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)


def test_without_a_rule_they_stay_functions_and_the_reason_says_how_to_ask(model, loader, tmp_path):
    adaptor = PyTorchAdaptor({"dataloader": loader})
    assert all(kind == "Linear" for _, kind in adaptor.query_fw_capability(model)["opwise"])
    result = fitted(model, loader, tmp_path)
    assert products_of(result.model) == []
    records = {record.name: record for record in result.result.ops}
    assert "given to quantization.fit" in records["matmul"].reason
    assert "scaled_dot_product_attention.qk" in records["scaled_dot_product_attention"].reason


def test_a_rule_makes_them_ops_in_the_order_in_which_they_run(model, loader):
    info = {"dataloader": loader, "op_type_dict": {"MatMul": UINT8}}
    capability = PyTorchAdaptor(info).query_fw_capability(model)
    assert [name for name, _ in capability["opwise"]] == ["query", "key", *NAMES, "out"]
    assert capability["optypewise"]["MatMul"]
    assert not capability["skipped"]


def test_what_an_adaptor_can_do_does_not_depend_on_the_plan_it_ran_last(model, loader, tmp_path):
    adaptor = PyTorchAdaptor({"dataloader": loader, "op_name_dict": {"matmul": UINT8}})
    before = adaptor.query_fw_capability(model)
    tune_cfg = fitted(model, loader, tmp_path, op_type_dict={"MatMul": UINT8}).q_config
    assert products_of(adaptor.quantize(tune_cfg, model, loader)) == NAMES
    after = adaptor.query_fw_capability(model)
    assert after["opwise"].keys() == before["opwise"].keys()
    assert after["skipped"] == before["skipped"]


RULES = {
    "type": ({"op_type_dict": {"MatMul": UINT8}}, NAMES),
    "one name": ({"op_name_dict": {"matmul_1": UINT8}}, ["matmul_1"]),
    "half of attention": ({"op_name_dict": {OF_ATTENTION[0]: UINT8}}, [OF_ATTENTION[0]]),
    "one back in float": ({"op_type_dict": {"MatMul": UINT8}, "op_name_dict": {"matmul": FP32}}, NAMES[1:]),
    "fp8": ({"op_type_dict": {"MatMul": FP8, "Linear": FP8}}, NAMES),
    "all names": ({"op_name_dict": {".*": UINT8}}, []),
}


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_names_is_quantized_listed_saved_and_loaded(model, loader, tmp_path, name):
    rules, expected = RULES[name]
    result = fitted(model, loader, tmp_path, **rules)
    assert products_of(result.model) == expected
    records = {record.name: record for record in result.result.ops}
    assert all(records[each].simulated for each in expected)
    whole = "scaled_dot_product_attention"
    assert all(each in records or (each.startswith(whole) and whole in records) for each in NAMES), "nothing is silent"
    assert not {"matmul_2", "matmul_3", f"{whole}_1"} & records.keys(), "nothing is listed twice"
    with torch.no_grad():
        out = result.model(loader[0])
        assert not torch.equal(out, model(loader[0]))
        result.save(tmp_path / "saved")
        loaded = quantization.load(tmp_path / "saved", model)
        assert torch.equal(loaded(loader[0]), out)
    assert products_of(loaded) == expected
    assert products_of(model) == []
    again = PyTorchAdaptor({"dataloader": loader}).quantize(result.q_config, model, loader)
    same_bytes(again, result.model)


def test_operands_are_rounded_to_uint8(model, loader, tmp_path):
    product = fitted(model, loader, tmp_path, op_name_dict={"matmul": UINT8}).model.matmul
    given, seen = [torch.randn(4, 6, 8), torch.randn(4, 8, 6)], []
    own = product._float_op
    product._float_op = lambda a, b: seen.extend((a, b)) or own(a, b)
    product(*given)
    for before, after in zip(given, seen, strict=True):
        assert len(after.unique()) <= 256
        assert not torch.equal(before, after)


CONFIGS = {
    "int8": (StaticQuantConfig().set_local("MatMul", StaticQuantConfig()), {"MatMul": UINT8}),
    "fp8": (
        FP8Config(scale_method="maxabs_arbitrary").set_local("MatMul", FP8Config(scale_method="maxabs_arbitrary")),
        None,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_plan_gives_the_same_bytes_through_every_front(model, loader, tmp_path, name):
    config, rules = CONFIGS[name]

    def run(m):
        for batch in loader:
            m(batch)

    prepared = prepare(model, config, inplace=False, example_inputs=loader[0])
    run(prepared)
    converted = convert(prepared, quiet=True)
    tuning = TuningConfig(config_set=config, workspace=tmp_path / "tuning")
    tuned = autotune(model, tuning, lambda m: 1.0, run_fn=run, example_inputs=loader[0], quiet=True)
    plan = converted.quantization.plan
    through_adaptor = PyTorchAdaptor({"dataloader": loader, "passes": ()}).quantize(plan.to_tune_cfg(), model, loader)
    assert products_of(converted) == NAMES
    same_bytes(converted, tuned)
    same_bytes(converted, through_adaptor)
    assert plan == tuned.quantization.plan == through_adaptor.quantization.plan
    assert not any("matmul" in name for name, _ in tuned.quantization.reasons)
    if rules is not None:
        through_fit = fitted(model, loader, tmp_path, op_type_dict=rules)
        assert dict(through_fit.model.quantization.plan.items()) == dict(plan.items())
        same_bytes(converted, through_fit.model)


@pytest.mark.parametrize("strategy", ["basic", "mse", "mse_v2", "hawq_v2", "conservative", "bayesian"])
def test_strategies_move_them(model, loader, tmp_path, strategy):
    options = {"hawq_v2_loss": lambda output, label: (output - label).square().mean()} if strategy == "hawq_v2" else {}
    criterion = TuningCriterion(strategy=strategy, strategy_kwargs=options or None, max_trials=30)
    data = [(batch, torch.zeros(4, 6, 4)) for batch in loader]
    result = fitted(
        model,
        data,
        tmp_path,
        eval_func=lambda m: float(not any(name.endswith("qk") for name in products_of(m))),
        op_type_dict={"MatMul": UINT8},
        tuning_criterion=criterion,
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.01),
    )
    assert OF_ATTENTION[0] not in products_of(result.model)
    assert result.result.met
    records = {record.name: record for record in result.result.ops}
    assert records[OF_ATTENTION[0]].precision != "uint8"


def test_a_killed_run_goes_on(model, loader, tmp_path):
    evaluated = []

    def evaluate(m):
        evaluated.append(m)
        if len(evaluated) == 4:
            raise KeyboardInterrupt
        return float(not hasattr(m, "quantization") or 0 < len(products_of(m)) < 3)

    conf = {"op_type_dict": {"MatMul": UINT8}, "eval_func": evaluate}
    with pytest.raises(KeyboardInterrupt):
        fitted(model, loader, tmp_path, **conf)
    first = fitted(model, loader, tmp_path, **conf)
    # The float model, two trials and the one that was killed; then the float model again and all but those two.
    assert len(evaluated) == 4 + 1 + len(first.result.trials) - 2
    whole = fitted(model, loader, tmp_path / "whole", **conf)
    assert whole.result.met
    same_bytes(first.model, whole.model)
    assert first.q_config == whole.q_config


def test_attention_modules_of_torch(loader, tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.out(self.attention(x, x, x)[0])

    torch.manual_seed(0)
    net = Net().eval()
    result = fitted(net, loader, tmp_path, op_type_dict={"MatMul": UINT8})
    assert products_of(result.model) == ["attention.bmm", "attention.bmm_1"]
    result.save(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(quantization.load(tmp_path / "saved", net)(loader[0]), result.model(loader[0]))


def test_with_a_calibration_function(model, loader, tmp_path):
    conf = PostTrainingQuantConfig(op_type_dict={"MatMul": UINT8})
    result = quantization.fit(
        model, conf, calib_func=lambda m: [m(batch) for batch in loader], workspace=tmp_path, quiet=True
    )
    assert products_of(result.model) == NAMES


def test_dynamic_fp8(model, loader, tmp_path):
    rules = {"op_type_dict": {"MatMul": {"activation": {"dtype": ["fp8_e4m3"]}}}, "approach": "dynamic"}
    with pytest.raises(ConfigError, match=r"'MatMul' matches no op type .* give example_inputs"):
        fitted(model, None, tmp_path, **rules)
    result = fitted(model, None, tmp_path, example_inputs=loader[0], **rules)
    assert products_of(result.model) == NAMES
    assert {result.model.get_submodule(name).scheme.mode for name in NAMES} == {"dynamic"}


def test_rules_that_cannot_be_followed_are_refused(model, loader, tmp_path):
    with pytest.raises(CapabilityError, match="speaks of the weight"):
        fitted(model, loader, tmp_path, op_type_dict={"MatMul": {"weight": {"dtype": ["int8"]}}})
    with pytest.raises(ConfigError, match="'matmul_7'"):
        fitted(model, loader, tmp_path, op_name_dict={"matmul_7": UINT8})
    with pytest.raises(CapabilityError, match="int4"):
        fitted(model, loader, tmp_path, op_type_dict={"MatMul": {"activation": {"dtype": ["int4"]}}})


def test_training_and_mixed_precision_leave_them_in_float(model, loader, tmp_path):
    rules = {"op_type_dict": {"MatMul": {"activation": {"dtype": ["bf16"]}}}}
    with pytest.raises(ConfigError, match="'MatMul' matches no op type"):
        mix_precision.fit(
            model, MixedPrecisionConfig(example_inputs=loader[0], **rules), workspace=tmp_path, quiet=True
        )
    manager = prepare_compression(model, QuantizationAwareTrainingConfig(op_type_dict={"MatMul": UINT8}), loader[0])
    with pytest.raises(ConfigError, match="'MatMul' matches no op type"):
        manager.callbacks.on_train_begin()


def test_ranges_do_not_depend_on_the_plans_tried_before(model, tmp_path):
    data = [torch.randn(2, 300, 8)]  # so long that the fused kernel adds up in another order than products do
    info = {"dataloader": data, "op_type_dict": {"MatMul": UINT8}}
    opened = fitted(model, data, tmp_path, op_type_dict={"MatMul": UINT8}).q_config
    linear = dict(opened["op"]) | {(name, "MatMul"): float_op(has_weight=False).to_dict() for name in NAMES}
    later = PyTorchAdaptor(dict(info))
    later.quantize({**opened, "op": linear}, model, data)
    same_bytes(later.quantize(opened, model, data), PyTorchAdaptor(dict(info)).quantize(opened, model, data))
