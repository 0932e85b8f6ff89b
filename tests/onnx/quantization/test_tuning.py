"""Tuning on real digits."""

import json
import logging
import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from neural_compressor.errors import CalibrationError, ConfigError, EvaluationError
from neural_compressor.onnx.quantization import (
    AWQConfig,
    DynamicQuantConfig,
    GPTQConfig,
    RTNConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
)


@pytest.fixture
def accuracy(digits):
    _, pixels, labels = digits

    def evaluate(path, seen=None):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        scores = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"pixels": pixels})[
            0
        ]
        if seen is not None:
            seen.append(path)
        return float(np.mean(np.argmax(scores, axis=1) == labels))

    return evaluate


@pytest.fixture
def data(digits, reader):
    _, pixels, _ = digits
    return reader([{"pixels": pixels[i : i + 8]} for i in range(0, 64, 8)])


def kinds(model):
    return [node.op_type for node in model.graph.node]


def verdict(model):
    return next(prop.value for prop in model.metadata_props if prop.key == "neural_compressor.verdict")


def test_the_first_that_keeps_the_promise_is_taken(digits, accuracy, data, tmp_path):
    seen = []
    tuning = TuningConfig(
        config_set=[StaticQuantConfig(data), RTNConfig(weight_bits=[8, 4])], tolerable_loss=0.02, workspace=tmp_path
    )
    best = autotune(digits[0], tuning, accuracy, eval_args=(seen,))
    onnx.checker.check_model(best)
    assert len(seen) == 2  # the float model and one trial
    assert set(kinds(best)) & {"QGemm", "QLinearMatMul", "QuantizeLinear"}
    assert "promise" in verdict(best)
    assert (tmp_path / "report.html").is_file()


def test_the_float_model_is_left_alone_and_a_path_is_a_path(digits, accuracy, tmp_path):
    path = tmp_path / "digits.onnx"
    onnx.save(digits[0], path)
    (tmp_path / "config.json").write_text("{}")
    before, seen = path.read_bytes(), []

    def evaluate(model_path, *more):
        seen.append(model_path)
        from pathlib import Path

        assert Path(model_path).with_name("config.json").is_file()
        return accuracy(model_path)

    autotune(path, TuningConfig(RTNConfig(weight_bits=8), workspace=tmp_path / "ws"), evaluate)
    assert path.read_bytes() == before
    assert seen[0] == str(path)


def test_nodes_fall_back_to_float_where_no_configuration_will_do(digits, tmp_path, accuracy):
    trials = []

    def evaluate(path):
        model = onnx.load(path)
        quantized = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
        trials.append(len(quantized))
        sizes = [a.i for node in quantized for a in node.attribute if a.name == "K"]
        return 1.0 - sum(0.3 if size == 64 else 0.001 for size in sizes)  # the first layer is the one that hurts

    tuning = TuningConfig(RTNConfig(weight_bits=[4, 8]), tolerable_loss=0.01, workspace=tmp_path)
    best = autotune(digits[0], tuning, evaluate)
    assert trials == [0, 2, 2, 1]  # float, the two of the list, then the first node back in float
    assert kinds(best).count("MatMulNBits") == 1
    assert [node.name for node in best.graph.node if node.op_type == "Gemm"] == ["hidden"]


def test_a_promise_that_cannot_be_kept_gives_the_best_and_says_so(digits, tmp_path, caplog):
    def evaluate(path):
        return 1.0 if not any("MatMulNBits" in kind for kind in kinds(onnx.load(path))) else 0.5 + 0.1 * len(path) / 1e6

    with caplog.at_level(logging.WARNING, "neural_compressor"):
        best = autotune(digits[0], TuningConfig(RTNConfig(), workspace=tmp_path), evaluate)
    assert "MatMulNBits" in kinds(best)
    assert verdict(best) in caplog.text


def test_a_killed_run_goes_on(digits, accuracy, tmp_path):
    calls = []

    def evaluate(path):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 1.0 if len(calls) in (1, 4) else 0.5

    tuning = TuningConfig(RTNConfig(weight_bits=[2, 4, 8]), workspace=tmp_path, max_trials=3)
    with pytest.raises(KeyboardInterrupt):
        autotune(digits[0], tuning, evaluate)
    autotune(digits[0], tuning, evaluate)
    assert len(calls) == 6  # float, one trial, the killed one; then float once more, and only what was missing


def test_a_killed_run_does_not_go_on_with_other_data(digits, reader, tmp_path, caplog):
    _, pixels, _ = digits
    calls = []

    def evaluate(path):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 1.0

    def tuned(first):
        config = StaticQuantConfig(reader([{"pixels": pixels[first : first + 8]}]), per_channel=[False, True])
        return autotune(digits[0], TuningConfig(config, workspace=tmp_path, timeout=60, max_trials=2), evaluate)

    with pytest.raises(KeyboardInterrupt):
        tuned(0)
    tuned(8)
    assert "differs in its calibration" in caplog.text
    assert len(calls) == 6  # all three of the second run
    assert len(list((tmp_path / "reports").iterdir())) == 1


def test_data_comes_from_the_call(digits, accuracy, data, tmp_path):
    sets = [GPTQConfig(), AWQConfig(), StaticQuantConfig()]
    tuning = TuningConfig(sets, tolerable_loss=0, timeout=1e-9, workspace=tmp_path)
    autotune(digits[0], tuning, accuracy, calibration_data_reader=data)
    with pytest.raises(CalibrationError, match="needs calibration data"):
        autotune(digits[0], TuningConfig(sets, workspace=tmp_path / "other"), accuracy)


def test_configurations_that_differ_in_data_alone_are_refused(digits, accuracy, reader, tmp_path):
    readers = [reader([{"pixels": digits[1][i : i + 8]}]) for i in (0, 8)]
    tuning = TuningConfig([StaticQuantConfig(each) for each in readers], workspace=tmp_path)
    with pytest.raises(ConfigError, match="differs from an earlier one in its calibration_data_reader alone"):
        autotune(digits[0], tuning, accuracy)


def test_lower_may_be_better(digits, tmp_path):
    def loss(path):
        bits = [a.i for node in onnx.load(path).graph.node for a in node.attribute if a.name == "bits"]
        return 1.0 + sum(8 - each for each in bits) / 100 if bits else 1.0

    tuning = TuningConfig(RTNConfig(weight_bits=[2, 4, 8]), higher_is_better=False, workspace=tmp_path)
    best = autotune(digits[0], tuning, loss)
    assert [a.i for node in best.graph.node for a in node.attribute if a.name == "bits"] == [8, 8]


@pytest.mark.parametrize(
    ("config_set", "message"),
    [
        (RTNConfig(nodes_to_exclude=["hiden"]), "did you mean 'hidden'"),
        ([DynamicQuantConfig(), RTNConfig().set_local("outputs", RTNConfig())], "did you mean 'output'"),
    ],
)
def test_what_makes_no_sense_is_said_before_any_work(config_set, message, digits, tmp_path):
    with pytest.raises(ConfigError, match=message):
        autotune(digits[0], TuningConfig(config_set, workspace=tmp_path), lambda path: pytest.fail("evaluated"))


def test_bad_evaluations_are_errors_and_not_the_end_of_the_program(digits, tmp_path):
    def broken(path):
        raise RuntimeError("no such data")

    tuning = TuningConfig(RTNConfig(), workspace=tmp_path)
    with pytest.raises(EvaluationError, match="no such data"):
        autotune(digits[0], tuning, broken)
    with pytest.raises(EvaluationError, match="None"):
        autotune(digits[0], tuning, lambda path: None)
    with pytest.raises(ConfigError, match="eval_fn"):
        autotune(digits[0], tuning, "accuracy")
    with pytest.raises(ConfigError, match="TuningConfig"):
        autotune(digits[0], RTNConfig(), lambda path: 1.0)


def test_ranges_are_collected_once_for_all_trials(digits, data, tmp_path):
    trials = []

    def evaluate(path):
        trials.append(data.starts)
        return 1.0 if len(trials) == 1 else 0.5 + 0.01 * len(trials)

    config = StaticQuantConfig(data, per_channel=[False, True])
    autotune(digits[0], TuningConfig(config, workspace=tmp_path), evaluate)
    assert len(trials) > 4
    assert set(trials[1:]) == {data.starts}  # none after the first trial


# -- evidence --------------------------------------------------------------------------------------------------------


def sqnr_column(workspace):
    text = (workspace / "report.html").read_text(encoding="utf-8")
    return [float(found) for found in re.findall(r">(-?[0-9.]+) dB</td>", text.split('id="ops"')[0])]


def test_the_report_tells_how_exact_each_trial_is(digits, data, tmp_path):
    tuning = TuningConfig([RTNConfig(weight_bits=[2, 4, 8]), StaticQuantConfig()], max_trials=4, workspace=tmp_path)
    scores = iter([1.0, 0.1, 0.1, 0.1, 0.1])
    autotune(digits[0], tuning, lambda path: next(scores), calibration_data_reader=data)
    few, some, many, eight = sqnr_column(tmp_path)
    assert few < 15 < some < many
    assert 20 < eight < 60


@pytest.mark.parametrize("given", [None, "once"])
def test_without_data_that_can_be_had_again_nothing_is_told_of_exactness(digits, accuracy, data, once, tmp_path, given):
    reader = None if given is None else once(data.samples)
    autotune(digits[0], TuningConfig(RTNConfig(), workspace=tmp_path), accuracy, calibration_data_reader=reader)
    assert sqnr_column(tmp_path) == []
    if reader is not None:
        assert reader.get_next() is data.samples[0]


def test_the_evidence_is_complete(digits, data, tmp_path, capsys):
    tuning = TuningConfig([RTNConfig(weight_bits=4), StaticQuantConfig()], workspace=tmp_path, max_trials=2)
    best = autotune(digits[0], tuning, lambda path: 1.0, calibration_data_reader=data)
    assert "promise met" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = json.loads(re.findall(r'id="data">(.*?)</script>', text, flags=re.S)[0])
    assert all(0 < op["time_share"] < 1 and 0 < op["float_time_share"] < 1 for op in found["ops"])
    assert found["metadata"]["batch_size"] == 8
    names = {"inputs": data.samples[0]}
    exec(found["metadata"]["loading"], names)
    again = ort.InferenceSession(best.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(names["outputs"][0], again.run(None, data.samples[0])[0])


def test_quiet_means_quiet(digits, accuracy, tmp_path, capsys):
    autotune(digits[0], TuningConfig(RTNConfig(), workspace=tmp_path, tolerable_loss=1), accuracy, quiet=True)
    assert capsys.readouterr().out == ""
