"""The configuration classes: defaults, errors that help, and the way to JSON and back."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.config import (
    AccuracyCriterion,
    MixedPrecisionConfig,
    Objective,
    PostTrainingQuantConfig,
    QuantizationAwareTrainingConfig,
    TuningCriterion,
)
from neural_compressor.errors import ConfigError

RULE = {"Conv2d": {"weight": {"dtype": ["int4"]}, "activation": {"dtype": ["uint4"]}}}


def test_defaults_are_the_documented_ones() -> None:
    conf = PostTrainingQuantConfig()
    assert (conf.device, conf.backend, conf.domain, conf.approach) == ("cpu", "default", "auto", "static")
    assert (conf.calibration_sampling_size, conf.quant_level, conf.seed) == ([100], "auto", 42)
    assert (conf.recipes, conf.op_type_dict, conf.op_name_dict) == ({}, {}, {})
    assert not conf.reduce_range
    assert not conf.diagnosis
    accuracy = conf.accuracy_criterion
    assert (accuracy.higher_is_better, accuracy.criterion, accuracy.tolerable_loss) == (True, "relative", 0.01)
    tuning = conf.tuning_criterion
    assert (tuning.strategy, tuning.timeout, tuning.max_trials) == ("basic", 0, 100)
    assert tuning.objective == (Objective("performance"),)
    assert MixedPrecisionConfig().precisions == ("bf16",)
    assert QuantizationAwareTrainingConfig().model_name == ""


def test_defaults_are_not_shared() -> None:
    PostTrainingQuantConfig().calibration_sampling_size.append(7)
    PostTrainingQuantConfig().accuracy_criterion.tolerable_loss = 0.5
    assert PostTrainingQuantConfig().calibration_sampling_size == [100]
    assert PostTrainingQuantConfig().accuracy_criterion.tolerable_loss == 0.01


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"aproach": "static"}, ["no field 'aproach'", "'approach'"]),
        ({"approach": "statc"}, ["approach", "'statc'", "did you mean 'static'"]),
        ({"device": "cpuu"}, ["device", "'cpuu'", "xpu"]),
        ({"backend": "onnxrt_cuda"}, ["backend", "onnxrt_cuda_ep"]),
        ({"domain": "vision"}, ["domain", "object_detection"]),
        ({"quant_level": 2}, ["quant_level", "2", "auto"]),
        ({"quant_level": True}, ["quant_level", "True"]),
        ({"quant_format": "qdq"}, ["quant_format", "QDQ"]),
        ({"calibration_sampling_size": []}, ["calibration_sampling_size", "empty"]),
        ({"calibration_sampling_size": [100, 0]}, ["calibration_sampling_size", "got 0", ">= 1"]),
        ({"recipes": {"smooth": True}}, ["unknown recipe 'smooth'", "smooth_quant"]),
        ({"excluded_precisions": ["fp32"]}, ["fp32 cannot be excluded"]),
        ({"excluded_precisions": ["bf17"]}, ["bf17", "bf16"]),
        ({"reduce_range": "yes"}, ["reduce_range", "True or False"]),
        ({"framework_yaml": "/nowhere/my.yaml"}, ["framework_yaml", "/nowhere/my.yaml"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"dtype": "banana"}}}}, ["op_type_dict['Conv2d']['weight']", "banana"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"dtype": "int", "bits": 99}}}}, ["99", "1 to 16"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"dtype": "int"}}}}, ["needs 'bits'"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"dtype": "int8", "bits": 4}}}}, ["int8", "8 bits"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"scheme": "symm"}}}}, ["symm", "sym"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"granularity": "per_row"}}}}, ["per_row", "per_tensor"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"group_size": 0}}}}, ["group size"]),
        ({"op_type_dict": {"Conv2d": {"weights": {"dtype": "int8"}}}}, ["'weights'", "did you mean 'weight'"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"dtypes": "int8"}}}}, ["'dtypes'", "dtype"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"algorithm": []}}}}, ["empty list"]),
        ({"op_type_dict": {"Conv2d": {"weight": {"quant_mode": "static"}}}}, ["quant_mode"]),
        ({"op_type_dict": {"Conv2d": {"dtype": "int8"}}}, ["'dtype'", "weight"]),
        ({"op_type_dict": {"Conv2d": {}}}, ["op_type_dict['Conv2d']"]),
        ({"op_type_dict": ["Conv2d"]}, ["op_type_dict", "dict"]),
        ({"op_name_dict": {"(l)\\1": {"weight": {"dtype": "fp32"}}}}, ["op_name_dict", "regular expression"]),
        ({"op_name_dict": {5: {"weight": {"dtype": "fp32"}}}}, ["op_name_dict[5]", "string"]),
        ({"accuracy_criterion": {"tolerable_loss": 1.5}}, ["tolerable_loss", "1.5"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_name_the_field_what_was_given_and_what_is_admitted(fields: dict[str, object], said: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        PostTrainingQuantConfig(**fields)
    for words in said:
        assert words in str(error.value)


@pytest.mark.parametrize("loss", [-math.inf, math.nan, math.inf, "0.1", None, True])
def test_a_promise_is_a_finite_number(loss: object) -> None:
    with pytest.raises(ConfigError, match="tolerable_loss"):
        AccuracyCriterion(tolerable_loss=loss)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_trials": 0},
        {"max_trials": -3},
        {"max_trials": 1.5},
        {"max_trials": True},
        {"timeout": -1},
        {"timeout": math.nan},
        {"strategy": ""},
        {"strategy": 3},
        {"strategy_kwargs": ["a"]},
        {"objective": []},
        {"objective": "speed"},
        {"objective": ["accuracy", "accuracy"]},
        {"objective": {"objective": ["accuracy", "modelsize"], "weight": [1]}},
        {"objective": {"objective": "accuracy", "weight": 0}},
        {"objective": {"objective": "accuracy", "weigth": 1}},
        {"objective": {"objective": "performance", "higher_is_better": True}},
        {"objective": 7},
    ],
    ids=repr,
)
def test_a_budget_that_makes_no_sense_is_an_error(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        TuningCriterion(**fields)


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        PostTrainingQuantConfig(device="abacus", approach="guess")
    assert "device" in str(error.value)
    assert "approach" in str(error.value)


def test_assignment_is_checked_and_a_refused_one_changes_nothing() -> None:
    conf = PostTrainingQuantConfig()
    conf.approach = "dynamic"
    with pytest.raises(ConfigError, match="approach"):
        conf.approach = "statik"
    assert conf.approach == "dynamic"
    with pytest.raises(ConfigError, match="colour"):
        conf.colour = 1


def test_the_criterion_reads_either_way() -> None:
    absolute = AccuracyCriterion(criterion="absolute", tolerable_loss=2)
    assert (absolute.absolute, absolute.relative) == (2, None)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("modelsize", [("modelsize", 1.0, False)]),
        (["accuracy", "performance"], [("accuracy", 1.0, True), ("performance", 1.0, False)]),
        ([{"objective": "accuracy", "weight": 3}, "footprint"], [("accuracy", 3.0, True), ("footprint", 1.0, False)]),
        (
            {"objective": ["performance", "accuracy"], "weight": [1, 4], "higher_is_better": [False, True]},
            [("performance", 1.0, False), ("accuracy", 4.0, True)],
        ),
        ({"objective": "accuracy", "higher_is_better": False}, [("accuracy", 1.0, False)]),
    ],
)
def test_objectives_are_read_from_all_their_forms(spec: object, expected: list[tuple[str, float, bool]]) -> None:
    assert TuningCriterion(objective=spec).objective == tuple(Objective(*fields) for fields in expected)


def test_one_calibration_size_or_several() -> None:
    assert PostTrainingQuantConfig(calibration_sampling_size=50).calibration_sampling_size == [50]
    assert PostTrainingQuantConfig(calibration_sampling_size=[50, 10, 50]).calibration_sampling_size == [50, 10]


objectives = st.lists(st.sampled_from(["performance", "accuracy", "modelsize", "footprint"]), min_size=1, unique=True)
configs = st.builds(
    PostTrainingQuantConfig,
    approach=st.sampled_from(["static", "dynamic", "auto", "weight_only"]),
    calibration_sampling_size=st.lists(st.integers(1, 1000), min_size=1, max_size=3),
    op_type_dict=st.sampled_from([{}, RULE, {"Linear": {"activation": {"algorithm": ("kl", "minmax")}}}]),
    excluded_precisions=st.lists(st.sampled_from(["bf16", "fp16", "int8"])),
    recipes=st.sampled_from([{}, {"smooth_quant": True, "smooth_quant_args": {"alpha": [0.4, 0.6]}}]),
    quant_level=st.sampled_from(["auto", 0, 1]),
    tuning_criterion=st.builds(TuningCriterion, objective=objectives, max_trials=st.integers(1, 9)),
    accuracy_criterion=st.builds(AccuracyCriterion, tolerable_loss=st.floats(0, 1)),
)


@given(configs)
def test_configs_survive_the_trip_through_dict_and_json(conf: PostTrainingQuantConfig) -> None:
    assert PostTrainingQuantConfig.from_dict(conf.to_dict()) == conf
    assert PostTrainingQuantConfig.from_dict(json.loads(json.dumps(conf.to_dict()))) == conf


@pytest.mark.parametrize("kind", [PostTrainingQuantConfig, QuantizationAwareTrainingConfig, MixedPrecisionConfig])
def test_configs_survive_a_file(kind: type, tmp_path) -> None:
    conf = kind(op_type_dict=RULE, tuning_criterion={"objective": ["accuracy", "modelsize"]})
    conf.to_json_file(tmp_path / "conf.json")
    assert kind.from_json_file(tmp_path / "conf.json") == conf


def test_a_framework_yaml_is_kept_as_its_path(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("- version: {name: default}\n")
    conf = PostTrainingQuantConfig(framework_yaml=str(path))
    assert conf.framework_yaml == path
    assert PostTrainingQuantConfig.from_dict(json.loads(json.dumps(conf.to_dict()))) == conf


def test_what_has_no_json_form_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match="example_inputs"):
        PostTrainingQuantConfig(example_inputs=object()).to_json_file(tmp_path / "conf.json")
    assert not (tmp_path / "conf.json").exists()


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read"), ("{", "not a JSON"), ("[]", "mapping")])
def test_a_file_that_cannot_be_read_is_a_config_error(content: str | None, said: str, tmp_path) -> None:
    path = tmp_path / "conf.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        PostTrainingQuantConfig.from_json_file(path)
