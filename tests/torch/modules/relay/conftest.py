"""Quantized models with and without their relayed forwards."""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode

from neural_compressor.torch.adaptor import PyTorchAdaptor

# Weights of 7 bits run on integer kernels whether or not the CPU has VNNI.
INT8 = {
    "weight": {"dtype": "int8", "granularity": "per_channel", "reduce_range": True},
    "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
}


def _quantized(model, x, leave=(), **changes):
    """An int8 model in which all ops but ``leave`` are quantized, calibrated on ``x``."""
    inputs = x if isinstance(x, (list, tuple)) else [x]
    adaptor = PyTorchAdaptor({"dataloader": list(inputs), "example_inputs": inputs[0]})
    ops = [key for key in adaptor.query_fw_capability(model.eval())["opwise"] if key[0] not in leave]
    how = {part: {**INT8[part], **changes.get(part, {})} for part in INT8}
    activation = {"activation": how["activation"]}
    plan = {key: activation if key[1] in ("Add", "Mul") else how for key in ops}
    return adaptor.quantize({"op": plan}, model, list(inputs))


def _without_relays(model):
    """A copy whose modules all run their own forward."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        vars(module).pop("forward", None)
    return plain


class _Counter(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.quantizations = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.quantizations += getattr(func, "__name__", "") == "quantize_per_tensor"
        return func(*args, **(kwargs or {}))


def _quantizations(model, *inputs):
    """How often a forward quantizes a tensor."""
    with torch.no_grad():
        model(*inputs)
        with _Counter() as counter:
            model(*inputs)
    return counter.quantizations


def _decibels(reference, found):
    return float(10 * torch.log10(reference.pow(2).mean() / (reference - found).pow(2).mean().clamp(min=1e-20)))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def quantized():
    return _quantized


@pytest.fixture
def without_relays():
    return _without_relays


@pytest.fixture
def quantizations():
    return _quantizations


@pytest.fixture
def decibels():
    return _decibels
