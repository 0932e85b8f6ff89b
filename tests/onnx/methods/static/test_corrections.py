"""Biases corrected on data, so that the mean error of each channel is gone; weights corrected to keep their spread."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.methods.static.corrections import SAMPLES
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.quantization import config, quantize
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, TensorScheme

Kit = SimpleNamespace
FORMATS = ("QDQ", "QOperator")


def coarse(*shape: int) -> np.ndarray:
    """A weight with one large value, so that one scale for all of it rounds the rest to a few steps."""
    weight = np.random.default_rng(3).normal(scale=0.05, size=shape) + 0.02
    weight[(0,) * len(shape)] = 5.0
    return weight


def conv_net(kit: Kit, bias: bool) -> ir.Model:
    net = kit.Net()
    rest = [net.constant(np.arange(6) / 8)] if bias else []
    y = net.op("Conv", "x", net.constant(coarse(6, 3, 3, 3)), *rest, pads=[1] * 4)
    return net.model({"x": [1, 3, 12, 12]}, y)


def deep_net(kit: Kit) -> ir.Model:
    net = kit.Net()
    y = net.op("Relu", net.op("Conv", "x", net.constant(coarse(6, 3, 3, 3)), net.weight(6), pads=[1] * 4))
    y = net.op("Conv", y, net.weight(6, 6, 1, 1))
    return net.model({"x": [1, 3, 12, 12]}, y)


NETS: dict[str, Any] = {
    "convolution": lambda kit: conv_net(kit, bias=True),
    "convolution without a bias": lambda kit: conv_net(kit, bias=False),
    "convolutions one behind the other": deep_net,
}


def data(kit: Kit, model: ir.Model, count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{name: x + 8 for name, x in feed.items()} for feed in kit.feeds_of(model, count)]


def quantized(kit: Kit, model: ir.Model, feeds: Any, correct: bool, form: str = "QDQ") -> ir.Model:
    # What is compared computes in float, where nothing overflows.
    weight = TensorScheme(dtype("int8"), symmetric=True, granularity=PER_TENSOR)
    plan = kit.plan_for(model, weight=weight, cpu="vnni")
    options = StaticOptions(quant_format=form, bias_correction=correct)
    return quantize_static(model, plan, Samples(kit.Reader(feeds)), options)


def mean_errors(kit: Kit, model: ir.Model, new: ir.Model, feeds: Any) -> np.ndarray:
    pairs = [(kit.run(model, feed)[0], kit.run(new, feed, "none")[0]) for feed in feeds]
    errors = np.mean([found - exact for exact, found in pairs], axis=0)
    return np.abs(errors.mean(axis=(0, 2, 3)) if errors.ndim == 4 else errors.mean(axis=0))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NETS)
def test_the_mean_error_of_each_channel_is_gone(name: str, form: str, kit: Kit) -> None:
    model = NETS[name](kit)
    feeds = data(kit, model)
    plain, mended = (quantized(kit, model, feeds, correct, form) for correct in (False, True))
    onnx.checker.check_model(ir.to_proto(mended), full_check=True)
    before, after = (mean_errors(kit, model, new, feeds) for new in (plain, mended))
    assert before.max() > 0.02
    assert after.max() < 0.15 * before.max()


@pytest.mark.parametrize("form", FORMATS)
def test_a_new_bias_is_of_integers(form: str, kit: Kit, tmp_path: Any) -> None:
    model = conv_net(kit, bias=False)
    new = quantized(kit, model, data(kit, model), True, form)
    assert [t.dtype for t in new.graph.initializers.values()].count(ir.DataType.FLOAT) == len(
        [name for name in new.graph.initializers if "scale" in name]
    )
    assert kit.executed(new, tmp_path)["QLinearConv"] == 1


def test_ops_that_share_weight_and_bias_get_biases_of_their_own(kit: Kit) -> None:
    net = kit.Net()
    weight, bias = net.constant(coarse(3, 3, 3, 3)), net.constant(np.ones(3))
    first = net.op("Conv", "x", weight, bias, pads=[1] * 4)
    model = net.model({"x": [1, 3, 12, 12]}, net.op("Conv", first, weight, bias, pads=[1] * 4))
    feeds = data(kit, model)
    new = quantized(kit, model, feeds, True)
    convs = [node for node in new.graph if node.op_type == "Conv"]
    codes = [[node.inputs[i].producer().inputs[0] for node in convs] for i in (1, 2)]
    assert codes[0][0] is codes[0][1]
    assert (codes[1][0].const_value.numpy() != codes[1][1].const_value.numpy()).any()
    plain = quantized(kit, model, feeds, False)
    assert mean_errors(kit, model, new, feeds).max() < 0.15 * mean_errors(kit, model, plain, feeds).max()


def test_the_same_data_gives_the_same_model(kit: Kit) -> None:
    model = deep_net(kit)
    first, second = (ir.to_proto(quantized(kit, model, data(kit, model), True)) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


def test_no_more_samples_are_read_than_are_looked_at(kit: Kit) -> None:
    class Counting(kit.Reader):  # type: ignore[name-defined,misc]
        read = 0

        def get_next(self) -> Any:
            self.read += 1
            return super().get_next()

    model = conv_net(kit, bias=True)
    reader = Counting(data(kit, model, 3 * SAMPLES))
    quantize_static(model, kit.plan_for(model), Samples(reader), StaticOptions(bias_correction=True))
    assert reader.read <= 3 * SAMPLES + 1 + SAMPLES


class Once(CalibrationDataReader):
    """Data that is gone once it was read."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> Any:
        return next(self.left, None)


def same(first: ir.Model, second: ir.Model) -> bool:
    return ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()


@pytest.mark.parametrize("what", ["data that cannot be read again", "three samples"])
def test_where_the_data_does_not_admit_it_biases_stay_and_an_explicit_wish_is_an_error(
    what: str, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    model = conv_net(kit, bias=True)
    plan, reader, says = kit.plan_for(model), Once, "rewind"
    feeds = data(kit, model)
    if what == "three samples":
        feeds, reader, says = feeds[:3], kit.Reader, "takes 4 samples; there are 3"

    def made(correct: bool | None) -> ir.Model:
        return quantize_static(model, plan, Samples(reader(feeds)), StaticOptions(bias_correction=correct))

    with caplog.at_level("INFO", logger="neural_compressor"):
        assert same(made(None), made(False))
    assert "biases are not corrected" in caplog.text
    with pytest.raises(CalibrationError, match=says):
        made(True)


def test_a_model_that_does_not_run_in_parts_keeps_the_biases_that_are_left(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """What an op behind the second convolution reads is a sequence from before it, and no array."""
    net = kit.Net()
    first = net.op("Conv", "x", net.constant(coarse(6, 3, 3, 3)), net.weight(6), pads=[1] * 4)
    channels = net.op("SplitToSequence", first, axis=1)
    joined = net.op("ConcatFromSequence", channels, axis=1)
    second = net.op("Conv", joined, net.constant(coarse(6, 6, 1, 1)), net.weight(6))
    last = net.op("Add", second, net.op("SequenceAt", channels, net.constant(np.array(0))))
    model = net.model({"x": [1, 3, 12, 12]}, last)
    feeds = data(kit, model)

    def made(correct: bool | None) -> ir.Model:
        plan = kit.plan_for(model, op_types=["Conv"])
        return quantize_static(model, plan, Samples(kit.Reader(feeds)), StaticOptions(bias_correction=correct))

    with caplog.at_level("INFO", logger="neural_compressor"):
        new = made(None)
    onnx.checker.check_model(ir.to_proto(new), full_check=True)
    exact, found = kit.run(model, feeds[0])[0], kit.run(new, feeds[0])[0]
    assert np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)
    with pytest.raises(CalibrationError, match="does not run alone"):
        made(True)
    assert "does not run alone" in caplog.text


@pytest.mark.parametrize(("size", "few"), [(3, True), (4, False)])
def test_maps_of_few_values_are_left_as_they_are(size: int, few: bool, kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, size, size]}, net.op("Conv", "x", net.constant(coarse(4, 3, 1, 1))))
    feeds = data(kit, model)
    assert same(*(quantized(kit, model, feeds, correct) for correct in (False, True))) is few


def test_by_default_it_is_done(kit: Kit) -> None:
    model = ir.to_proto(conv_net(kit, bias=True))
    feeds = data(kit, conv_net(kit, bias=True))

    def biases(**extra: Any) -> list[np.ndarray]:
        asked = config.StaticQuantConfig(kit.Reader(feeds), quant_format="QDQ", per_channel=False, extra_options=extra)
        new = quantize(model, None, asked)
        return [onnx.numpy_helper.to_array(t) for t in new.graph.initializer if t.data_type == onnx.TensorProto.INT32]

    (usual,), (on,), (off,) = biases(), biases(BiasCorrection=True), biases(BiasCorrection=False)
    assert (usual == on).all()
    assert (on != off).any()


@pytest.mark.parametrize("granularity", [PER_TENSOR, PER_CHANNEL], ids=str)
def test_a_corrected_weight_keeps_its_spread(granularity: Any, kit: Kit) -> None:
    net = kit.Net()
    weight = np.random.default_rng(0).standard_normal((6, 2, 1, 1)).astype(np.float32)
    model = net.model({"x": [1, 4, 6, 6]}, net.op("Conv", "x", net.constant(weight), group=2))
    plan = kit.plan_for(model, weight=TensorScheme(dtype("int4"), granularity=granularity), cpu="vnni")

    def spread(correct: bool) -> np.ndarray:
        options = StaticOptions(named=[name for name, _ in plan], weight_correction=correct)
        new = quantize_static(model, plan, Samples(kit.Reader(kit.feeds_of(model, 1))), options)
        (values,) = (node for node in new.graph if node.op_type == "DequantizeLinear" and node.inputs[0].const_value)
        codes, scale = (value.const_value.numpy() for value in values.inputs[:2])
        floats = codes.astype(np.float32) * scale.reshape(-1, *([1] * 3 if scale.ndim else []))
        return np.std(floats.reshape(weight.shape), axis=None if granularity == PER_TENSOR else (1, 2, 3))

    exact = np.std(weight, axis=None if granularity == PER_TENSOR else (1, 2, 3))
    np.testing.assert_allclose(spread(True), exact, rtol=1e-5)
    assert np.abs(spread(False) - exact).max() > 1e-3


@pytest.mark.parametrize("form", FORMATS)
def test_fit_corrects_biases_on_data_as_quantize_does(form: str, kit: Kit, tmp_path: Any) -> None:
    model, feeds = conv_net(kit, bias=True), data(kit, conv_net(kit, bias=True))

    def fitted(**recipes: Any) -> onnx.ModelProto:
        rule = {"Conv": {"weight": {"granularity": ["per_tensor"]}}}
        conf = PostTrainingQuantConfig(quant_format=form, op_type_dict=rule, recipes=recipes)
        return quantization.fit(ir.to_proto(model), conf, feeds, workspace=tmp_path, quiet=True).model

    def error(proto: onnx.ModelProto) -> float:
        return float(mean_errors(kit, model, read_model(proto), feeds).max())

    asked = config.StaticQuantConfig(kit.Reader(feeds), quant_format=form)
    same_plan = quantize(ir.to_proto(model), None, asked, quiet=True)
    assert same(read_model(fitted()), read_model(same_plan))
    assert same(read_model(fitted(fast_bias_correction=True)), read_model(same_plan))
    assert error(fitted(fast_bias_correction=False)) > 5 * error(fitted())


def test_layers_that_stay_in_float_are_not_corrected(kit: Kit, tmp_path: Any) -> None:
    """Groups of few channels are slower in integers: their weight stays as it is, but for int8 by channel."""
    net = kit.Net()
    inner = net.op("Conv", "x", net.constant(coarse(8, 4, 1, 1)))
    model = net.model({"x": [1, 4, 12, 12]}, net.op("Conv", inner, net.constant(coarse(8, 2, 3, 3)), group=4))
    grouped = list(model.graph)[-1].name
    found = []
    for recipes in ({"weight_correction": True, "fast_bias_correction": True}, {"fast_bias_correction": False}):
        conf = PostTrainingQuantConfig(recipes=recipes, quant_format="QDQ")
        new = quantization.fit(ir.to_proto(model), conf, data(kit, model), workspace=tmp_path, quiet=True).model
        (conv,) = (node for node in new.graph.node if node.name == grouped)
        (weight,) = (
            t for t in new.graph.initializer if t.name == f"{model.graph.node(grouped).inputs[1].name}_quantized"
        )
        found.append((len(conv.input), onnx.numpy_helper.to_array(weight)))
    assert [count for count, _ in found] == [2, 2]  # no bias was added to it
    assert (found[0][1] == found[1][1]).all()
