"""ONNX models through ``quantization.fit``: providers, forms, recipes, data, what is told and saved."""

import copy
import logging
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from neural_compressor import quantization
from neural_compressor.adaptor.contract import adaptor_for
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import (
    CalibrationError,
    ConfigError,
    EvaluationError,
    FormatError,
    MissingDependencyError,
    QuantizationError,
    WorkspaceError,
)
from neural_compressor.onnx import executor
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.passes.smooth_quant import smooth
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR
from neural_compressor.testing.doubles import CountingLoader


@pytest.fixture
def batches(digits):
    images, labels = digits
    return [(images[i : i + 20], labels[i : i + 20]) for i in range(0, 200, 20)]


@pytest.fixture
def fit(digits_model, batches, tmp_path):
    """``fit(model=..., eval_func=..., **configuration)`` on the digits."""

    def call(model=digits_model, calib_dataloader=batches, eval_func=None, **configuration):
        conf = PostTrainingQuantConfig(**configuration)
        return quantization.fit(
            model, conf, calib_dataloader=calib_dataloader, eval_func=eval_func, workspace=tmp_path / "work", quiet=True
        )

    return call


@pytest.fixture
def accuracy(digits):
    images, labels = digits[0][1000:], digits[1][1000:]

    def measure(model):
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return float((session.run(None, {"x": images})[0].argmax(axis=1) == labels).mean())

    return measure


def kinds(quantized):
    return [node.op_type for node in quantized.model.graph.node]


def records(quantized):
    return {record.name: record for record in quantized.result.ops}


# -- which models --------------------------------------------------------------------------------------------------------


def test_models_are_known_without_importing_onnx():
    code = (
        "import sys\n"
        "from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor as A\n"
        "print([A.handles(m) for m in ('m.onnx', 'M.ONNX', 'm.pt', 3, object())])\n"
        "print([m for m in ('onnx', 'onnx_ir', 'onnxruntime', 'torch') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[True, True, False, False, False]", "[]"]


def test_the_adaptor_is_found_for_every_form_of_model(digits_model):
    for model in ("model.onnx", digits_model, ir.from_proto(digits_model)):
        assert adaptor_for(model) is ONNXRTAdaptor


def test_without_onnx_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor\n"
        "ONNXRTAdaptor()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependencyError" in done.stderr
    assert "open-neural-compressor[onnx]" in done.stderr


@pytest.mark.parametrize("form", ["path", "proto", "ir", "external data"])
def test_models_come_as_files_protos_and_graphs(fit, digits_model, tmp_path, form, batches):
    source = {"proto": digits_model, "ir": ir.from_proto(digits_model), "path": tmp_path / "digits.onnx"}.get(form)
    if form == "path":
        onnx.save(digits_model, source)
    if form == "external data":
        source = str(tmp_path / "outside.onnx")
        copied = onnx.ModelProto()
        copied.CopyFrom(digits_model)
        onnx.save(copied, source, save_as_external_data=True, size_threshold=0, location="outside.data")
    quantized = fit(model=source)
    assert isinstance(quantized.model, onnx.ModelProto)
    onnx.checker.check_model(quantized.model, full_check=True)
    expected = fit().model
    assert quantized.adaptor.fingerprint(quantized.model) == quantized.adaptor.fingerprint(expected)
    scores = quantized(batches[0][0])
    assert scores.shape == (20, 10)
    assert "QuantizeLinear" in repr(quantized)


def test_what_is_no_model_is_an_error(fit, tmp_path):
    with pytest.raises(FormatError, match="does not exist"):
        fit(model=str(tmp_path / "nothing.onnx"))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x07 not a model")
    with pytest.raises(FormatError, match=r"broken\.onnx"):
        fit(model=broken)


def test_a_broken_weight_is_an_error_that_names_it(fit, build):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    weight = np.ones((64, 4))
    weight[3, 2] = np.nan
    with pytest.raises(QuantizationError, match="'w' holds NaN"):
        fit(model=build([node], {"x": ["n", 64]}, {"y": ["n", 4]}, {"w": weight}))


# -- approaches and forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "expected", "kernels"),
    [
        ({}, {"QuantizeLinear", "DequantizeLinear", "Gemm", "MatMul"}, ("QGemm", "MatMulIntegerToFloat")),
        ({"quant_format": "QDQ"}, {"QuantizeLinear", "DequantizeLinear"}, ("QGemm", "MatMulIntegerToFloat")),
        ({"quant_format": "QOperator"}, {"QGemm", "MatMulIntegerToFloat"}, ("QGemm", "MatMulIntegerToFloat")),
        ({"approach": "dynamic"}, {"DynamicQuantizeLinear", "MatMulInteger"}, ("DynamicQuantizeMatMul",) * 2),
        ({"approach": "weight_only"}, {"MatMulNBits"}, ("MatMulNBits",) * 2),
    ],
    ids=["default", "QDQ", "QOperator", "dynamic", "weight only"],
)
def test_approach_and_form_decide_what_the_model_is_made_of(
    fit, accuracy, digits_model, configuration, expected, kernels
):
    quantized = fit(**configuration)
    assert expected <= set(kinds(quantized))
    assert accuracy(quantized.model) > accuracy(digits_model) - 0.03
    found = records(quantized)
    assert (found["hidden"].kernel, found["scores"].kernel) == kernels
    for name in ("hidden", "scores"):
        assert not found[name].simulated
        assert found[name].weight_sqnr > 15
        assert found[name].output_sqnr is None or found[name].output_sqnr > 15
    assert 0 < quantized.adaptor.model_size(quantized.model) < quantized.adaptor.model_size(digits_model)


def test_rules_choose_the_algorithm_and_bits_of_weights_alone(fit, accuracy, digits_model):
    rule = {"weight": {"bits": 8, "group_size": 16, "algorithm": "GPTQ"}}
    quantized = fit(approach="weight_only", op_name_dict={"scores": rule}, recipes={"gptq_args": {"percdamp": 0.1}})
    found = records(quantized)
    assert (found["hidden"].precision, found["scores"].precision) == ("int4", "int8")
    bits = {
        n.name: helper.get_node_attr_value(n, "bits") for n in quantized.model.graph.node if n.op_type == "MatMulNBits"
    }
    assert bits == {"hidden": 4, "scores": 8}


def test_every_op_that_stays_in_float_has_a_reason(fit):
    found = records(fit(op_name_dict={"scores": {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}}))
    assert found["hidden"].mode == "static"
    assert (found["scores"].mode, found["scores"].precision) == ("float", "fp32")
    assert "scores" in found["scores"].reason


def test_an_op_that_the_runtime_computes_in_float_is_told(fit, caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        found = records(fit(op_type_dict={"MatMul": {"activation": {"dtype": "uint16"}}}))
    assert found["scores"].simulated
    assert "uint16" in found["scores"].kernel
    assert "scores" in caplog.text


# -- providers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["onnxrt_trt_ep", "onnxrt_cuda_ep", "onnxrt_dnnl_ep", "onnxrt_dml_ep"])
def test_a_graph_can_be_made_for_a_provider_that_is_not_here(fit, accuracy, digits_model, backend, caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        quantized = fit(backend=backend)
    assert quantized.adaptor.target.provider.backend == backend
    onnx.checker.check_model(quantized.model, full_check=False)
    assert accuracy(quantized.model) > accuracy(digits_model) - 0.03
    assert "not run here" in records(quantized)["scores"].kernel
    assert quantized.result.best.measurement.latency_ms is None
    assert "does not run here" in caplog.text


def test_tensorrt_gets_symmetric_int8_and_float_weights_behind_quantizers(fit):
    model = ir.from_proto(fit(backend="onnxrt_trt_ep").model)
    quantizers = [n for n in model.graph if n.op_type == "QuantizeLinear"]
    for node in quantizers:
        zero = node.inputs[2].const_value.numpy()
        assert zero.dtype == np.int8
        assert not zero.any()
    assert len([n for n in quantizers if n.inputs[0].const_value is not None]) == 2
    tensors = [value.const_value for value in model.graph.initializers.values()]
    assert all(tensor.dtype == ir.DataType.FLOAT for tensor in tensors if tensor.size > 64)


def test_a_provider_that_is_not_here_cannot_be_evaluated_on(fit, accuracy):
    with pytest.raises(MissingDependencyError, match=r"CUDAExecutionProvider.*onnxruntime-gpu"):
        fit(backend="onnxrt_cuda_ep", eval_func=accuracy)
    with pytest.raises(MissingDependencyError, match="gpu"):
        fit(device="gpu")


def test_directml_wants_a_batch_of_one(fit, build, caplog):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    for batch, warned in (("n", True), (2, True), (1, False)):
        caplog.clear()
        data = [np.ones((1 if batch == "n" else batch, 64), np.float32)]
        model = build([node], {"x": [batch, 64]}, {"y": None}, {"w": np.eye(64)})
        fit(model=model, calib_dataloader=data, backend="onnxrt_dml_ep")
        assert ("batch fixed to 1" in caplog.text) == warned


def test_a_form_that_the_provider_does_not_take_is_an_error(fit):
    with pytest.raises(ConfigError, match="TensorrtExecutionProvider with the format QOperator"):
        fit(backend="onnxrt_trt_ep", quant_format="QOperator")


# -- recipes -------------------------------------------------------------------------------------------------------------


def test_recipes_change_the_layout(fit):
    plain = fit()
    weights = [
        n for n in fit(recipes={"add_qdq_pair_to_weight": True}).model.graph.node if n.op_type == "QuantizeLinear"
    ]
    assert len(weights) == kinds(plain).count("QuantizeLinear") + 2
    first = records(fit(recipes={"first_conv_or_matmul_quantization": False}))
    assert (first["hidden"].mode, first["scores"].mode) == ("float", "static")
    last = records(fit(recipes={"last_conv_or_matmul_quantization": False}))
    assert (last["hidden"].mode, last["scores"].mode) == ("static", "float")


def test_dedicated_pairs_are_one_for_each_reader(fit, build):
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", w], [f"{w}_y"], name=w) for w in ("a", "b")]
    weights = {w: rng.normal(size=(64, 8)) for w in ("a", "b")}
    model = build(nodes, {"x": ["n", 64]}, {"a_y": ["n", 8], "b_y": ["n", 8]}, weights)

    def pairs(**recipes):
        graph = fit(model=model, recipes=recipes).model.graph
        return sum(n.op_type == "QuantizeLinear" and n.input[0] == "x" for n in graph.node)

    assert (pairs(), pairs(dedicated_qdq_pair=True)) == (1, 2)


def test_the_graph_is_simplified_as_asked(fit, build):
    product = helper.make_node("MatMul", ["x", "w"], ["p"], name="product")
    nodes = [product, helper.make_node("Add", ["p", "b"], ["y"], name="add")]
    model = build(nodes, {"x": ["n", 64]}, {"y": ["n", 8]}, {"w": np.eye(64, 8), "b": np.ones(8)})

    def kind(**recipes):
        return records(fit(model=model, recipes=recipes))["product"].op_type

    assert (kind(), kind(graph_optimization_level="ENABLE_BASIC")) == ("MatMul", "Gemm")


@pytest.mark.parametrize("alpha", [0.5, [0.3, 0.7], "auto"], ids=str)
def test_smoothing_goes_before_quantization(fit, accuracy, digits_model, alpha):
    args = {"alpha": alpha, "folding": False, "calib_iter": 2}
    quantized = fit(recipes={"smooth_quant": True, "smooth_quant_args": args})
    assert "Mul" in kinds(quantized)
    assert accuracy(quantized.model) > accuracy(digits_model) - 0.03
    assert records(quantized)["scores"].weight_sqnr > 30  # of the smoothed weight


@pytest.mark.parametrize(("granularity", "per_channel"), [("per_tensor", False), ("per_channel", True)])
def test_smoothing_knows_what_weights_will_be(fit, monkeypatch, granularity, per_channel):
    asked = []

    def recorded(*args, weights, **kwargs):
        asked.append(weights.granularity)
        return smooth(*args, weights=weights, **kwargs)

    monkeypatch.setattr(executor, "smooth", recorded)
    rules = {".*": {"weight": {"granularity": granularity}}}
    fit(recipes={"smooth_quant": True, "smooth_quant_args": {"alpha": "auto"}}, op_type_dict=rules)
    assert asked == [PER_CHANNEL if per_channel else PER_TENSOR]


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ({"teq_args": {"lr": 1}}, "does not apply the recipes teq_args with the approach 'static'"),
        ({"pre_post_process_quantization": [True, False]}, "is True or False"),
        ({"smooth_quant": True, "smooth_quant_args": {"alfa": 1}}, "no 'alfa'; did you mean 'alpha'"),
        ({"gptq_args": {"damp": 1}}, "gptq_args has no 'damp'; did you mean .*'percdamp'"),
        ({"graph_optimization_level": "BASIC"}, "ENABLE_BASIC"),
        ({"optypes_to_exclude_output_quant": ["Convolution"]}, "Convolution"),
    ],
)
def test_a_recipe_that_is_unknown_or_misspelt_is_an_error(fit, recipes, message):
    with pytest.raises(ConfigError, match=message):
        fit(recipes=recipes, approach="weight_only" if "gptq_args" in recipes else "static")


@pytest.mark.parametrize(
    ("approach", "recipe"),
    [
        *(("dynamic", name) for name in ("smooth_quant", "fast_bias_correction", "dedicated_qdq_pair")),
        *(("weight_only", name) for name in ("weight_correction", "add_qdq_pair_to_weight")),
        *((approach, "layer_wise_quant") for approach in ("static", "dynamic")),
    ],
)
def test_a_recipe_about_another_way_of_quantizing_is_an_error(fit, approach, recipe):
    with pytest.raises(ConfigError, match=f"recipes {recipe} with the approach '{approach}'"):
        fit(approach=approach, recipes={recipe: True})


def test_what_is_outside_of_the_products_can_stay_in_float(fit, build):
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["x"], name="look_up"),
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Sigmoid", ["p"], ["s"], name="between"),
        helper.make_node("MatMul", ["s", "v"], ["q"], name="last"),
        helper.make_node("Softmax", ["q"], ["y"], name="behind"),
    ]
    weights = {"table": rng.normal(size=(10, 8)), "w": rng.normal(size=(8, 8)), "v": rng.normal(size=(8, 8))}
    model = build(nodes, {"i": ["n"]}, {"y": ["n", 8]}, weights)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    data = [({"i": np.arange(10)}, 0)]

    def reasons(**recipes):
        ops = fit(model=model, calib_dataloader=data, recipes=recipes).result.ops
        return {op.name: op.reason for op in ops}

    kept = {name for name, why in reasons(pre_post_process_quantization=False).items() if "pre_post_process" in why}
    assert kept == {"look_up", "behind"}
    assert not any("pre_post_process" in why for why in reasons().values())


# -- tuning --------------------------------------------------------------------------------------------------------------


def test_tuning_keeps_the_promise_and_calibrates_once(fit, accuracy, digits_model, batches):
    loader = CountingLoader(batches)
    seen = []

    def strict(model):
        """Good only where the product behind the hidden layer is in float."""
        seen.append(loader.count)
        in_float = any(n.name == "scores" and n.input[1] == "w2" for n in model.graph.node)
        return 1.0 if in_float else 0.5

    quantized = fit(
        calib_dataloader=loader,
        eval_func=strict,
        op_type_dict={".*": {"activation": {"algorithm": "minmax", "scheme": "asym", "dtype": "uint8"}}},
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.01),
        tuning_criterion=TuningCriterion(strategy="basic", max_trials=40),
        quant_level=1,
    )
    assert quantized.result.met
    assert records(quantized)["scores"].mode == "float"
    assert records(quantized)["hidden"].mode == "static"
    assert not [trial.error for trial in quantized.result.trials if trial.error]
    # One batch to look at, all of them once, and a look by the last trial's fall-back to new tensors.
    assert len(seen) > 3
    assert seen[-1] == seen[1]


def test_tuning_over_recipes_and_modes_has_no_failing_trial(fit, digits_model):
    quantized = fit(
        approach="auto",
        eval_func=lambda model: 1.0 if len(model.graph.node) == 3 else 0.0,
        recipes={"smooth_quant": [True, False], "smooth_quant_args": {"scales_per_op": False}},
        tuning_criterion=TuningCriterion(max_trials=7),
    )
    assert len(quantized.result.trials) == 7
    assert [trial.error for trial in quantized.result.trials] == [""] * 7


# -- data ----------------------------------------------------------------------------------------------------------------


def test_a_calibration_function_calls_the_model_it_is_given(digits_model, batches, tmp_path):
    def calibrate(model):
        assert model.graph.node  # it is the model, too
        for images, _ in batches:
            model(images)
            model(x=images)

    conf = PostTrainingQuantConfig(calibration_sampling_size=10**6)
    by_func = quantization.fit(digits_model, conf, calib_func=calibrate, workspace=tmp_path, quiet=True)
    by_data = quantization.fit(digits_model, conf, calib_dataloader=batches, workspace=tmp_path, quiet=True)
    assert by_func.adaptor.fingerprint(by_func.model) == by_data.adaptor.fingerprint(by_data.model)


def test_a_calibration_function_that_feeds_nothing_is_an_error(digits_model, tmp_path):
    with pytest.raises(CalibrationError, match="fed nothing"):
        quantization.fit(
            digits_model, PostTrainingQuantConfig(), calib_func=lambda model: None, workspace=tmp_path, quiet=True
        )


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.ones((4, 63), np.float32), 0), r"\(4, 63\)"),
        ({"images": np.ones((4, 64), np.float32)}, "no input 'images'"),
        ((np.full((4, 64), np.nan, np.float32), 0), "NaN"),
        ((np.ones((4, 64), np.int64), 0), "int64"),
    ],
    ids=["shape", "name", "NaN", "integers"],
)
def test_data_that_does_not_fit_is_an_error(fit, batch, message):
    with pytest.raises((CalibrationError, EvaluationError), match=message):
        fit(calib_dataloader=[batch])


# -- files ---------------------------------------------------------------------------------------------------------------


def test_a_model_is_saved_as_a_folder_or_a_file(fit, tmp_path, batches, digits_model):
    quantized = fit()
    expected = quantized(batches[0][0])
    quantized.save(tmp_path / "folder")
    quantized.save(tmp_path / "file.onnx")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["model.onnx"]
    for path in (tmp_path / "folder", tmp_path / "file.onnx"):
        loaded = quantization.load(path, digits_model)
        adaptor = ONNXRTAdaptor()
        np.testing.assert_array_equal(adaptor.predict(loaded, batches[0][0]), expected)
        assert {r.name: r.mode for r in adaptor.summary(loaded)}["scores"] == "static"
    assert (tmp_path / "file.onnx").stat().st_size == quantized.adaptor.model_size(quantized.model)


def test_a_folder_with_other_things_is_not_overwritten(fit, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(WorkspaceError, match="holds no quantized model"):
        fit().save(tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_inspected_tensors_of_both_models_have_the_same_names(fit, digits_model, batches, tmp_path):
    quantized = fit()
    adaptor = quantized.adaptor
    before, after = (
        adaptor.inspect_tensor(m, batches, ["hidden"], (1, 3), "all") for m in (digits_model, quantized.model)
    )
    assert set(before["weight"]["hidden"]) == set(after["weight"]["hidden"]) == {"weight", "bias"}
    error = np.abs(before["weight"]["hidden"]["weight"] - after["weight"]["hidden"]["weight"]).max()
    assert 0 < error < 0.01
    weight, bias = (before["weight"]["hidden"][name] for name in ("weight", "bias"))
    expected = batches[2][0] @ weight + bias
    np.testing.assert_allclose(before["activation"][1]["hidden"]["output0"], expected, rtol=1e-4, atol=1e-5)
    adaptor.inspect_tensor(digits_model, batches, ["hidden"], save_to_disk=True)
    assert (tmp_path / "work" / "inspect_saved" / "inspect_result.npz").is_file()
    with pytest.raises(ConfigError, match="no op is called 'hiden'; did you mean 'hidden'"):
        adaptor.inspect_tensor(digits_model, batches, ["hiden"])


def test_a_file_with_external_data_can_be_quantized_without_being_made_ready(digits_model, batches, tmp_path):
    path, copied = str(tmp_path / "outside.onnx"), onnx.ModelProto()
    copied.CopyFrom(digits_model)
    onnx.save(copied, path, save_as_external_data=True, size_threshold=0, location="outside.data")
    adaptor = ONNXRTAdaptor()
    choice = {"weight": {"dtype": "int4", "group_size": 32}}
    quantized = adaptor.quantize({"op": {("scores", "MatMul"): choice}}, path)
    (tmp_path / "outside.data").unlink()
    assert adaptor.predict(quantized, batches[0][0]).shape == (20, 10)


def test_bf16_ops_are_converted_and_others_are_not(digits_model, batches):
    adaptor = ONNXRTAdaptor({"backend": "onnxrt_cuda_ep", "graph_only": True})
    adaptor.bf16_ops = [("scores", "MatMul")]
    graph = ir.from_proto(adaptor.convert_bf16(digits_model)).graph
    kinds = {node.name: node.outputs[0].dtype for node in graph}
    assert kinds["scores"] == ir.DataType.BFLOAT16
    assert kinds["hidden"] == ir.DataType.FLOAT
    assert graph.outputs[0].dtype == ir.DataType.FLOAT


def test_bf16_ops_that_the_provider_has_no_kernel_for_stay_in_float_and_run(digits_model, batches):
    adaptor = ONNXRTAdaptor({"backend": "default", "device": "cpu"})
    adaptor.bf16_ops = [("scores", "MatMul")]
    converted = adaptor.convert_bf16(digits_model)
    assert np.array_equal(adaptor.predict(converted, batches[0][0]), adaptor.predict(digits_model, batches[0][0]))


def test_models_are_timed_in_sessions_of_one_thread_of_their_own(digits_model, batches, monkeypatch):
    made = []

    def spy(*arguments, threads=0, **options):
        made.append(threads)
        return make_session(*arguments, threads=threads, **options)

    monkeypatch.setattr("neural_compressor.onnx.runtime.session.make_session", spy)
    adaptor = ONNXRTAdaptor()
    models = [copy.deepcopy(adaptor.ready(digits_model)) for _ in range(3)]
    inputs = batches[0][0]
    expected = adaptor.predict(models[0], inputs)
    with adaptor.on_one_thread(models) as alone:
        assert alone
        for _ in range(2):
            for model in models:
                np.testing.assert_allclose(adaptor.predict(model, inputs), expected, rtol=1e-4, atol=1e-4)
    adaptor.predict(models[0], inputs)
    assert made == [0, 1, 1, 1]


def test_a_session_in_use_is_not_the_first_to_go(digits_model, batches, monkeypatch):
    made = []

    def spy(*arguments, **options):
        made.append(len(made))
        return make_session(*arguments, **options)

    monkeypatch.setattr("neural_compressor.onnx.runtime.session.make_session", spy)
    adaptor = ONNXRTAdaptor()
    baseline, *others = [copy.deepcopy(adaptor.ready(digits_model)) for _ in range(4)]
    for model in others:
        adaptor.predict(baseline, batches[0][0])
        adaptor.predict(model, batches[0][0])
    assert len(made) == 4
