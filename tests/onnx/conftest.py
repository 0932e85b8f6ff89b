"""Small ONNX models, plans for them, what ONNX Runtime makes of the results, and a classifier of handwritten digits."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from neural_compressor.dtypes import dtype
from neural_compressor.kernel_race import Race, Work
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.graph.sum_order import for_any_cpu
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_CHANNEL, OpScheme, Plan, TensorScheme

Build = Callable[..., onnx.ModelProto]


def _build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, Sequence[Any]],
    constants: Mapping[str, Any],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(a, dtype=np.float32), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


class Told(Race):
    """A race that says what it was told to, of the ops that a key speaks of."""

    def __init__(self, faster_in_float: Callable[[str], bool]) -> None:
        super().__init__(KernelTimings(None))
        self.faster_in_float = faster_in_float
        self.asked: list[str] = []

    def microseconds(self, makers: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
        (in_float, in_integers) = makers
        self.asked.append(in_float.removeprefix("float: "))
        return {in_float: 1.0, in_integers: 2.0 if self.faster_in_float(in_float) else 0.5}


@pytest.fixture(scope="session")
def told() -> type[Told]:
    """``told(faster_in_float)``: a race that measures nothing."""
    return Told


@pytest.fixture(scope="session")
def build() -> Build:
    """``build(nodes, inputs, outputs, constants)``: a model of float32 values."""
    return _build


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images of digits as vectors of 64 numbers up to 1, and what they show."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


@pytest.fixture(scope="session")
def digits_model(build: Build, digits: tuple[np.ndarray, np.ndarray]) -> onnx.ModelProto:
    """A classifier of digits with two layers, called ``hidden`` and ``scores``."""
    network = pytest.importorskip("sklearn.neural_network")
    images, labels = digits
    trained = network.MLPClassifier((32,), random_state=0, max_iter=40, learning_rate_init=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like to train for longer
        trained.fit(images[:1000], labels[:1000])
    (w1, w2), (b1, b2) = trained.coefs_, trained.intercepts_
    # A unit that is always 1 has the second bias as its weights.
    w1, b1, w2 = np.pad(w1, ((0, 0), (0, 1))), np.append(b1, 1), np.vstack([w2, b2])
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="hidden"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="scores"),
    ]
    return build(nodes, {"x": ["n", 64]}, {"y": ["n", 10]}, {"w1": w1, "b1": b1, "w2": w2})


WEIGHT = TensorScheme(dtype("int8"), symmetric=True, granularity=PER_CHANNEL)
ACTIVATION = TensorScheme(dtype("uint8"), symmetric=False)


class Net:
    """A graph written down op by op; each op is called after the order it comes in: ``Conv_1``, ``Relu_2``."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, size: float = 0.3) -> str:
        return self.constant(self.rng.normal(scale=size, size=shape))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, name: str | None = None, **attributes: Any) -> Any:
        name = name or f"{op_type}_{len(self.nodes) + 1}"
        given = [f"{name}_{i}" for i in range(outputs)] if outputs > 1 else [f"{name}_out"]
        self.nodes.append(helper.make_node(op_type, inputs, given, name=name, **attributes))
        return given if outputs > 1 else given[0]

    def conv(self, x: str, channels: tuple[int, int], kernel: int = 3, bias: bool = True, **attributes: Any) -> str:
        weight = self.weight(channels[1], channels[0] // attributes.get("group", 1), kernel, kernel)
        rest = [self.weight(channels[1])] if bias else []
        return self.op("Conv", x, weight, *rest, pads=[kernel // 2] * 4, **attributes)

    def proto(self, inputs: Mapping[str, Sequence[Any]], *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def model(self, inputs: Mapping[str, Sequence[Any]], *outputs: str) -> ir.Model:
        return normalise(read_model(self.proto(inputs, *outputs)))


class Reader(CalibrationDataReader):
    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self.samples = list(samples)
        self.rewind()

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self.left, None)

    def rewind(self) -> None:
        self.left = iter(self.samples)


def plan_for(
    model: ir.Model,
    weight: TensorScheme = WEIGHT,
    activation: TensorScheme = ACTIVATION,
    op_types: Iterable[str] | None = None,
    cpu: str = "any",
) -> Plan:
    """A plan that quantizes all there is, or all of some op types."""
    chosen = {k: i for k, i in quantizable_nodes(model).items() if op_types is None or k[1] in op_types}
    schemes = {k: OpScheme(weight if i.weight else None, activation, "static") for k, i in chosen.items()}
    return Plan({k: for_any_cpu(chosen[k].node, scheme) if cpu == "any" else scheme for k, scheme in schemes.items()})


def feeds_of(model: ir.Model, count: int = 4, seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shapes = {str(v.name): [d if isinstance(d, int) else 2 for d in v.shape or ()] for v in model.graph.inputs}
    return [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(count)]


def run(model: ir.Model, feed: Mapping[str, np.ndarray], level: str = "all") -> list[np.ndarray]:
    results: list[np.ndarray] = make_session(model, level=level, threads=1).run(None, dict(feed))
    return results


def executed(model: ir.Model, folder: Path, level: str = "extended") -> Counter[str]:
    """How often the runtime executes which op type."""
    path = folder / "optimized.onnx"
    make_session(model, level=level, threads=1, optimized_path=str(path))
    return Counter(node.op_type for node in ir.load(path).graph)


def check_close(model: ir.Model, quantized: ir.Model, tolerance: float = 0.1, full_check: bool = True) -> None:
    """The result is a valid model whose outputs are near those of ``model``, and the same at every level."""
    onnx.checker.check_model(ir.to_proto(quantized), full_check=full_check)
    assert [v.name for v in quantized.graph.outputs] == [v.name for v in model.graph.outputs]
    for feed in feeds_of(model, 2, seed=1):
        expected = run(model, feed)
        plain = run(quantized, feed, "none")
        for want, got in zip(expected, plain, strict=True):
            assert want.shape == got.shape
            assert _size(got - want) <= tolerance * _size(want) + 1e-6
        for level in ("basic", "all"):
            for exact, near in zip(plain, run(quantized, feed, level), strict=True):
                # Kernels may round a tie to the other side, which later ops see.
                assert _size(exact - near) <= 0.1 * _size(exact) + 1e-6
                assert np.abs(exact - near).max() <= 0.2 * np.abs(exact).max() + 1e-6


def _size(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(array**2)))


def quantize(model: ir.Model, plan: Plan | None = None, **options: Any) -> ir.Model:
    samples = Samples(Reader(feeds_of(model)))
    return quantize_static(model, plan or plan_for(model), samples, StaticOptions(**options))


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """The functions above, since test folders are no packages to import from."""
    return SimpleNamespace(
        Net=Net,
        Reader=Reader,
        plan_for=plan_for,
        feeds_of=feeds_of,
        run=run,
        executed=executed,
        check_close=check_close,
        quantize=quantize,
        WEIGHT=WEIGHT,
        ACTIVATION=ACTIVATION,
    )
