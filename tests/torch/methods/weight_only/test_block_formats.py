"""MX and NVFP4 weights found by methods: better than rounding to nearest, with and without quantized activations."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, Plan, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.plan_check import check
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    DynamicQuantConfig,
    GPTQConfig,
    MXQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    load,
    quantize,
    save,
)


class Block(nn.Module):
    """Three layers that read one input, of different spread, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, n, bias=False) for n in (64, 32, 32))
        self.o = nn.Linear(64, 64, bias=False)
        with torch.no_grad():
            self.q.weight.mul_(3)
            self.v.weight.mul_(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.o(torch.tanh(self.q(x)) + torch.cat([self.k(x), self.v(x)], -1))


def correlated(rows: int = 96) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    mix = torch.randn(8, 64, generator=generator)
    return 0.7 * torch.randn(rows, 8, generator=generator) @ mix + 0.3 * torch.randn(rows, 64, generator=generator)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).requires_grad_(False)


def found(model: nn.Module, config: object) -> tuple[nn.Module, float]:
    x = correlated()
    done = quantize(copy.deepcopy(model), config, run_fn=lambda prepared: prepared(x), quiet=True)
    for layer in done.modules():
        if isinstance(layer, WeightOnlyLinear):
            layer.exact = True
    with torch.no_grad():
        return done, float((done(x) - model(x)).norm() / model(x).norm())


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mxint4", "mxfp6_e3m2"])
def test_methods_beat_nearest_rounding(model, name) -> None:
    _, nearest = found(model, RTNConfig(dtype=name))
    _, searched = found(model, RTNConfig(dtype=name, scale_search="mse"))
    _, gptq = found(model, GPTQConfig(dtype=name))
    _, learned = found(model, AutoRoundConfig(dtype=name, iters=30))
    assert searched < nearest or name != "nvfp4", "between powers of two there is little to find"
    assert gptq < 0.6 * nearest
    assert learned < 0.6 * nearest


@pytest.mark.parametrize("name", ["fp4", "nvfp4"])
def test_methods_find_weights_beside_quantized_activations(model, name) -> None:
    errors = {}
    for algo in ("minmax", "mse", "gptq", "autoround"):
        done, errors[algo] = found(model, MXQuantConfig(w_dtype=name, act_dtype=name, w_algo=algo, out_dtype="float32"))
        assert type(done[0].q) is QuantLinear
        assert done[0].q.scheme.activation.dtype.name == ("nvfp4" if name == "nvfp4" else "mxfp4")
    assert errors["mse"] < errors["minmax"]
    assert errors["gptq"] < 0.9 * errors["minmax"]
    assert errors["autoround"] < 0.9 * errors["minmax"]


@pytest.mark.parametrize(
    "config",
    [
        RTNConfig(dtype="nvfp4"),
        RTNConfig(dtype="nvfp4", scale_search="importance"),
        GPTQConfig(dtype="nvfp4"),
        AWQConfig(dtype="nvfp4"),
        AutoRoundConfig(dtype="nvfp4", iters=5),
        DynamicQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"),
        StaticQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"),
        AutoRoundConfig(scheme="NVFP4", iters=5),
        AutoRoundConfig(scheme="NVFP4", iters=5, act_dynamic=False),
        MXQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4", w_algo="gptq"),
    ],
    ids=lambda config: config.name,
)
def test_layers_that_engines_fuse_share_the_scale_of_the_tensor(model, config, tmp_path) -> None:
    done, _ = found(model, config)
    for block in done:
        whole = {float(getattr(block, name).weight_array().tensor_scale) for name in "qkv"}
        assert len(whole) == 1
        if block.q.scheme.mode == "static":
            assert len({float(getattr(block, name).input_scale) for name in "qkv"}) == 1
    if not isinstance(config, AWQConfig):  # which scales the weights too
        largest = max(float(getattr(model[0], name).weight.abs().max()) for name in "qkv")
        assert next(iter({float(done[0].q.weight_array().tensor_scale)})) == pytest.approx(largest / 2688, rel=1e-6)
    save(done, tmp_path)
    with torch.no_grad():
        again = load(tmp_path, original_model=copy.deepcopy(model))
        for layer in again.modules():
            if isinstance(layer, WeightOnlyLinear):
                layer.exact = True
        assert torch.equal(again(correlated()), done(correlated()))


def test_a_calibrated_input_cannot_be_changed_by_a_method(model) -> None:
    nvfp4 = TensorScheme(dtype("nvfp4"))
    scheme = OpScheme(nvfp4, nvfp4, "static", Method("gptq", {"hadamard": True}))
    with pytest.raises(ConfigError, match="hadamard=True changes the input"):
        check(model, Plan({("0.q", "Linear"): scheme}))
    moved = Method("gptq", {"hadamard": True, "full_range": False})
    integers = OpScheme(TensorScheme(dtype("int8")), TensorScheme(dtype("uint8"), False), "static", moved)
    with pytest.raises(ConfigError, match="hadamard=True changes the input"):
        check(model, Plan({("0.q", "Linear"): integers}))
