"""The same weights under the same configuration become the same in PyTorch and in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from onnx import ModelProto, TensorProto, helper, numpy_helper  # noqa: E402

from neural_compressor.algorithms import ALGORITHMS  # noqa: E402
from neural_compressor.onnx import quantization as in_onnx  # noqa: E402
from neural_compressor.onnx.files.model_file import read_model  # noqa: E402
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader  # noqa: E402
from neural_compressor.onnx.runtime.session import make_session  # noqa: E402
from neural_compressor.schemes import Method  # noqa: E402
from neural_compressor.torch import quantization as in_torch  # noqa: E402
from neural_compressor.torch.modules import WeightOnlyLinear  # noqa: E402

WIDTH, INNER = 64, 96


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def correlated(count: int, seed: int = 0) -> np.ndarray:
    """Inputs that have much in common, and a few that are large."""
    mixed = normal(count, 8, seed=seed) @ normal(8, WIDTH, seed=99) + normal(count, WIDTH, seed=seed + 1)
    mixed[:, ::16] *= 4
    return mixed


SEEN = [correlated(64, seed=s) for s in range(4)]


class Block(torch.nn.Module):
    """Two layers, and the input added to what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, INNER, bias=False), torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


class Network(torch.nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def network(blocks: int) -> tuple[Any, ModelProto]:
    """The same network for both."""
    module, nodes, tensors, value = Network(blocks).eval(), [], [], "x"
    for number, block in enumerate(module.layers):
        for name, seed in (("up", 2 * number), ("down", 2 * number + 1)):
            layer = getattr(block, name)
            layer.weight.data = torch.from_numpy(normal(*layer.weight.shape, seed=seed) / 8)
            tensors.append(numpy_helper.from_array(layer.weight.detach().numpy().T.copy(), f"{number}_{name}"))
        path, out = f"/layers.{number}", f"x{number}"
        nodes += [
            helper.make_node("MatMul", [value, f"{number}_up"], [f"u{number}"], name=f"{path}/up/MatMul"),
            helper.make_node("Relu", [f"u{number}"], [f"r{number}"], name=f"{path}/Relu"),
            helper.make_node("MatMul", [f"r{number}", f"{number}_down"], [f"d{number}"], name=f"{path}/down/MatMul"),
            helper.make_node("Add", [value, f"d{number}"], [out], name=f"{path}/Add"),
        ]
        value = out
    given, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", WIDTH]) for n in ("x", value))
    graph = helper.make_graph(nodes, "network", [given], [result], tensors)
    return module, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Reader(CalibrationDataReader):
    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays, self.place = arrays, 0

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        self.place += 1
        return {"x": self.arrays[self.place - 1]} if self.place <= len(self.arrays) else None

    def rewind(self) -> None:
        self.place = 0


def run_onnx(model: ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(make_session(read_model(model)).run(None, {"x": x})[0])


def in_float32(model: Any) -> Any:
    """The quantized model of either side, without the rounding of inputs that the fast kernels of both do."""
    if isinstance(model, ModelProto):
        for node in model.graph.node:
            for attribute in node.attribute:
                attribute.i = 1 if attribute.name == "accuracy_level" else attribute.i
        return model
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            module.exact = True
    return model


def with_torch(module: Any, config: Any) -> Any:
    def calibrate(model: Any) -> None:
        for x in SEEN:
            model(torch.from_numpy(x))

    return in_torch.quantize(module, config, run_fn=calibrate)


def with_onnx(model: ModelProto, config: Any) -> ModelProto:
    found = in_onnx.quantize(model, None, config, calibration_data_reader=Reader(SEEN))
    assert found is not None
    return found


# What is equal in both: fields of the configuration by the names of either side.
SCHEMES = {
    f"int{bits} {'sym' if symmetric else 'asym'} {size}": (
        {"bits": bits, "use_sym": symmetric, "group_size": size},
        {"weight_bits": bits, "weight_sym": symmetric, "weight_group_size": size},
    )
    for bits, symmetric, size in ((4, True, 32), (4, False, -1), (8, True, -1), (8, False, 32))
} | {"int2 sym 32": ({"bits": 2, "group_size": 32}, {"weight_bits": 2, "weight_group_size": 32})}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("algorithm", "own_torch", "own_onnx"),
    [
        ("RTN", {}, {}),
        ("RTN", {"use_mse_search": True}, {"mse": True}),
        ("GPTQ", {}, {}),
        ("GPTQ", {"act_order": True, "static_groups": True}, {"actorder": True}),
        ("GPTQ", {"correct_upstream": False}, {"correct_upstream": False}),
        ("AWQ", {}, {}),
    ],
    ids=["rtn", "rtn searched", "gptq", "gptq ordered", "gptq as measured", "awq"],
)
def test_a_network_becomes_the_same(
    algorithm: str, own_torch: dict[str, Any], own_onnx: dict[str, Any], scheme: str
) -> None:
    for_torch, for_onnx = SCHEMES[scheme]
    module, model = network(2)
    x = correlated(64, seed=50)
    before = run_onnx(model, x)
    theirs = with_torch(module, getattr(in_torch, f"{algorithm}Config")(**for_torch, **own_torch))
    ours = with_onnx(model, getattr(in_onnx, f"{algorithm}Config")(**for_onnx, **own_onnx))
    expected = in_float32(theirs)(torch.from_numpy(x)).detach().numpy()
    found = run_onnx(in_float32(ours), x)
    # Sums in another order may tip the rounding of a weight, and of those that make up for it.
    share = 1e-3 if algorithm == "RTN" else 0.03
    assert np.abs(found - expected).mean() < share * np.abs(expected - before).mean()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rounding_gives_the_same_codes_and_scales(scheme: str) -> None:
    for_torch, for_onnx = SCHEMES[scheme]
    module, model = network(1)
    weight = with_torch(module, in_torch.RTNConfig(**for_torch)).layers[0].up.linear_weight()
    graph = read_model(with_onnx(model, in_onnx.RTNConfig(**for_onnx))).graph
    node = next(node for node in graph if node.name == "/layers.0/up/MatMul")
    codes, scales = (node.inputs[place].const_value.numpy() for place in (1, 2))
    bits = for_torch["bits"]
    unpacked = np.stack([codes >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], axis=-1)
    rows = weight.out_features
    np.testing.assert_array_equal(unpacked.reshape(rows, -1)[:, : weight.in_features], weight.codes.numpy())
    blocks = scales.size // rows
    expected = weight.scale.numpy().repeat(blocks // weight.scale.shape[1], axis=1)
    np.testing.assert_array_equal(scales.reshape(rows, blocks), expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_hqq_differs_by_the_zero_points_that_fast_kernels_take(bits: int) -> None:
    """MatMulNBits multiplies fast with integer zero points only: in ONNX they are fitted as such."""
    module, model = network(1)
    weight = module.layers[0].up.weight.detach().clone()
    scheme = in_torch.HQQConfig(bits=bits, group_size=32).weight_scheme()
    ours = with_onnx(model, in_onnx.HQQConfig(weight_bits=bits, weight_group_size=32))
    theirs = with_torch(module, in_torch.HQQConfig(bits=bits, group_size=32, quant_zero=False)).layers[0].up
    node = next(node for node in read_model(ours).graph if node.name == "/layers.0/up/MatMul")
    integer = ALGORITHMS["hqq"](weight, scheme, integer_zero=True).array
    assert node.inputs[3].const_value.numpy().dtype == np.uint8
    scales = node.inputs[2].const_value.numpy().reshape(integer.scale.shape)
    np.testing.assert_allclose(scales, integer.scale, rtol=1e-5)
    error = float(((theirs.dequantized_weight() - weight) ** 2).sum())
    assert error < float(((integer.dequantize() - weight) ** 2).sum())


@pytest.mark.parametrize("algorithm", ["RTN", "GPTQ", "AWQ"])
def test_the_defaults_are_the_same(algorithm: str) -> None:
    ours, theirs = (getattr(api, f"{algorithm}Config")() for api in (in_torch, in_onnx))
    assert ours.weight_scheme() == theirs.weight_scheme()
    assert ours.method() == theirs.method() == Method(algorithm.lower())
    changed = {"use_sym": False}, {"weight_sym": False}
    ours, theirs = (
        getattr(api, f"{algorithm}Config")(**given) for api, given in zip((in_torch, in_onnx), changed, strict=True)
    )
    assert ours.method() == theirs.method()
