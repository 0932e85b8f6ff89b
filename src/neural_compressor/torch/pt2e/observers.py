"""Observers in torchao's graphs: ranges by the same algorithms as everywhere, weights rounded by the same schemes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import ObserverBase, PlaceholderObserver

from neural_compressor.errors import CalibrationError, QuantizationError
from neural_compressor.observers import make_observer
from neural_compressor.schemes import OpKey, QParams, QuantizedArray, TensorScheme, choose_qparams
from neural_compressor.torch.modules.kernels.integer import kernel_pairs
from neural_compressor.torch.modules.packed_weight import quantized_matrix

_MIDDLE = 128
"""Signed codes are stored so much higher, as unsigned ones."""


class RangeObserver(ObserverBase):  # type: ignore[misc]
    """Estimates the range of an activation by the algorithm of ``scheme``; torchao asks for scale and zero point."""

    def __init__(self, scheme: TensorScheme, dtype: torch.dtype = torch.uint8, **limits: Any) -> None:
        super().__init__(dtype=dtype, is_dynamic=False)
        self.scheme, self.dtype = scheme, dtype
        self.qscheme = limits.get("qscheme", torch.per_tensor_affine)
        self.quant_min, self.quant_max = limits.get("quant_min", 0), limits.get("quant_max", 255)
        self.where = "an op"
        self.keys: list[OpKey] = []
        self.settled: QParams | None = None
        self.listening = True
        self.seen = 0
        self._observer = make_observer(scheme)

    def forward(self, x: Tensor) -> Tensor:
        """Take ``x`` into account and hand it on."""
        if self.listening and x.numel():
            try:
                self._observer.update(x.detach().float())
            except CalibrationError as error:
                raise CalibrationError(f"{self.where}: {error}") from error
            self.seen += 1
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point of what was seen."""
        if not self.seen:
            raise CalibrationError(
                f"calibration never reached {self.where}: run the prepared model on data before convert"
            )
        found = self.settled or choose_qparams(*self.range(), self.scheme)
        zero_point = 0 if found.zero_point is None else int(found.zero_point)
        if self.scheme.dtype.signed:
            zero_point += _MIDDLE
        return torch.tensor(float(np.asarray(found.scale))), torch.tensor(zero_point)

    def range(self) -> tuple[Any, Any]:
        """From where to where values are rounded."""
        return self._observer.range(self.scheme)


class BatchObserver(PlaceholderObserver):  # type: ignore[misc]
    """Stands where the range is taken from each batch, and has nothing to see."""

    def __init__(self, scheme: TensorScheme, **limits: Any) -> None:
        super().__init__(**limits)
        self.scheme = scheme


class WeightObserver(ObserverBase):  # type: ignore[misc]
    """Puts the codes of a weight into the graph in its place, as ``scheme`` rounds it for ops of type ``kind``."""

    def __init__(self, scheme: TensorScheme, kind: str, dtype: torch.dtype = torch.int8, **limits: Any) -> None:
        super().__init__(dtype=dtype, is_dynamic=False)
        self.scheme, self.kind = scheme, kind
        self.qscheme = limits.get("qscheme", torch.per_channel_symmetric)
        self.ch_axis, self.quant_min, self.quant_max = 0, -128, 127
        self.where = "an op"
        self.keys: list[OpKey] = []
        self.settled: QuantizedArray | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Hand the weight on: it is known already."""
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Not asked for: :meth:`convert` writes both itself."""
        raise QuantizationError("a weight is quantized by convert")

    def convert(self, model: GraphModule, node: Node) -> None:
        """Replace the call of this observer by codes and their dequantization."""
        source = node.args[0]
        assert isinstance(source, Node)
        assert isinstance(source.target, str)
        weight = attribute(model, source.target).detach()
        array = self.quantized(weight)
        codes, scale = as_rows(array, weight)
        graph = model.graph
        more: dict[str, Any] = {} if weight.dtype == torch.float32 else {"out_dtype": weight.dtype}
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        for user in list(node.users):
            # Each call has codes of its own: Inductor takes a weight that two layers read for no constant of either.
            tensors = {"codes": codes.clone(), "scale": scale.clone(), "zero_point": zeros.clone()}
            names = [keep(model, f"{source.target}_{part}", tensor) for part, tensor in tensors.items()]
            with graph.inserting_before(node):
                new = graph.call_function(
                    torch.ops.quantized_decomposed.dequantize_per_channel.default,
                    (*(graph.get_attr(name) for name in names), 0, self.quant_min, self.quant_max, torch.int8),
                    more,
                )
            new.meta = dict(source.meta)
            user.replace_input_with(node, new)
        graph.erase_node(node)

    def quantized(self, weight: Tensor) -> QuantizedArray:
        """The weight as a matrix in codes."""
        if self.settled is not None:
            return self.settled
        matrix = weight.float().flatten(1)
        try:
            return quantized_matrix(matrix, self.scheme, kernel_pairs(self.kind, weight.shape))
        except QuantizationError as error:
            raise QuantizationError(f"{self.where}: {error}") from error


def as_rows(array: QuantizedArray, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in the shape of ``weight``, and a scale for each of its rows, which kernels of Inductor ask for."""
    codes = torch.as_tensor(array.codes).reshape(weight.shape).contiguous()
    scale = torch.as_tensor(array.scale, dtype=torch.float32).reshape(-1)
    return codes, scale.expand(len(weight)).contiguous()


def attribute(model: GraphModule, target: str) -> Tensor:
    """The parameter or buffer of a ``get_attr`` node."""
    owner, _, name = target.rpartition(".")
    found = getattr(model.get_submodule(owner), name)
    assert isinstance(found, Tensor)
    return found


def keep(model: GraphModule, target: str, tensor: Tensor) -> str:
    """Register a buffer, under another name where one is taken by another tensor; returns the name."""
    owner, _, name = target.rpartition(".")
    module = model.get_submodule(owner)
    names = (name if n == 0 else f"{name}_{n}" for n in range(len(module._buffers) + 2))
    free = next(each for each in names if not hasattr(module, each))
    module.register_buffer(free, tensor)
    return f"{owner}.{free}" if owner else free
