"""MXQuantConfig: every type, block size and rounding against the definition of OCP MX v1.0, block by block in Python."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError, FormatError
from neural_compressor.schemes import Plan
from neural_compressor.torch import functional
from neural_compressor.torch.files.checkpoint import CONFIG, WEIGHTS, checksum, sha256
from neural_compressor.torch.modules.half import HalfModule
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    MXQuantConfig,
    StaticQuantConfig,
    convert,
    load,
    prepare,
    quantize,
    save,
)

FLOATS = {
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}
INTEGERS = {"int8": 8, "int4": 4, "int2": 2}
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ELEMENTS = [*INTEGERS, *FLOATS]


def values_of(element: str) -> list[float]:
    """Every value of an element type; an integer of b bits has b - 2 of them behind the point (OCP: int8 is n / 64)."""
    if element in INTEGERS:
        bits = INTEGERS[element]
        return [n / 2 ** (bits - 2) for n in range(-(2 ** (bits - 1)), 2 ** (bits - 1))]
    kind = FLOATS[element]
    codes = np.arange(2 ** ml_dtypes.finfo(kind).bits, dtype=np.uint8).view(kind).astype(np.float64)
    return sorted(set(codes[np.isfinite(codes)].tolist()))


def largest_exponent(element: str) -> int:
    """``emax_elem``: the exponent of the largest normal number."""
    return math.frexp(max(values_of(element)))[1] - 1


def rounded(value: float, element: str, rounding: str) -> float:
    """The element that ``value`` becomes: one of the two beside it, the last one where there is only one."""
    values = values_of(element)
    if value <= values[0] or value >= values[-1]:
        return values[0] if value <= values[0] else values[-1]
    high = next(v for v in values if v >= value)
    low = high if high == value else values[values.index(high) - 1]
    if low == high:
        return value
    if rounding == "floor":
        return low if value > 0 else high
    if value - low != high - value:
        return low if value - low < high - value else high
    if rounding == "nearest":
        return high if value > 0 else low
    return next(v for v in (low, high) if digits(v, element) % 2 == 0)


def digits(value: float, element: str) -> int:
    """The integer that the last digits of a code are."""
    if element in INTEGERS:
        return round(value * 2 ** (INTEGERS[element] - 2))
    return int(np.float32(value).astype(FLOATS[element]).view(np.uint8))


def by_definition(x: torch.Tensor, element: str, block: int, rounding: str = "even") -> torch.Tensor:
    """OCP MX v1.0, 6.3: X = 2^(floor(log2(max |V|)) - emax_elem), P_i = V_i / X quantized, saturating."""
    if element in HALF:
        return x.to(HALF[element]).float()
    rows = []
    for row in x.double().tolist():
        out: list[float] = []
        for start in range(0, len(row), block):
            part = row[start : start + block]
            peak = max(abs(v) for v in part)
            exponent = math.frexp(peak)[1] - 1 if peak else 0
            scale = 2.0 ** max(min(exponent - largest_exponent(element), 127), -127)
            out += [rounded(v / scale, element, rounding) * scale for v in part]
        rows.append(out)
    return torch.tensor(rows, dtype=torch.float64).float()


def net(inputs: int = 72, outputs: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs))
    with torch.no_grad():
        model[0].weight.mul_(torch.exp2(torch.randint(-6, 6, (outputs, inputs))))
        model[0].weight[1, :40] = 0
        model[0].weight[2] = torch.randint(-64, 64, (inputs,)) / 16.0  # many ties
        model[0].weight[3] *= 2.0**-124
    return model.eval()


def inputs(rows: int = 6, count: int = 72) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(rows, count) * torch.exp2(torch.randint(-8, 8, (rows, count)))
    x[0], x[1, 32:64] = 0, torch.randint(-64, 64, (32,)) / 16.0
    return x


def converted(model: nn.Module, config: object, x: torch.Tensor | None = None) -> nn.Module:
    prepared = prepare(copy.deepcopy(model), config)
    if x is not None:
        prepared(x)
    return convert(prepared, quiet=True)


@pytest.mark.parametrize("rounding", ["even", "nearest", "floor"])
@pytest.mark.parametrize("block", [32, 16])
@pytest.mark.parametrize("element", [*ELEMENTS, "float16", "bfloat16"])
def test_weights_and_activations_are_as_defined(element: str, block: int, rounding: str) -> None:
    other = "int8" if element in HALF else element
    config = {"blocksize": block, "round_method": rounding, "out_dtype": "float32"}
    model, x = net(), inputs()
    for weight, activation in ((element, other), (other, element)):
        layer = converted(model, MXQuantConfig(w_dtype=weight, act_dtype=activation, **config))[0]
        assert type(layer) is QuantLinear
        assert torch.equal(layer.dequantized_weight(), by_definition(model[0].weight, weight, block, rounding))
        seen = by_definition(x, activation, block, rounding)
        assert torch.equal(layer._rounded(x), seen)
        assert torch.equal(layer(x), torch.nn.functional.linear(seen, layer.dequantized_weight(), model[0].bias))


def test_dither_takes_one_of_the_two_values_beside_and_has_no_bias() -> None:
    x = torch.rand(64, 320) * 6
    layer = converted(net(320), MXQuantConfig(act_dtype="fp4", round_method="dither"))[0]
    found = layer._rounded(x)
    low, error = by_definition(x, "fp4", 32, "floor"), found - x
    assert bool((found >= low).all())
    assert float(error.abs().max()) < 2
    assert abs(float(error.mean())) < 0.01
    assert torch.equal(found, layer._rounded(x)), "the same input gives the same result"


@pytest.mark.parametrize("act_dtype", ELEMENTS)
def test_a_block_with_nan_or_inf_is_nan_and_others_are_not(act_dtype: str) -> None:
    layer, x = converted(net(96), MXQuantConfig(act_dtype=act_dtype))[0], torch.randn(3, 96)
    whole = layer._rounded(x)
    x[0, 3], x[1, 40], x[2, 95] = torch.nan, torch.inf, -torch.inf
    found = layer._rounded(x)
    bad = torch.zeros(3, 96, dtype=torch.bool)
    bad[0, :32] = bad[1, 32:64] = bad[2, 64:] = True
    assert torch.equal(found.isnan(), bad)
    assert torch.equal(found[~bad], whole[~bad])


@pytest.mark.parametrize(("name", "kind"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
@pytest.mark.parametrize("weight_only", [False, True])
def test_results_are_rounded_to_the_output_type(name: str, kind: torch.dtype, weight_only: bool) -> None:
    model, x = net(64), inputs(count=64)
    exact, rounds = (
        converted(model, MXQuantConfig(weight_only=weight_only, out_dtype=out))[0] for out in ("float32", name)
    )
    if weight_only:
        exact.exact = rounds.exact = True
        assert type(rounds) is WeightOnlyLinear
    assert torch.equal(rounds(x), exact(x).to(kind).float())
    assert not torch.equal(rounds(x), exact(x))
    assert rounds(x.bfloat16()).dtype == torch.bfloat16, "handed on in the type of the model"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"w_dtype": "int2", "act_dtype": "fp4", "round_method": "dither", "blocksize": 24, "out_dtype": "float16"},
        {"w_dtype": "bfloat16", "act_dtype": "fp6_e3m2"},
        {"w_dtype": "fp4", "act_dtype": "float16"},
        {"w_dtype": "nvfp4", "act_dtype": "nvfp4", "w_algo": "mse"},
        {"w_dtype": "fp4", "weight_only": True, "blocksize": 64, "w_algo": "gptq"},
    ],
)
def test_models_come_back_from_files(tmp_path, fields) -> None:
    model, x = net(64), inputs(count=64)
    quantized = converted(model, MXQuantConfig(**fields), x)
    plan = quantized.quantization.plan
    assert Plan.from_json(plan.to_json()) == plan
    save(quantized, tmp_path)
    assert torch.equal(load(tmp_path, original_model=net(64))(x), quantized(x))


def store(folder: Path, tensors: dict[str, torch.Tensor], **said: object) -> None:
    """Other tensors, and other words, in the files of a model, with the checksums of these."""
    save_file(tensors, folder / WEIGHTS)
    config = json.loads((folder / CONFIG).read_text()) | {"sha256": sha256(folder / WEIGHTS), **said}
    (folder / CONFIG).write_text(json.dumps(config | {"checksum": checksum(config)}))


@pytest.mark.parametrize("fields", [{}, {"w_dtype": "int4", "w_algo": "mse"}, {"w_dtype": "fp4"}])
def test_files_whose_scales_are_those_of_the_codes_of_integers_are_read(tmp_path, fields) -> None:
    """Up to version 2 the scale of an int8 that is stored as n was not that of n / 64."""
    quantized, x = converted(net(64), MXQuantConfig(**fields)), inputs(count=64)
    save(quantized, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["0.weight_scale"] -= {"int8": 6, "int4": 2}.get(fields.get("w_dtype", "int8"), 0)
    store(tmp_path, tensors, version=2)
    assert torch.equal(load(tmp_path, original_model=net(64))(x), quantized(x))


@pytest.mark.parametrize(("element", "byte"), [("int8", 255), ("fp8_e4m3", 255), ("nvfp4", 127), ("nvfp4", 0)])
def test_scales_of_blocks_that_are_no_numbers_above_zero_are_refused(tmp_path, element, byte) -> None:
    save(converted(net(64), MXQuantConfig(w_dtype=element, act_dtype=element)), tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["0.weight_scale"][1, 1] = byte
    store(tmp_path, tensors)
    with pytest.raises(FormatError, match=r"'0' .*'weight_scale' holds (NaN or Inf|scales from 0 on)"):
        load(tmp_path, original_model=net(64))


def test_half_precision_for_both_is_a_layer_in_it() -> None:
    layer = converted(net(), MXQuantConfig(w_dtype="float16", act_dtype="float16"))[0]
    assert type(layer) is HalfModule
    assert MXQuantConfig(w_dtype="float16", act_dtype="float16").out_dtype == "float16"


def test_layers_have_their_own_types() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    config = MXQuantConfig(w_dtype="fp4", act_dtype="fp8_e4m3").set_local(
        "2", MXQuantConfig(w_dtype="int4", blocksize=16)
    )
    layers = converted(model, config)
    assert [layers[i].scheme.weight.dtype.name for i in (0, 2)] == ["mxfp4", "mxint4_b16"]
    assert [layers[i].scheme.activation.dtype.name for i in (0, 2)] == ["mxfp8_e4m3", "mxint8_b16"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"w_dtype": "bfloat16", "weight_only": True}, "nothing else would get smaller"),
        ({"act_dtype": "fp4", "weight_only": True}, "act_dtype: got 'fp4'.*leaves activations"),
        ({"w_dtype": "float16", "act_dtype": "bfloat16"}, "has one type"),
        ({"w_dtype": "float16", "act_dtype": "float16", "out_dtype": "bfloat16"}, "out_dtype"),
        ({"w_dtype": "nvfp4", "blocksize": 32}, "nvfp4 has blocksize=16"),
        ({"w_algo": "gptq", "round_method": "floor"}, "round_method: got 'floor'"),
        ({"w_dtype": "float16", "w_algo": "mse"}, "have no scales"),
        ({"w_algo": "awq"}, "w_algo"),
        ({"out_dtype": "int8"}, "out_dtype"),
    ],
)
def test_what_contradicts_itself_is_refused(fields, said) -> None:
    with pytest.raises(ConfigError, match=said):
        MXQuantConfig(**fields)


def test_data_is_asked_for_where_weights_are_found_with_it() -> None:
    with pytest.raises(CalibrationError, match="need calibration"):
        convert(prepare(net(), MXQuantConfig(w_algo="gptq")), quiet=True)


# -- NVFP4 ----------------------------------------------------------------------------------------------------------


def nvfp4_by_loop(x: torch.Tensor, whole: float) -> torch.Tensor:
    """16 values share a scale in e4m3, all of them ``whole``."""
    out = torch.empty_like(x)
    for row, values in enumerate(x.numpy()):
        for start in range(0, len(values), 16):
            part = values[start : start + 16]
            wanted = np.abs(part).max() / np.float32(6) / np.float32(whole)
            scale = np.float32(np.clip(wanted, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn))
            step = (scale if np.abs(part).max() else np.float32(1)) * np.float32(whole)
            elements = np.clip(part / step, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
            out[row, start : start + 16] = torch.from_numpy(elements * step)
    return out


def test_nvfp4_activations_have_the_scale_of_each_input_or_the_calibrated_one() -> None:
    model, x = net(64), torch.randn(4, 64)
    dynamic = converted(model, DynamicQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"))[0]
    assert torch.equal(dynamic._rounded(x), nvfp4_by_loop(x, float(x.abs().max() / 2688)))
    static = converted(model, StaticQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"), x)[0]
    assert float(static.input_scale) == pytest.approx(float(x.abs().max()) / 2688, rel=1e-6)
    other = torch.randn(4, 64) * torch.tensor([0.01, 0.3, 1.0, 50.0])[:, None]
    assert torch.equal(static._rounded(other), nvfp4_by_loop(other, float(static.input_scale)))
    assert torch.equal(
        static.dequantized_weight(), nvfp4_by_loop(model[0].weight.detach(), float(static.weight_tensor_scale))
    )


def test_a_calibrated_nvfp4_model_comes_back_from_files(tmp_path) -> None:
    model, x = net(64), torch.randn(4, 64)
    quantized = converted(model, StaticQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4"), x)
    save(quantized, tmp_path)
    assert torch.equal(load(tmp_path, original_model=net(64))(x), quantized(x))


@pytest.mark.parametrize(("element", "quantized"), [("fp4", False), ("nvfp4", False), ("fp8_e4m3", True)])
def test_the_output_head_stays_in_float_below_8_bits_unless_it_is_named(element: str, quantized: bool) -> None:
    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner, self.head = nn.Embedding(48, 32), nn.Linear(32, 32), nn.Linear(32, 48)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.inner(self.table(ids)))

    config = MXQuantConfig(w_dtype=element, act_dtype=element)
    new = quantize(LanguageModel(), config)
    assert isinstance(new.inner, QuantLinear)
    assert isinstance(new.head, QuantLinear) == quantized
    if not quantized:
        assert "set_local" in new.quantization.reasons["head", "Linear"]
    named = MXQuantConfig(w_dtype=element, act_dtype=element).set_local("head", MXQuantConfig(w_dtype=element))
    assert isinstance(quantize(LanguageModel(), named).head, QuantLinear)


@pytest.mark.parametrize("w_algo", ["minmax", "mse", "gptq", "autoround"])
def test_products_without_a_weight_stay_in_float_with_the_reason_whatever_finds_weights(w_algo: str) -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.product = nn.Linear(32, 32), functional.MatMul()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.product(self.fc(x), x.transpose(-1, -2))

    config = MXQuantConfig(w_dtype="fp4", act_dtype="fp4", w_algo=w_algo)
    model = quantize(Products().eval(), config, run_fn=lambda m: m(torch.randn(2, 40, 32)), quiet=True)
    assert isinstance(model.fc, QuantLinear)
    assert "MatMul" in model.quantization.reasons[("product", "MatMul")]


@pytest.mark.parametrize("w_dtype", ["int8", "fp8_e4m3", "fp4", "nvfp4"])
def test_a_trace_of_torch_computes_the_same(w_dtype: str) -> None:
    layer = quantize(
        nn.Sequential(nn.Linear(48, 8)).eval(), MXQuantConfig(w_dtype=w_dtype, act_dtype=w_dtype), quiet=True
    )
    with torch.no_grad():
        traced = torch.jit.trace(layer, torch.randn(3, 48))
        x = torch.randn(3, 48)
        assert torch.equal(traced(x), layer(x))
