"""The contract: its defaults, and a suite that notices when an adaptor breaks it."""

import copy

import numpy as np
import pytest
import test_tinynet
from tinynet.adaptor import TinyNetAdaptor

from neural_compressor.adaptor import ADAPTORS, Adaptor, OpRecord, adaptor_for
from neural_compressor.errors import ConfigError
from neural_compressor.testing import AdaptorContract


class Minimal(Adaptor):
    """Implements what an adaptor must, and nothing else."""

    @classmethod
    def handles(cls, model):
        return isinstance(model, Model)

    def query_fw_capability(self, model): ...

    def quantize(self, tune_cfg, model, dataloader=None, q_func=None): ...

    def predict(self, model, inputs):
        return inputs

    def save(self, model, path): ...

    def load(self, path, model): ...

    def model_size(self, model): ...


class Model:
    def __init__(self):
        self.weights = [1.0]


def test_adaptor_has_to_implement_the_abstract_methods():
    with pytest.raises(TypeError, match="quantize"):
        type("Half", (Adaptor,), {})()


def test_defaults():
    adaptor, model = Minimal({"batch_size": 4}), Model()
    assert adaptor.summary(model) == []
    assert adaptor.evaluate(model, [(1, 2)]) == 0
    assert adaptor.tuning_cfg_to_fw({"op": {}, "calib_sampling_size": 9})["calib_iteration"] == 3
    assert adaptor.quantize_config["device"] == "CPU"


@pytest.mark.parametrize(
    ("ability", "arguments"),
    [
        ("train", ([], {}, None)),
        ("prepare_training", ({},)),
        ("convert", ("a", "b")),
        ("quantize_input", ()),
        ("inspect_tensor", ([],)),
        ("set_tensor", ({},)),
        ("convert_bf16", ()),
    ],
)
def test_optional_abilities_say_that_they_are_not_offered(ability, arguments):
    with pytest.raises(NotImplementedError, match=f"Minimal does not offer '{ability}'"):
        getattr(Minimal(), ability)(Model(), *arguments)


def test_adaptor_is_chosen_by_the_model(monkeypatch):
    monkeypatch.setitem(ADAPTORS._items, "minimal", Minimal)
    assert adaptor_for(Model()) is Minimal
    with pytest.raises(ConfigError, match=r"builtins\.dict.*minimal"):
        adaptor_for({})


def test_record_is_plain_data():
    record = OpRecord("fc", "Linear", "int8", activation="uint8", mode="static", kernel="onednn")
    assert OpRecord(**record.to_dict()) == record


# -- the suite notices ----------------------------------------------------------------------------------------------


class ChangesTheModel(TinyNetAdaptor):
    def quantize(self, tune_cfg, model, dataloader=None, q_func=None):
        model["fc1"].weight *= 1.5
        return super().quantize(tune_cfg, model, dataloader, q_func)


class Random(TinyNetAdaptor):
    def quantize(self, tune_cfg, model, dataloader=None, q_func=None):
        quantized = super().quantize(tune_cfg, model, dataloader, q_func)
        quantized["fc2"].bias += np.random.default_rng().normal(size=4).astype(np.float32)
        return quantized


class QuantizesNothing(TinyNetAdaptor):
    def quantize(self, tune_cfg, model, dataloader=None, q_func=None):
        return copy.deepcopy(model)


class ForgetsFp32(TinyNetAdaptor):
    def query_fw_capability(self, model):
        capability = super().query_fw_capability(model)
        capability["opwise"] = {key: configs[:-1] for key, configs in capability["opwise"].items()}
        return capability


class OffersNonsense(TinyNetAdaptor):
    def query_fw_capability(self, model):
        capability = super().query_fw_capability(model)
        for configs in capability["opwise"].values():
            configs[0]["weight"]["scheme"] = ["sym", "upside_down"]
        return capability


class OtherOpTypes(TinyNetAdaptor):
    def get_optype_wise_ability(self, details):
        return {}


class IgnoresTheTuningConfiguration(TinyNetAdaptor):
    def quantize(self, tune_cfg, model, dataloader=None, q_func=None):
        scheme = next(iter(tune_cfg["op"].values()))
        return super().quantize({"op": dict.fromkeys(self._all(model), scheme)}, model, dataloader, q_func)

    def _all(self, model):
        return self.query_fw_capability(model)["opwise"]


class ReadsEverything(TinyNetAdaptor):
    def tuning_cfg_to_fw(self, tune_cfg):
        return {**super().tuning_cfg_to_fw({**tune_cfg, "calib_sampling_size": 10**6})}


class LosesRanges(TinyNetAdaptor):
    def load(self, path, model):
        loaded = super().load(path, model)
        for layer in loaded:
            layer.qparams = None
        return loaded


class StoresFloats(TinyNetAdaptor):
    def model_size(self, model):
        return 1000


class GivesNoReasons(TinyNetAdaptor):
    def summary(self, model):
        return [OpRecord(**{**record.to_dict(), "reason": ""}) for record in super().summary(model)]


class HidesOps(TinyNetAdaptor):
    def summary(self, model):
        return super().summary(model)[1:]


class EvaluatesTooMuch(TinyNetAdaptor):
    def evaluate(self, model, dataloader, *args, iteration=-1, **kwargs):
        return super().evaluate(model, dataloader, *args, **kwargs)


class ForgetsTheMeasurer(TinyNetAdaptor):
    def evaluate(self, model, dataloader, *args, measurer=None, **kwargs):
        return super().evaluate(model, dataloader, *args, **kwargs)


class SetsInPlace(TinyNetAdaptor):
    def set_tensor(self, model, tensor_dict):
        changed = super().set_tensor(model, tensor_dict)
        model.layers = changed.layers
        return changed


class TakesAnyOp(TinyNetAdaptor):
    def _check(self, plan): ...


BROKEN = {
    ChangesTheModel: "test_quantize_leaves_the_model_as_it_was",
    Random: "test_quantize_is_deterministic",
    QuantizesNothing: "test_quantized_model_is_close_to_the_float_one_and_not_equal",
    ForgetsFp32: "test_every_op_can_stay_in_fp32",
    OffersNonsense: "test_every_option_is_a_scheme",
    OtherOpTypes: "test_optypewise_agrees_with_opwise",
    IgnoresTheTuningConfiguration: "test_only_ops_in_the_tuning_configuration_are_quantized",
    ReadsEverything: "test_calibration_reads_no_more_than_it_is_asked_to",
    StoresFloats: "test_quantized_model_is_smaller",
    GivesNoReasons: "test_summary_tells_of_every_op_and_why_it_is_in_float",
    HidesOps: "test_summary_tells_of_every_op_and_why_it_is_in_float",
    EvaluatesTooMuch: "test_evaluate_stops_after_iteration_batches",
    ForgetsTheMeasurer: "test_evaluate_post_processes_and_measures",
    SetsInPlace: "test_set_tensor_changes_a_copy",
    TakesAnyOp: "test_an_op_the_model_lacks_is_an_error_that_names_it",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda adaptor: adaptor.__name__)
def test_suite_notices(broken):
    suite = type("Suite", (test_tinynet.TestTinyNet,), {"make_adaptor": lambda self: broken()})()
    with pytest.raises((AssertionError, ConfigError, pytest.fail.Exception)):
        getattr(suite, BROKEN[broken])()


def test_suite_notices_a_model_that_changes_on_disk(tmp_path):
    suite = type("Suite", (test_tinynet.TestTinyNet,), {"make_adaptor": lambda self: LosesRanges()})()
    with pytest.raises(AssertionError):
        suite.test_saved_model_predicts_the_same_when_loaded(tmp_path)


def test_suite_says_what_has_to_be_supplied():
    for name in ("make_adaptor", "make_model", "make_dataloader", "make_metric"):
        with pytest.raises(NotImplementedError):
            getattr(AdaptorContract(), name)()
