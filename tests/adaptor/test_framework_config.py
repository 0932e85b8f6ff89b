"""A tuning configuration in the terms a framework's quantizer takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.adaptor.framework_config import to_framework_config
from neural_compressor.errors import ConfigError


def tensor(dtype, scheme="sym", granularity="per_tensor", algorithm="minmax", **more):
    return {"dtype": dtype, "scheme": scheme, "granularity": granularity, "algorithm": algorithm, **more}


OPS = {
    ("conv", "Conv2d"): {
        "weight": tensor("int4", granularity="per_channel"),
        "activation": tensor("uint4", algorithm="kl", quant_mode="static"),
    },
    ("fc", "Linear"): {"weight": tensor("int8"), "activation": tensor("uint8", "asym", quant_mode="dynamic")},
    ("proj", "Linear"): {
        "weight": tensor("int3", "asym", "per_group", "mse", group_size=32),
        "activation": {"dtype": "fp32", "quant_mode": "weight_only"},
    },
    ("add", "Add"): {"activation": tensor("uint8", "asym", algorithm="percentile", quant_mode="static")},
    ("head", "Linear"): {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}},
    ("body", "Linear"): {"weight": {"dtype": "bf16"}, "activation": {"dtype": "bf16"}},
    ("half", "Linear"): {"weight": {"dtype": "fp16"}, "activation": {"dtype": "fp16"}},
}


def test_quantized_ops_are_dispatched_and_floats_are_not():
    config, bf16_ops = to_framework_config({"op": OPS, "calib_sampling_size": 100}, {"batch_size": 2})
    assert config == {
        "device": "CPU",
        "calib_iteration": 50,
        "advance": {},
        "op_wise_config": {
            "conv": (True, "kl", False, 4),
            "fc": (False, "minmax", True, 8),
            "proj": (True, "mse", True, 3),
            "add": (False, "percentile", True, 8),
        },
    }
    assert bf16_ops == [("body", "Linear")]


@given(st.integers(1, 5000), st.integers(1, 300))
def test_iterations_cover_the_samples_and_no_batch_more(samples, batch_size):
    tune_cfg = {"op": {}, "calib_sampling_size": samples}
    iterations = to_framework_config(tune_cfg, {"batch_size": batch_size})[0]["calib_iteration"]
    assert (iterations - 1) * batch_size < samples <= iterations * batch_size


def test_defaults_are_a_hundred_samples_one_by_one_on_the_cpu():
    config, _ = to_framework_config({"op": {}}, {})
    assert (config["calib_iteration"], config["device"]) == (100, "CPU")
    assert to_framework_config({"op": {}}, {"device": "gpu"})[0]["device"] == "GPU"


@pytest.mark.parametrize("batch_size", [-1, 2.5, "8"])
def test_batch_size_has_to_be_a_positive_integer(batch_size):
    with pytest.raises(ConfigError, match="batch_size"):
        to_framework_config({"op": {}}, {"batch_size": batch_size})


def test_op_with_a_mode_and_nothing_to_quantize():
    choice = {"activation": {"dtype": "fp32", "quant_mode": "static"}}
    with pytest.raises(ConfigError, match="neither its weight nor its activation"):
        to_framework_config({"op": {("a", "Add"): choice}}, {})
