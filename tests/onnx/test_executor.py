"""One executor under every front: the same plan gives the same bytes, and what is not run is refused by name."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from neural_compressor import quantization
from neural_compressor.algorithms import ALGORITHMS, LayerResult, register_algorithm, rtn
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.composition import register_config
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.executor import PASSES, Executor
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.quantization import (
    DynamicQuantConfig,
    GPTQConfig,
    RTNConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    quantize,
)
from neural_compressor.onnx.quantization.config import WeightOnlyConfig
from neural_compressor.onnx.quantization.matmul_nbits_quantizer import (
    GPTQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)
from neural_compressor.onnx.quantization.resolution import resolve
from neural_compressor.onnx.quantization.source_model import read_float_model
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader
from neural_compressor.onnx.runtime.op_race import racing
from neural_compressor.schemes import Method, OpScheme, Pass, PerGroup, Plan, TensorScheme

MATRIX = ("fc1", "MatMul")
INT4 = TensorScheme(dtype("int4"), granularity=PerGroup(32))


class Reader(CalibrationDataReader):
    def __init__(self, batches):
        self.batches = batches
        self.rewind()

    def get_next(self):
        return next(self.rest, None)

    def rewind(self):
        self.rest = iter([{"x": batch} for batch in self.batches])


@pytest.fixture(scope="module")
def batches():
    return [np.abs(np.random.default_rng(i).standard_normal((4, 3, 8, 8))).astype(np.float32) + 1 for i in range(8)]


@pytest.fixture(scope="module")
def model(build):
    """Convolutions whose rounding shifts means, and two matrix products."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"k": draw((8, 3, 3, 3)) / 5 + 0.02, "b": draw(8), "p": draw((16, 8, 1, 1))}
    weights |= {"w": draw((1024, 64)) / 32, "v": draw((64, 64)) / 8}
    weights["k"][0, 0, 0, 0] = 5.0
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "p"], ["q"], "point"),
        helper.make_node("Flatten", ["q"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "w"], ["h"], "fc1"),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "v"], ["y"], "fc2"),
    ]
    return build(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 64]}, weights)


def contents(model):
    """Everything a model computes with."""
    held = {t.name: t.raw_data or numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}
    return held, [(n.op_type, n.name, list(n.input), list(n.output)) for n in model.graph.node]


def fitted(model, batches, tmp_path, **settings):
    data = None if settings.get("approach") == "dynamic" else [(batch, 0) for batch in batches]
    conf = PostTrainingQuantConfig(**settings)
    return quantization.fit(model, conf, data, workspace=tmp_path, quiet=True).model


CASES = {
    "static": (
        {"quant_format": "QOperator", "op_type_dict": {"Conv|MatMul": {"weight": {"granularity": "per_tensor"}}}},
        lambda reader: StaticQuantConfig(reader, per_channel=False),
        None,
    ),
    "static QDQ": (
        {"quant_format": "QDQ"},
        lambda reader: StaticQuantConfig(reader, per_channel=True, quant_format="QDQ"),
        None,
    ),
    "dynamic": ({"approach": "dynamic"}, lambda reader: DynamicQuantConfig(per_channel=True), None),
    "rtn": ({"approach": "weight_only"}, lambda reader: RTNConfig(), lambda reader: RTNWeightOnlyQuantConfig()),
    "gptq": (
        {"approach": "weight_only", "op_type_dict": {".*": {"weight": {"algorithm": "GPTQ"}}}},
        lambda reader: GPTQConfig(calibration_data_reader=reader),
        lambda reader: GPTQWeightOnlyQuantConfig(calibration_data_reader=reader, mse=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_plan_gives_the_same_bytes_through_every_front(case, model, batches, tmp_path):
    settings, config, algorithm = CASES[case]
    found = {"fit": fitted(model, batches, tmp_path / "fit", **settings)}
    found["quantize"] = quantize(model, None, config(Reader(batches)), quiet=True)
    tuning = TuningConfig([config(Reader(batches))], workspace=tmp_path / "tune")
    found["autotune"] = autotune(model, tuning, lambda path: 1.0, quiet=True)
    if algorithm is not None:
        quantizer = MatMulNBitsQuantizer(
            model, block_size=32, is_symmetric=True, algo_config=algorithm(Reader(batches))
        )
        quantizer.process()
        found["MatMulNBits"] = quantizer.model
    for name, each in found.items():
        onnx.checker.check_model(each)
        assert contents(each) == contents(found["quantize"]), name


@pytest.mark.parametrize("case", ["static", "rtn"])
def test_a_plan_of_one_front_runs_in_another(case, model, batches):
    """What ``quantize`` makes of a configuration is a plan that the adaptor runs from its plain form."""
    _, config, _ = CASES[case]
    executor = Executor(read_float_model(model))
    plan = resolve(config(Reader(batches)), executor).plan
    assert Plan.from_json(plan.to_json()) == plan
    adaptor = ONNXRTAdaptor()
    new = adaptor.quantize(plan.to_tune_cfg(), model, dataloader=Reader(batches))
    assert contents(new) == contents(quantize(model, None, config(Reader(batches)), quiet=True))


def test_fit_races_dynamic_ops_as_quantize_does(model, told, tmp_path):
    with racing(told(lambda key: "[64, 64]" in key)):
        new = fitted(model, None, tmp_path, approach="dynamic")
    ops = read_record(ir.from_proto(new)).ops
    assert {name for (name, _), scheme in ops.items() if scheme.activation and not scheme.is_float} == {
        *("conv", "point", "fc1"),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": [Pass("rotate")]}, "no pass over ONNX models is called 'rotate'"),
        ({"passes": [Pass("smooth", {"alfa": 1})]}, "the pass smooth has no 'alfa'; did you mean 'alpha'"),
        ({"method": Method("gptk")}, "unknown weight-only algorithm 'gptk'; did you mean 'gptq'"),
        (
            {"method": Method("gptq", {"act_oder": True})},
            "method gptq: .*no option 'act_oder'; did you mean 'act_order'",
        ),
        ({"method": Method("gptq", {"hadamard": True})}, "gptq: hadamard is not carried out on ONNX models"),
        ({"method": Method("autoround")}, "autoround trains whole blocks"),
        ({"op": ("fc3", "MatMul")}, "the plan names 'fc3'.*did you mean 'fc"),
    ],
)
def test_what_is_not_run_is_refused_by_name_before_any_work(change, message, model):
    scheme = OpScheme(INT4, mode="weight_only", method=change.get("method"))
    plan = Plan({change.get("op", MATRIX): scheme}, passes=change.get("passes", ()))
    with pytest.raises(ConfigError, match=message):
        ONNXRTAdaptor().quantize(plan.to_tune_cfg(), model)


@pytest.fixture
def halve():
    """An algorithm of a third party, and its configuration."""

    @register_algorithm("halve")
    def _halve(weight, scheme, statistics=None, *, times: int = 1):
        return LayerResult(rtn(weight / 2**times, scheme))

    @register_config("onnxrt", "halve")
    class HalveConfig(WeightOnlyConfig):
        times: int = 1

    yield HalveConfig
    del ALGORITHMS._items["halve"]


def test_an_algorithm_of_a_third_party_runs_through_every_front(halve, model, batches, tmp_path):
    new = quantize(model, None, halve(times=2), quiet=True)
    assert read_record(ir.from_proto(new)).ops[MATRIX].method == Method("halve", {"times": 2})
    tuned = autotune(model, TuningConfig([halve(times=2)], workspace=tmp_path / "tune"), lambda path: 1.0, quiet=True)
    assert contents(tuned) == contents(new)
    rules = {"MatMul": {"weight": {"algorithm": "halve"}}}
    by_rule = fitted(model, batches, tmp_path / "fit", approach="weight_only", op_type_dict=rules)
    once = quantize(model, None, halve(), quiet=True)
    assert contents(by_rule) == contents(once)
    assert contents(once) != contents(quantize(model, None, RTNConfig(), quiet=True))


def test_a_pass_of_a_third_party_changes_the_float_model(model):
    @PASSES.register("rename")
    @dataclass(frozen=True)
    class Rename:
        suffix: str = ""

        def change(self, model):
            for node in model.graph:
                node.name += self.suffix
            return model

    scheme = OpScheme(INT4, mode="weight_only", method=Method("rtn"))
    passes = [Pass("rename", {"suffix": "_of_theirs"}), Pass("weight_layout", {"quant_format": "QOperator"})]
    plan = Plan({("fc1_of_theirs", "MatMul"): scheme}, passes=passes)
    try:
        new = ONNXRTAdaptor().quantize(plan.to_tune_cfg(), model)
    finally:
        del PASSES._items["rename"]
    assert [node.name for node in new.graph.node if node.op_type == "MatMulNBits"] == ["fc1_of_theirs"]


def test_a_group_size_that_no_matrix_can_have_is_an_error(model):
    with pytest.raises(ConfigError, match="node 'fc1': a group of 7 inputs cannot be cut into blocks"):
        quantize(model, None, RTNConfig(weight_group_size=7))


def test_types_that_the_model_has_not_are_an_error(model):
    config = DynamicQuantConfig(op_types_to_quantize=["MatMul"]) + RTNConfig(op_types_to_quantize=["Gemm"])
    said = "RTNConfig.op_types_to_quantize names Gemm, and the model has no node of these types; it has .*MatMul"
    with pytest.raises(ConfigError, match=said):
        quantize(model, None, config, quiet=True)


def test_a_source_is_smoothed_and_calibrated_once_for_plans_that_agree(model, batches):
    reader = Reader(batches)
    executor = Executor(read_float_model(model))
    found = resolve(StaticQuantConfig(reader, extra_options={"SmoothQuant": True}), executor)
    options = found.run_options({})
    first, samples = executor.run(found.plan, options), options.data["static"].samples
    passes = samples.passes
    bare = [step for step in found.plan.passes if step.name != "correct_biases"]
    fewer = Plan(found.plan.with_ops({MATRIX: OpScheme()}).ops, found.plan.calib_sampling_size, passes=bare)
    executor.run(fewer, options)
    assert samples.passes == passes
    assert executor.before_rounding(read_record(first).origin) is not None
