"""Ranges of tensors, and data that does not fit the model."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError
from neural_compressor.observers import make_observer
from neural_compressor.onnx.methods.static.calibration import calibrate
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import TensorScheme

Kit = SimpleNamespace
ALGORITHMS = ("minmax", "kl", "percentile", "mse", "moving_average")


def scheme(algorithm: str = "minmax") -> TensorScheme:
    return TensorScheme(dtype("uint8"), symmetric=False, algorithm=algorithm)


@pytest.fixture
def model(kit: Kit) -> ir.Model:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 4)))
    return net.model({"x": ["n", 3, 6, 6]}, net.op("Log", net.op("GlobalAveragePool", hidden)))


def calibrated(kit: Kit, model: ir.Model, samples: list[Any], wanted: Any) -> dict[str, tuple[float, float]]:
    return calibrate(model, wanted, Samples(kit.Reader(samples)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ranges_are_those_of_the_tensors_themselves(kit: Kit, model: ir.Model, algorithm: str) -> None:
    names = ["x", "Conv_1_out", "Relu_2_out"]
    samples = kit.feeds_of(model, 5)
    got = calibrated(kit, model, samples, dict.fromkeys(names, scheme(algorithm)))
    session = make_session(model, names[1:])
    for place, name in enumerate(names):
        observer = make_observer(scheme(algorithm))
        if algorithm == "percentile":
            observer.percentile = 99.999
        for sample in samples:
            observer.update(sample["x"] if place == 0 else session.run(None, sample)[place - 1])
        np.testing.assert_allclose(got[name], [float(end) for end in observer.range(scheme(algorithm))], rtol=1e-4)


def test_the_model_is_as_it_was(kit: Kit, model: ir.Model) -> None:
    before = ir.to_proto(model).SerializeToString()
    calibrated(kit, model, kit.feeds_of(model), {"Relu_2_out": scheme(), "Conv_1_out": scheme("kl")})
    assert ir.to_proto(model).SerializeToString() == before


def test_one_pass_is_enough_for_a_reader_that_cannot_be_rewound(kit: Kit, model: ir.Model) -> None:
    class Once:
        def __init__(self) -> None:
            self.left = iter(kit.feeds_of(model))

        def get_next(self) -> Any:
            return next(self.left, None)

    wanted = {"x": scheme("mse"), "Relu_2_out": scheme("minmax"), "Conv_1_out": scheme("kl")}
    assert calibrate(model, wanted, Samples(Once())).keys() == wanted.keys()


@pytest.mark.parametrize("algorithm", ["minmax", "kl"])
def test_memory_does_not_grow_with_the_number_of_samples(kit: Kit, algorithm: str) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 3, 64, 64]}, net.op("Relu", net.conv("x", (3, 8))))

    class Endless:
        def __init__(self, count: int) -> None:
            self.count = count

        def get_next(self) -> Any:
            self.count -= 1
            if self.count < 0:
                return None
            return {"x": np.random.default_rng(self.count).normal(size=(1, 3, 64, 64)).astype(np.float32)}

    def peak(count: int) -> int:
        tracemalloc.start()
        calibrate(model, {"x": scheme(algorithm), "Relu_2_out": scheme(algorithm)}, Samples(Endless(count)))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1)  # what is loaded on first use
    one_tensor = 8 * 64 * 64 * 4
    assert peak(40) < peak(4) + one_tensor


BAD = {
    "no samples": ([], "gave no samples"),
    "a list": ([[1, 2]], "expected inputs by name"),
    "another name": ([{"X": 0}], "has an input 'X'; known: x"),
    "a missing one": ([{}], r"lacks the inputs \['x'\]"),
    "another type": ([{"x": np.zeros((1, 3, 6, 6))}], "is float64, and the model takes float32"),
    "another rank": ([{"x": np.zeros((3, 6, 6), np.float32)}], r"takes \(any, 3, 6, 6\)"),
    "another size": ([{"x": np.zeros((1, 4, 6, 6), np.float32)}], r"has shape \(1, 4, 6, 6\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_does_not_fit(kit: Kit, model: ir.Model, case: str) -> None:
    samples, message = BAD[case]
    with pytest.raises(CalibrationError, match=message):
        calibrated(kit, model, samples, {"Relu_2_out": scheme()})


def test_what_breaks_inside_the_model_names_the_sample(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": ["n", 3]}, net.op("Reshape", "x", net.constant(np.asarray([2, 3])), name="two"))
    good, bad = np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)
    with pytest.raises(CalibrationError, match=r"sample 1.*two"):
        calibrated(kit, model, [{"x": good}, {"x": bad}], {"two_out": scheme()})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_name_tensor_and_sample(kit: Kit, algorithm: str, bad: float) -> None:
    net = kit.Net()
    model = net.model({"x": [4, 50]}, net.op("Relu", net.op("Mul", "x", net.constant(2.0))))
    samples = [{"x": np.ones((4, 50), np.float32)} for _ in range(3)]
    samples[2]["x"][3, 7] = bad  # in the middle: the runtime's own minimum would pass over it
    for wanted in ("Mul_1_out", "x"):
        told = "input 'x' holds NaN in sample 2" if np.isnan(bad) else f"'{wanted}', sample 2: NaN or Inf"
        with pytest.raises(CalibrationError, match=told):
            calibrated(kit, model, samples, {wanted: scheme(algorithm)})


def test_empty_tensors_are_passed_over(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": ["n", 3]}, net.op("Mul", "x", net.constant(2.0)))
    empty, full = np.zeros((0, 3), np.float32), np.float32([[-1, 0, 2]])
    for algorithm in ALGORITHMS:
        wanted = {"Mul_1_out": scheme(algorithm)}
        low, high = calibrated(kit, model, [{"x": empty}, {"x": full}], wanted)["Mul_1_out"]
        assert (low, high) == pytest.approx((-2, 4), rel=0.3)
        with pytest.raises(CalibrationError, match="'Mul_1_out' was empty in all samples"):
            calibrated(kit, model, [{"x": empty}], wanted)


def test_nothing_wanted_needs_no_data(kit: Kit, model: ir.Model) -> None:
    assert calibrated(kit, model, kit.feeds_of(model), {}) == {}
