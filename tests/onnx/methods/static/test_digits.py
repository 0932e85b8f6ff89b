"""A network that reads handwritten digits keeps doing so."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.files.model_file import read_model, weight_bytes
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_TENSOR, TensorScheme

Kit = SimpleNamespace
_TRAINED = 1200


@pytest.fixture(scope="module")
def network(kit: Kit, digits: tuple[np.ndarray, np.ndarray]) -> ir.Model:
    """Three convolutions with batch norms, one of them beside a shortcut, and a layer on top.

    Trained in float64: in float32 every CPU would round its way to a network of its own, and lose points of its own.
    """
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    convs = nn.ModuleList(
        [nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)]
    )
    norms, top = nn.ModuleList([nn.BatchNorm2d(c.out_channels) for c in convs]), nn.Linear(24, 10).double()
    convs.double()
    norms.double()

    def forward(x: object) -> object:
        a = nn.functional.max_pool2d(torch.relu(norms[0](convs[0](x))), 2)
        b = torch.relu(norms[1](convs[1](a)))
        c = torch.relu(norms[2](convs[2](b)) + b)
        return top(c.mean((2, 3)))

    images = torch.from_numpy(digits[0][:_TRAINED].reshape(-1, 1, 8, 8)).double()
    labels = torch.from_numpy(digits[1][:_TRAINED])
    weights = [*convs.parameters(), *norms.parameters(), *top.parameters()]
    optimizer = torch.optim.Adam(weights, lr=0.01)
    for _ in range(8):
        for rows in torch.randperm(_TRAINED).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(forward(images[rows]), labels[rows]).backward()
            optimizer.step()

    net = kit.Net()
    given = {
        name: net.constant(t.detach().numpy())
        for part, of in (("c", convs), ("n", norms), ("t", top))
        for name, t in ((f"{part}.{n}", t) for n, t in of.state_dict().items())
        if t.dim()
    }

    def layer(x: str, i: int) -> str:
        y = net.op("Conv", x, given[f"c.{i}.weight"], given[f"c.{i}.bias"], pads=[1] * 4)
        return str(
            net.op(
                "BatchNormalization",
                y,
                *(given[f"n.{i}.{p}"] for p in ("weight", "bias", "running_mean", "running_var")),
            )
        )

    a = net.op("MaxPool", net.op("Relu", layer("x", 0)), kernel_shape=[2, 2], strides=[2, 2])
    b = net.op("Relu", layer(a, 1))
    c = net.op("Relu", net.op("Add", layer(b, 2), b))
    flat = net.op("Flatten", net.op("GlobalAveragePool", c))
    return normalise(
        read_model(net.proto({"x": ["n", 1, 8, 8]}, net.op("Gemm", flat, given["t.weight"], given["t.bias"], transB=1)))
    )


def accuracy(model: ir.Model, digits: tuple[np.ndarray, np.ndarray]) -> float:
    images, labels = digits[0][_TRAINED:].reshape(-1, 1, 8, 8), digits[1][_TRAINED:]
    (scores,) = make_session(model, threads=1).run(None, {"x": images})
    return float(np.mean(scores.argmax(axis=1) == labels))


CASES = {
    "default": ({}, {}, {}),
    "integer_ops": ({}, {}, {"quant_format": "QOperator"}),
    "one_scale": ({"granularity": PER_TENSOR}, {}, {}),
    "signed": ({}, {"dtype": dtype("int8"), "symmetric": True}, {}),
    "unsigned_weights": ({"dtype": dtype("uint8")}, {}, {}),
    "reduced": ({"reduce_range": True}, {"reduce_range": True}, {}),
    "sixteen_bits": ({}, {"dtype": dtype("uint16")}, {}),
    "kl": ({}, {"algorithm": "kl"}, {}),
    "percentile": ({}, {"algorithm": "percentile"}, {}),
    "mse": ({"algorithm": "mse"}, {"algorithm": "mse"}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_accuracy_stays_within_a_point(
    kit: Kit, network: ir.Model, digits: tuple[np.ndarray, np.ndarray], case: str
) -> None:
    weight, activation, options = CASES[case]
    before = accuracy(network, digits)
    assert before > 0.9
    plan = kit.plan_for(network, replace(kit.WEIGHT, **weight), replace(kit.ACTIVATION, **activation))
    images = [{"x": image.reshape(1, 1, 8, 8)} for image in digits[0][:100]]
    quantized = quantize_static(network, plan, Samples(kit.Reader(images)), StaticOptions(**options))
    assert accuracy(quantized, digits) >= before - 0.01
    assert weight_bytes(quantized) < 0.4 * weight_bytes(network)


def test_four_bit_weights_keep_most_of_it(kit: Kit, network: ir.Model, digits: tuple[np.ndarray, np.ndarray]) -> None:
    plan = kit.plan_for(network, TensorScheme(dtype("int4"), granularity=kit.WEIGHT.granularity))
    images = [{"x": image.reshape(1, 1, 8, 8)} for image in digits[0][:100]]
    quantized = quantize_static(network, plan, Samples(kit.Reader(images)))
    assert accuracy(quantized, digits) >= accuracy(network, digits) - 0.05
    assert weight_bytes(quantized) < 0.25 * weight_bytes(network)
