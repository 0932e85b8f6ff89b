"""The contract of an adaptor as a test suite: subclass it, say how to make a model and its data, inherit the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_compressor.adaptor.capability import is_float_config
from neural_compressor.errors import NeuralCompressorError
from neural_compressor.schemes import OpScheme
from neural_compressor.testing.adaptor_abilities import AbilityContract
from neural_compressor.testing.doubles import CountingLoader, CountingMetric, Measurer
from neural_compressor.testing.options import (
    choices,
    default_tune_cfg,
    float_choice,
    kind_of,
    offers,
    quantizable,
    static_choices,
)

FLOATS = ("fp32", "bf16", "fp16")


class AdaptorContract(AbilityContract):
    """What every adaptor must do.

    Subclass it as ``class TestMyAdaptor(AdaptorContract)`` and override the four ``make_`` methods. The data loader
    gives at least four batches of ``(inputs, labels)`` and can be iterated over again; models made twice are equal.
    """

    # -- capability -------------------------------------------------------------------------------------------------

    def test_handles_its_own_models_only(self) -> None:
        handles = type(self.make_adaptor()).handles
        assert handles(self.make_model()) is True
        assert handles(object()) is False

    def test_capability_has_a_list_of_configs_for_each_op(self) -> None:
        opwise = self.make_adaptor().query_fw_capability(self.make_model())["opwise"]
        assert len(opwise) >= 2
        for (name, op_type), configs in opwise.items():
            assert (type(name), type(op_type), type(configs)) == (str, str, list)
            assert all(isinstance(config, dict) for config in configs)

    def test_every_op_can_stay_in_fp32(self) -> None:
        for key, configs in self.make_adaptor().query_fw_capability(self.make_model())["opwise"].items():
            floats = [config["activation"]["dtype"] for config in configs if is_float_config(config)]
            assert "fp32" in floats, f"{key} offers {floats}"

    def test_some_op_can_be_quantized(self) -> None:
        assert quantizable(self.make_adaptor().query_fw_capability(self.make_model()))

    def test_every_option_is_a_scheme(self) -> None:
        for key, configs in self.make_adaptor().query_fw_capability(self.make_model())["opwise"].items():
            for config in configs:
                for choice in choices(config):
                    scheme = OpScheme.from_dict(choice)
                    assert OpScheme.from_dict(scheme.to_dict()) == scheme, f"{key}: {choice}"
                    assert scheme.is_float == is_float_config(config)

    def test_optypewise_agrees_with_opwise(self) -> None:
        capability = self.make_adaptor().query_fw_capability(self.make_model())
        assert set(capability["optypewise"]) == {op_type for _, op_type in capability["opwise"]}
        for op_type, ability in capability["optypewise"].items():
            offered = [c for (_, kind), configs in capability["opwise"].items() if kind == op_type for c in configs]
            assert ability in offered

    def test_capability_is_the_same_when_asked_again(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        assert adaptor.query_fw_capability(model) == adaptor.query_fw_capability(model)

    def test_blocks_and_skipped_name_ops(self) -> None:
        capability = self.make_adaptor().query_fw_capability(self.make_model())
        assert {key for block in capability.get("blocks", []) for key in block} <= set(capability["opwise"])
        assert all(reason for reason in capability.get("skipped", {}).values())

    # -- timing -----------------------------------------------------------------------------------------------------

    def test_one_thread_computes_the_same_and_is_left_again(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        before = self.predictions(adaptor, model)
        for _ in range(2):
            with adaptor.on_one_thread([model]) as alone:
                assert type(alone) is bool
                inside = self.predictions(adaptor, model)
            np.testing.assert_allclose(inside, before, atol=1e-4 * np.abs(before).max())
        np.testing.assert_array_equal(self.predictions(adaptor, model), before)

    # -- quantize ---------------------------------------------------------------------------------------------------

    def test_quantize_leaves_the_model_as_it_was(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        before, identity = self.predictions(adaptor, model), adaptor.fingerprint(model)
        assert self.quantized(adaptor, model) is not model
        np.testing.assert_array_equal(self.predictions(adaptor, model), before)
        assert adaptor.fingerprint(model) == identity == adaptor.fingerprint(self.make_model())

    def test_quantized_model_is_close_to_the_float_one_and_not_equal(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        reference, actual = self.predictions(adaptor, model), self.predictions(adaptor, self.quantized(adaptor, model))
        assert actual.shape == reference.shape
        assert 0 < np.linalg.norm(actual - reference) < 0.5 * np.linalg.norm(reference)

    def test_quantize_is_deterministic(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        first = self.predictions(adaptor, self.quantized(adaptor, model))
        np.testing.assert_array_equal(self.predictions(adaptor, self.quantized(adaptor, model)), first)
        fresh = self.make_adaptor()
        np.testing.assert_array_equal(self.predictions(fresh, self.quantized(fresh, self.make_model())), first)

    def test_each_offered_mode_and_precision_runs(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        opwise = adaptor.query_fw_capability(model)["opwise"]
        examples = {kind_of(key, c): (key, c) for key, configs in opwise.items() for c in configs if any(choices(c))}
        for key, config in examples.values():
            quantized = self.quantized(adaptor, model, {"op": {key: next(choices(config))}})
            assert np.isfinite(self.predictions(adaptor, quantized)).all(), f"{key}: {config}"

    def test_float_plan_computes_what_the_model_computes(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        ops = {key: float_choice("fp32", c) for key, c in adaptor.query_fw_capability(model)["opwise"].items()}
        reference = self.predictions(adaptor, model)
        actual = self.predictions(adaptor, self.quantized(adaptor, model, {"op": ops}))
        np.testing.assert_allclose(actual, reference, atol=1e-4 * np.abs(reference).max())

    def test_only_ops_in_the_tuning_configuration_are_quantized(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        ops = default_tune_cfg(adaptor.query_fw_capability(model))["op"]
        key = next(key for key, choice in ops.items() if not OpScheme.from_dict(choice).is_float)
        quantized = self.quantized(adaptor, model, {"op": {key: ops[key]}})
        assert set(adaptor.quantize_config["op_wise_config"]) == {key[0]}
        records = {(record.name, record.op_type): record for record in adaptor.summary(quantized)}
        assert [k for k, record in records.items() if record.precision not in FLOATS] == [key]

    def test_hand_written_tuning_configuration_needs_no_query(self) -> None:
        model = self.make_model()
        ops = default_tune_cfg(self.make_adaptor().query_fw_capability(model))["op"]
        adaptor = self.make_adaptor()
        quantized = adaptor.quantize({"op": ops}, model, self.make_dataloader())
        expected = self.quantized(self.make_adaptor(), model)
        np.testing.assert_array_equal(self.predictions(adaptor, quantized), self.predictions(adaptor, expected))

    def test_q_func_calibrates_in_place_of_the_data_loader(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        tune_cfg = {**default_tune_cfg(adaptor.query_fw_capability(model)), "calib_sampling_size": 10**6}
        by_data = self.quantized(adaptor, model, tune_cfg)
        by_func = adaptor.quantize(tune_cfg, model, q_func=lambda prepared: self.predictions(adaptor, prepared))
        np.testing.assert_array_equal(self.predictions(adaptor, by_func), self.predictions(adaptor, by_data))

    def test_calibration_reads_no_more_than_it_is_asked_to(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        adaptor.info["batch_size"] = 1
        loader = CountingLoader(self.make_dataloader())
        total = sum(1 for _ in self.make_dataloader())
        tune_cfg = {**default_tune_cfg(adaptor.query_fw_capability(model)), "calib_sampling_size": 1}
        adaptor.quantize(tune_cfg, model, loader)
        assert adaptor.quantize_config["calib_iteration"] == 1
        assert 1 <= loader.count < total

    def test_empty_calibration_data_is_an_error(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        ops = static_choices(adaptor.query_fw_capability(model))
        if ops:
            with pytest.raises(NeuralCompressorError):
                adaptor.quantize({"op": ops}, model, [])

    def test_an_op_the_model_lacks_is_an_error_that_names_it(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        (_, op_type), choice = next(iter(default_tune_cfg(adaptor.query_fw_capability(model))["op"].items()))
        with pytest.raises(NeuralCompressorError, match="no_such_op"):
            self.quantized(adaptor, model, {"op": {("no_such_op", op_type): choice}})

    def test_tuning_cfg_to_fw_dispatches_quantized_ops(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        opwise = adaptor.query_fw_capability(model)["opwise"]
        ops = default_tune_cfg({"opwise": opwise})["op"]
        in_bf16 = next((key for key, c in opwise.items() if len(c) > 2 and offers(c, "bf16")), None)
        if in_bf16 is not None:
            ops[in_bf16] = float_choice("bf16", opwise[in_bf16])
        config = adaptor.tuning_cfg_to_fw({"op": ops})
        assert config is adaptor.quantize_config
        assert set(config) >= {"device", "calib_iteration", "advance", "op_wise_config"}
        assert type(config["calib_iteration"]) is int
        assert config["calib_iteration"] >= 1
        dispatched = {name for (name, _), choice in ops.items() if not OpScheme.from_dict(choice).is_float}
        assert set(config["op_wise_config"]) == dispatched
        for per_channel, algorithm, asymmetric, bits in config["op_wise_config"].values():
            assert (type(per_channel), type(algorithm), type(asymmetric), type(bits)) == (bool, str, bool, int)
        assert adaptor.bf16_ops == ([] if in_bf16 is None else [in_bf16])

    # -- evaluate ---------------------------------------------------------------------------------------------------

    def test_evaluate_returns_a_number_a_list_or_zero(self) -> None:
        adaptor, model, data = self.make_adaptor(), self.make_model(), self.make_dataloader()
        expected = self.make_metric()
        for inputs, labels in data:
            expected.update(adaptor.predict(model, inputs), labels)
        assert adaptor.evaluate(model, data, metrics=[self.make_metric()]) == expected.result()
        assert adaptor.evaluate(model, data, metrics=[self.make_metric(), CountingMetric()]) == [
            expected.result(),
            sum(1 for _ in data),
        ]
        assert adaptor.evaluate(model, data) == 0

    def test_evaluate_stops_after_iteration_batches(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        assert adaptor.evaluate(model, self.make_dataloader(), metrics=[CountingMetric()], iteration=2) == 2

    def test_evaluate_post_processes_and_measures(self) -> None:
        adaptor, model, measurer = self.make_adaptor(), self.make_model(), Measurer()
        seen: list[Any] = []
        metric = CountingMetric(seen)
        adaptor.evaluate(
            model,
            self.make_dataloader(),
            postprocess=lambda pair: ("processed", pair[1]),
            metrics=[metric],
            measurer=measurer,
            iteration=3,
        )
        assert seen == ["processed"] * 3
        assert measurer.calls == ["start", "end"] * 3

    def test_evaluate_writes_event_files(self, tmp_path: Path) -> None:
        reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        adaptor, model = self.make_adaptor(), self.make_model()
        adaptor.info["workspace"] = str(tmp_path)
        value = adaptor.evaluate(
            model, self.make_dataloader(), metrics=[self.make_metric()], tensorboard=True, fp32_baseline=True
        )
        events = reader.EventAccumulator(str(tmp_path / "runs" / "eval" / "baseline")).Reload()
        (tag,) = events.Tags()["scalars"]
        assert events.Scalars(tag)[0].value == pytest.approx(float(value), rel=1e-6)

    # -- what is kept and told --------------------------------------------------------------------------------------

    def test_saved_model_predicts_the_same_when_loaded(self, tmp_path: Path) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        quantized = self.quantized(adaptor, model)
        for _ in range(2):
            adaptor.save(quantized, tmp_path / "saved")
        fresh = self.make_adaptor()
        loaded = fresh.load(tmp_path / "saved", self.make_model())
        np.testing.assert_array_equal(self.predictions(fresh, loaded), self.predictions(adaptor, quantized))

    def test_loading_what_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(NeuralCompressorError):
            self.make_adaptor().load(tmp_path / "nothing", self.make_model())

    def test_quantized_model_is_smaller(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        assert 0 < adaptor.model_size(self.quantized(adaptor, model)) < adaptor.model_size(model)

    def test_summary_tells_of_every_op_and_why_it_is_in_float(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        capability = adaptor.query_fw_capability(model)
        ops = default_tune_cfg(capability)["op"]
        last = list(ops)[-1]
        ops[last] = float_choice("fp32", capability["opwise"][last])
        records = {(r.name, r.op_type): r for r in adaptor.summary(self.quantized(adaptor, model, {"op": ops}))}
        assert set(records) >= {*capability["opwise"], *capability.get("skipped", {})}
        for key, record in records.items():
            scheme = OpScheme.from_dict(ops[key]) if key in ops else OpScheme()
            assert record.precision == scheme.precision
            assert record.mode == scheme.mode
            assert bool(record.reason) == (scheme.is_float or record.simulated), f"{key}: {record}"
