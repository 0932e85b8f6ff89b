"""Data types that a third party registers, of classes of this toolkit and of its own, in every place that takes one."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from neural_compressor.adaptor import ADAPTORS
from neural_compressor.algorithms import ALGORITHMS, InputStatistics
from neural_compressor.dtypes import BlockType, CodebookType, DType, IntType, dtype, register_dtype
from neural_compressor.errors import ConfigError
from neural_compressor.observers import OBSERVERS, make_observer
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.testing import DTypeContract

GROUP = 16


@dataclass(frozen=True)
class Powers(DType):
    """Zero and powers of two; says what its codes stand for, and nothing else."""

    name: str
    bits: int

    @cached_property
    def code_values(self):
        sizes = [2.0 ** (i - 3) for i in range((1 << (self.bits - 1)) - 1)]
        return (0.0, *sizes, float("nan"), *(-size for size in sizes))


@dataclass(frozen=True)
class BalancedInt(DType):
    """Integers with as many codes below zero as above, which kernels and zero points may be used with."""

    bits: int

    @property
    def name(self):
        return f"own_balanced{self.bits}"

    @cached_property
    def is_integer(self):
        return True

    @cached_property
    def code_values(self):
        top = (1 << (self.bits - 1)) - 1
        return (*range(top + 1), float("nan"), *range(-top, 0))


@dataclass(frozen=True)
class Quarters(DType):
    """Blocks of multiples of a quarter, with an unsigned float of 6 bits for a scale."""

    name: str
    block_size: int
    scale_type: DType

    @property
    def bits(self):
        return 3

    @cached_property
    def code_values(self):
        return tuple(i / 4 for i in range(-3, 4))

    @cached_property
    def element_type(self):
        return CodebookType(f"{self.name}_element", self.code_values)


@dataclass(frozen=True)
class FloatScaled(DType):
    """Blocks with scales in float32."""

    name: str
    block_size: int

    @property
    def bits(self):
        return 2

    @cached_property
    def code_values(self):
        return (-1.0, -0.25, 0.25, 1.0)

    @cached_property
    def element_type(self):
        return CodebookType(f"{self.name}_element", self.code_values)


PLAIN = [
    IntType(6),
    CodebookType("own_five", (-1.0, -0.4, 0.0, 0.4, 1.0)),
    Powers("own_powers_of_two", 4),
    BalancedInt(4),
    BalancedInt(8),
]
BLOCKS = [
    BlockType("own_codebook_blocks", CodebookType("own_four", (-1.0, -0.3, 0.3, 1.0)), GROUP, dtype("fp8_e4m3")),
    Quarters("own_quarters", GROUP, dtype("uint6")),
    FloatScaled("own_float_scaled", GROUP),
]
every = pytest.mark.parametrize("kind", [*PLAIN, *BLOCKS], ids=lambda kind: kind.name)
plain = pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)


@pytest.fixture(autouse=True)
def _registered():
    for kind in (*PLAIN, *BLOCKS):
        register_dtype(kind, replace=True)


@every
class TestContract(DTypeContract):
    @pytest.fixture(autouse=True)
    def _kind(self, kind):
        self.kind = kind

    def make_dtype(self):
        return self.kind


def on_grid(values: np.ndarray, scale: np.ndarray, kind: DType) -> np.ndarray:
    """The values of ``kind`` times ``scale`` nearest to ``values``, by trying all."""
    grid = np.asarray(kind.element_type.grid, dtype=np.float64)
    tried = np.abs(values[..., None] / scale[..., None] - grid)
    return grid[tried.argmin(axis=-1)] * scale


def weight(outputs: int = 8, inputs: int = 64) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32)


def scheme(kind: DType) -> TensorScheme:
    return TensorScheme(kind, granularity=PerGroup(GROUP))


# -- algorithms ------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("name", ["rtn", "gptq", "awq"])
def test_algorithms_take_it(name: str, kind: DType) -> None:
    statistics = InputStatistics()
    statistics.update(np.random.default_rng(1).standard_normal((128, 64)).astype(np.float32))
    result = ALGORITHMS[name](weight(), scheme(kind), statistics)
    numbers = result.array.dequantize()
    assert numbers.shape == (8, 64)
    for group in np.asarray(numbers).reshape(-1, GROUP):
        assert len(np.unique(group)) <= len(kind.element_type.grid)


@plain
@pytest.mark.parametrize("algorithm", OBSERVERS.names())
def test_observers_find_ranges_for_it(algorithm: str, kind: DType) -> None:
    observer = make_observer(TensorScheme(kind, algorithm=algorithm))
    observer.update(np.random.default_rng(2).standard_normal(4096).astype(np.float32))
    low, high = observer.range(TensorScheme(kind, algorithm=algorithm))
    assert low < -1 < 1 < high


# -- torch -----------------------------------------------------------------------------------------------------------


def linear():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))


@every
def test_torch_weight_only(kind: DType, tmp_path) -> None:
    import torch

    from neural_compressor.torch.quantization import RTNConfig, convert, load, prepare, save

    model = linear()
    floats = model[0].weight.detach().numpy().astype(np.float64).reshape(32, -1, GROUP)
    config = RTNConfig(dtype=kind.name, group_size=GROUP, use_full_range=False)
    quantized = convert(prepare(model, config))
    found = quantized[0].dequantized_weight().numpy().reshape(floats.shape)
    if kind.scale_type is None:
        reach = kind.max if kind.is_integer else kind.peak
        scale = np.broadcast_to(np.abs(floats).max(-1, keepdims=True) / reach, floats.shape)
        assert np.allclose(found, on_grid(floats, scale, kind), atol=1e-6)
    assert all(len(np.unique(group)) <= len(kind.element_type.grid) for group in found.reshape(-1, GROUP))
    x = torch.randn(4, 64)
    save(quantized, str(tmp_path / "saved"))
    assert torch.equal(load(str(tmp_path / "saved"), original_model=linear())(x), quantized(x))


@plain
def test_torch_learned_rounding(kind: DType) -> None:
    import torch

    from neural_compressor.torch.quantization import AutoRoundConfig, quantize

    x = torch.randn(8, 64)
    config = AutoRoundConfig(dtype=kind.name, group_size=GROUP, iters=3, nsamples=8, seqlen=1, batch_size=2)
    quantized = quantize(linear(), config, run_fn=lambda model: [model(row[None]) for row in x])
    found = quantized[0].dequantized_weight().numpy().reshape(-1, GROUP)
    assert all(len(np.unique(group)) <= len(kind.grid) for group in found)


def test_torch_runs_integers_of_another_class_in_integer_kernels() -> None:
    from neural_compressor.torch.modules.kernels.kernel_codes import code_bits

    assert {code_bits(stored(kind)) for kind in (BalancedInt(8), IntType(8))} == {8}
    assert code_bits(stored(Powers("own_powers_of_two", 4))) is None


def stored(kind: DType):
    import torch

    from neural_compressor.schemes import quantize
    from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight

    found = StoredWeight.of(quantize(torch.from_numpy(weight()), scheme(kind)).pack())
    found.check()
    return found


def op(kind: DType, mode: str) -> dict:
    tensor = {"dtype": kind.name, "scheme": "sym", "granularity": "per_tensor", "algorithm": "minmax"}
    return {"weight": {**tensor, "granularity": "per_channel"}, "activation": {**tensor, "quant_mode": mode}}


@plain
def test_torch_static(kind: DType) -> None:
    import torch

    from neural_compressor.torch.adaptor import PyTorchAdaptor

    model, x = linear(), torch.randn(16, 64)
    data = [(x, torch.zeros(16))]
    ops = {("0", "Linear"): op(kind, "static"), ("2", "Linear"): {"weight": {"dtype": "fp32"}}}
    quantized = PyTorchAdaptor({"dataloader": data}).quantize({"op": ops, "calib_sampling_size": 16}, model, data)
    assert quantized[0].scheme.weight.dtype == quantized[0].scheme.activation.dtype == kind

    def rounded(values: torch.Tensor, reach: torch.Tensor) -> np.ndarray:
        peak = kind.max if kind.is_integer else kind.peak
        array = values.detach().numpy().astype(np.float64)
        return on_grid(array, np.broadcast_to((reach / peak).detach().numpy(), array.shape), kind)

    w, bias = model[0].weight, model[0].bias.detach().numpy()
    by_hand = rounded(x, x.abs().max()) @ rounded(w, w.abs().amax(1, keepdim=True)).T + bias
    assert np.allclose(quantized[0](x).detach().numpy(), np.maximum(by_hand, 0), atol=1e-4)


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_torch_dynamic_in_blocks(kind: DType) -> None:
    import torch

    from neural_compressor.torch.adaptor import PyTorchAdaptor

    model, x = linear(), torch.randn(16, 64)
    ops = {("0", "Linear"): op(kind, "dynamic"), ("2", "Linear"): {"weight": {"dtype": "fp32"}}}
    quantized = PyTorchAdaptor({"dataloader": [(x, 0)]}).quantize({"op": ops}, model, [(x, 0)])
    assert quantized[0].scheme.activation.dtype == kind
    assert torch.isfinite(quantized(x)).all()


# -- ONNX ------------------------------------------------------------------------------------------------------------


@every
def test_onnx_weight_only(kind: DType) -> None:
    onnx = pytest.importorskip("onnx")
    from neural_compressor.onnx.files.model_file import read_model
    from neural_compressor.onnx.runtime.session import make_session

    floats = weight(128, 256)
    x, y = (onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["n", 256]), ("y", ["n", 128])))
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(floats.T.copy(), "w")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    alone = {"weight": {**op(kind, "static")["weight"], "granularity": "per_group", "group_size": GROUP}}
    plan = {"op": {("product", "MatMul"): {**alone, "activation": {"dtype": "fp32", "quant_mode": "weight_only"}}}}
    adaptor = ADAPTORS["onnxrt"]({})
    quantized = adaptor.quantize(plan, model)
    (record,) = adaptor.summary(quantized)
    assert (record.precision, record.simulated) == (kind.name, not kind.is_integer)
    assert kind.is_integer or f"no kernel multiplies with {kind.name}" in record.reason
    values = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    wanted = values @ np.asarray(ALGORITHMS["rtn"](floats, scheme(kind), None).dequantize()).T
    found = make_session(read_model(quantized)).run(None, {"x": values})[0]
    # Integer kernels take inputs in int8, rounded in blocks.
    assert np.abs(found - wanted).max() < (0.02 if kind.is_integer else 1e-5) * np.abs(wanted).max()
    assert quantized.ByteSize() < model.ByteSize() * 0.35


# -- what is no data type --------------------------------------------------------------------------------------------


def test_a_class_that_does_not_say_what_its_codes_stand_for_is_refused() -> None:
    @dataclass(frozen=True)
    class Silent(DType):
        name: str
        bits: int

    with pytest.raises(ConfigError, match=r"'silent'.*Silent.*code_values"):
        register_dtype(Silent("silent", 3))
    with pytest.raises(ConfigError, match="DType"):
        register_dtype("int3")  # type: ignore[arg-type]


def test_channels_of_a_codebook_have_scales_of_their_own() -> None:
    result = ALGORITHMS["rtn"](weight(), TensorScheme(PLAIN[1], granularity=PER_CHANNEL), None)
    assert result.array.scale.shape == (8,)
