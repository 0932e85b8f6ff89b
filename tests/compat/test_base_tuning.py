"""Tuning loops that programs write themselves, and other parts of ``neural_compressor.common``."""

import logging

import pytest

from neural_compressor.common import Logger, logger
from neural_compressor.common.base_config import BaseConfig, ComposableConfig, config_registry, register_config
from neural_compressor.common.base_tuning import (
    ConfigLoader,
    ConfigSet,
    EvaluationFuncWrapper,
    Evaluator,
    Sampler,
    SequentialSampler,
    TuningConfig,
    init_tuning,
)
from neural_compressor.common.utils import LazyImport, dump_elapsed_time
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import GPTQConfig, RTNConfig


class Backwards(Sampler):
    def __iter__(self):
        return iter(reversed(range(len(self.config_source))))


def bits(configs):
    return [config.bits for config in configs]


def test_samplers_are_classes_that_yield_positions():
    assert bits(TuningConfig(RTNConfig(bits=[2, 4, 8]), sampler=Backwards).candidates()) == [8, 4, 2]
    assert bits(ConfigLoader(RTNConfig(bits=[2, 4]), SequentialSampler)) == [2, 4]
    assert bits(ConfigSet.from_fwk_configs([RTNConfig(bits=[2, 4]), RTNConfig(bits=4)])) == [2, 4]
    with pytest.raises(ConfigError, match="the position 7"):
        TuningConfig(RTNConfig(), sampler=lambda configs: [7]).candidates()


def test_a_loop_of_ones_own():
    results = {2: 0.1, 4: 0.95, 8: 0.999}
    config = TuningConfig(RTNConfig(bits=[2, 4, 8, 5]), tolerable_loss=0.01)
    loader, log, monitor = init_tuning(config)
    monitor.set_baseline(1.0)
    log.tuning_start()
    for number, each in enumerate(loader):
        log.trial_start(trial_index=number)
        monitor.add_trial_result(number, results[each.bits], each)
        if monitor.need_stop():
            break
    assert monitor.get_number_of_trials() == 3
    assert monitor.get_best_quant_config().bits == 8
    with pytest.raises(AttributeError, match="lunch_start"):
        log.lunch_start()


def test_max_trials_stop_a_loop():
    _, _, monitor = init_tuning(TuningConfig(RTNConfig(), max_trials=2))
    with pytest.raises(ConfigError, match="no baseline"):
        monitor.need_stop()
    monitor.set_baseline(1.0)
    assert not monitor.need_stop()
    for number, result in enumerate((0.5, 0.4)):
        assert not monitor.need_stop()
        monitor.add_trial_result(number, result, number)
    assert monitor.need_stop()
    assert monitor.get_best_quant_config() == 0


def test_the_evaluator_tells_what_it_has():
    evaluator = Evaluator()
    assert evaluator.eval_fn_registry == []
    evaluator.set_eval_fn_registry([{"eval_fn": len, "name": "length"}, {"eval_fn": max, "weight": 2}])
    assert evaluator.eval_fn_registry == [
        {"eval_fn": len, "weight": 1.0, "name": "length"},
        {"eval_fn": max, "weight": 2},
    ]
    assert evaluator.evaluate([3, 4]) == 2 + 2 * 4


def test_a_set_with_parameters_of_ones_own():
    assert {each.quant_lm_head for each in RTNConfig.get_config_set_for_tuning(quant_lm_head=True)} == {True}


def test_the_evaluator_refuses_what_it_does_not_know():
    evaluator = Evaluator()
    for call in (evaluator.self_check, lambda: evaluator.evaluate(None)):
        with pytest.raises(ConfigError, match="no function"):
            call()
    with pytest.raises(ConfigError, match="expected eval_fn"):
        evaluator.set_eval_fn_registry({"function": len})
    evaluator.set_eval_fn_registry(len)
    assert evaluator.get_number_of_eval_functions() == 1
    assert evaluator.evaluate([1, 2]) == 2


def test_an_evaluation_with_arguments():
    assert EvaluationFuncWrapper(lambda model, scale, shift: scale * model + shift, (2, 1)).evaluate(3) == 7
    assert EvaluationFuncWrapper(len).evaluate([1, 2]) == 2


def test_configurations_by_framework():
    assert RTNConfig in config_registry.get_all_config_cls_by_fwk_name("torch")
    assert config_registry.get_cls_configs()["torch"]["gptq"] is GPTQConfig
    assert isinstance(RTNConfig(), BaseConfig)
    assert isinstance(RTNConfig(white_list=["a"]) + GPTQConfig(), ComposableConfig)
    with pytest.raises(ConfigError, match="priority"):
        register_config("torch", "mine", priority=3)


def test_log_and_lazy_imports(caplog):
    assert Logger().get_logger() is logger is logging.getLogger("neural_compressor")
    assert LazyImport("json").dumps([1]) == "[1]"

    @dump_elapsed_time("adding")
    def add(a, b):
        return a + b

    with caplog.at_level(logging.INFO, "neural_compressor"):
        assert add(1, 2) == 3
    assert "adding took 0.00 s" in caplog.text
