"""Quantized LSTM and GRU: int8 with dynamic activations, or weights of any type in a float recurrence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils.rnn import PackedSequence

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme, QuantizedArray, TensorScheme, in_pairs
from neural_compressor.torch.modules.activation import as_kernels_read
from neural_compressor.torch.modules.base import QUANT_MODULES, QuantModule, finite
from neural_compressor.torch.modules.kernels import fbgemm
from neural_compressor.torch.modules.kernels.integer import fits_kernel, takes_int8
from neural_compressor.torch.modules.layer_operator import call_layer, is_traced
from neural_compressor.torch.modules.packed_weight import buffer_names, check_pairs, keep_packed, packed_array
from neural_compressor.torch.modules.portable import dequantized, is_leaving
from neural_compressor.torch.modules.weighted import signed_codes

Hidden = Any
"""The state of the recurrence: a tensor (GRU) or a pair of tensors (LSTM)."""


class QuantRecurrent(QuantModule):
    """What LSTM and GRU share: their weights, one matrix a layer, direction and side, and how sequences come in."""

    inputs = ()
    gates = 1

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module, nn.RNNBase)
        if module.proj_size:
            raise QuantizationError(
                f"{self.op_type} with projections (proj_size={module.proj_size}) cannot be quantized"
            )
        if scheme.weight is None or scheme.weight.is_float:
            raise QuantizationError(f"a quantized {self.op_type} needs a quantized weight type")
        if relu:
            raise QuantizationError(f"{self.op_type} has no relu to fuse")
        self.weight_scheme: TensorScheme = scheme.weight
        self.input_size, self.hidden_size, self.num_layers = module.input_size, module.hidden_size, module.num_layers
        self.batch_first, self.bidirectional = module.batch_first, module.bidirectional
        self.dropout, self.has_bias = float(module.dropout), bool(module.bias)

    # -- weights ----------------------------------------------------------------------------------------------------

    @property
    def directions(self) -> int:
        """Two where the sequence is also read backwards."""
        return 2 if self.bidirectional else 1

    def cells(self) -> list[str]:
        """Endings of the weight names, as in ``weight_ih_l0_reverse``."""
        ends = ("", "_reverse")[: self.directions]
        return [f"l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def weight_shapes(self) -> dict[str, tuple[int, int]]:
        """The weight matrices by name."""
        shapes = {}
        for cell in self.cells():
            inside = self.input_size if cell.startswith("l0") else self.hidden_size * self.directions
            shapes[f"weight_ih_{cell}"] = (self.gates * self.hidden_size, inside)
            shapes[f"weight_hh_{cell}"] = (self.gates * self.hidden_size, self.hidden_size)
        return shapes

    def _bias_names(self) -> tuple[str, ...]:
        return tuple(f"bias_{side}_{cell}" for cell in self.cells() for side in ("ih", "hh")) if self.has_bias else ()

    def _stored(self) -> tuple[str, ...]:
        return *(part for name in self.weight_shapes() for part in buffer_names(name)), *self._bias_names()

    def _quantize(self, module: nn.Module) -> None:
        for name in self.weight_shapes():
            matrix = finite(getattr(module, name), name)
            keep_packed(self, name, matrix, self.weight_scheme, in_pairs(matrix.shape[1]))
        for name in self._bias_names():
            self.register_buffer(name, finite(getattr(module, name), name).clone())

    def _restore(self, module: nn.Module, state: Mapping[str, Tensor]) -> None:
        super()._restore(module, state)
        for name, shape in self.weight_shapes().items():
            check_pairs(packed_array(self, name, self.weight_scheme, shape), in_pairs(shape[1]))
            self._check_shape(name.replace("weight", "bias"), shape[:1])

    def _arrays(self) -> dict[str, QuantizedArray]:
        shapes = self.weight_shapes().items()
        return {name: packed_array(self, name, self.weight_scheme, shape).unpack() for name, shape in shapes}

    def dequantized_weights(self) -> dict[str, Tensor]:
        """The weight matrices the op computes with, float32, by the names of the float module."""
        return {name: array.dequantize() for name, array in self._arrays().items()}

    # -- the kernel -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        super()._settle()
        activation = self.scheme.activation
        if activation is not None and (activation.symmetric or not fits_kernel(self.op_type, self.scheme)):
            raise QuantizationError(
                f"{self.op_type} runs with int8 weights and dynamic asymmetric 8-bit activations, or weight_only; "
                f"it cannot run {self.scheme.to_dict()}"
            )

    def _why_no_kernel(self) -> str:
        if self.scheme.mode == "weight_only":
            return "its weights are dequantized for a float recurrence; approach='dynamic' has an int8 kernel"
        return f"{super()._why_no_kernel()}; until then the recurrence is in float, and inputs are not rounded"

    def _prepack(self) -> list[Any]:
        assert self.scheme.activation is not None
        make = torch.ops.quantized.make_quantized_cell_params_dynamic
        sides = {}
        for name, array in self._arrays().items():
            bias = self._buffers.get(name.replace("weight", "bias"))
            bias = torch.zeros(array.shape[0]) if bias is None else bias
            sides[name] = fbgemm.pack_linear(*signed_codes(array), bias), bias
        cells = []
        for cell in self.cells():
            (ih, bias_ih), (hh, bias_hh) = sides[f"weight_ih_{cell}"], sides[f"weight_hh_{cell}"]
            cells.append(make(ih, hh, bias_ih, bias_hh, self.scheme.activation.reduce_range))
        return cells

    def _run(self, x: Tensor, sizes: Tensor | None, hidden: Hidden) -> tuple[Any, ...]:
        """The recurrence over ``x``, whose rows are grouped by ``sizes`` where it is a packed sequence."""
        if sizes is None and is_traced(x):
            return tuple(call_layer([x, *_listed(hidden)], self._number))
        if self._looks_at(x) and not math.isfinite(float(x.sum())):
            x = as_kernels_read(x, fixed_range=False)
            if bool(x.isnan().any()):
                return tuple(y.fill_(torch.nan) for y in self.empty_outputs([x, *_listed(hidden)]))
        where = () if sizes is None else (sizes,)
        shape = (self.num_layers, self.dropout, self.training, self.bidirectional)
        end = (self.batch_first,) if sizes is None else ()
        if self.simulated or is_leaving():
            weights = self._float_weights()
            flat = [self._tensor(weights, name, x.dtype) for cell in self.cells() for name in self._names(cell)]
            found: tuple[Any, ...] = self._float_op(x, *where, hidden, flat, self.has_bias, *shape, *end)
            return found
        return self._integer_op(x, *where, hidden, self.prepacked(), True, *shape, *end)

    def _looks_at(self, x: Tensor) -> bool:
        """Whether ``x`` has a range to be rounded over, and values that can be looked at."""
        return self.scheme.activation is not None and x.numel() > 0 and not is_leaving() and not is_compiling()

    def _float_weights(self) -> dict[str, Tensor]:
        """The weight matrices, written in operators that a graph can store where one leaves this process."""
        if not is_leaving() or not takes_int8(self.weight_scheme):
            return self.dequantized_weights()
        return {name: dequantized(*signed_codes(array)) for name, array in self._arrays().items()}

    def operator_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        x, *state = inputs
        return list(self._run(x, None, tuple(state) if len(state) > 1 else state[0]))

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        x, *state = inputs
        return [x.new_empty(*x.shape[:-1], self.hidden_size * self.directions), *(s.new_empty(s.shape) for s in state)]

    def _names(self, cell: str) -> tuple[str, ...]:
        kinds = ("weight", "bias") if self.has_bias else ("weight",)
        return tuple(f"{kind}_{side}_{cell}" for kind in kinds for side in ("ih", "hh"))

    def _tensor(self, weights: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> Tensor:
        return (weights[name] if name in weights else self.get_buffer(name)).to(dtype)

    def _float_op(self, *args: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _integer_op(self, *args: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    # -- sequences --------------------------------------------------------------------------------------------------

    def forward(self, input: Tensor | PackedSequence, hx: Hidden | None = None) -> tuple[Any, Hidden]:
        if isinstance(input, PackedSequence):
            return self._packed_sequence(input, hx)
        batch_axis = 0 if self.batch_first else 1
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(batch_axis)
            hx = None if hx is None else _each(hx, lambda h: h.unsqueeze(1))
        y, hidden = self._cast_and_run(input, None, hx, input.shape[batch_axis])
        if not batched:
            return y.squeeze(batch_axis), _each(hidden, lambda h: h.squeeze(1))
        return y, hidden

    def _packed_sequence(self, x: PackedSequence, hx: Hidden | None) -> tuple[PackedSequence, Hidden]:
        order, back = x.sorted_indices, x.unsorted_indices
        if hx is not None and order is not None:
            hx = _each(hx, lambda h: h.index_select(1, order))
        y, hidden = self._cast_and_run(x.data, x.batch_sizes, hx, int(x.batch_sizes[0]))
        if back is not None:
            hidden = _each(hidden, lambda h: h.index_select(1, back))
        return PackedSequence(y, x.batch_sizes, order, back), hidden

    def _cast_and_run(self, x: Tensor, sizes: Tensor | None, hx: Hidden | None, batch: int) -> tuple[Tensor, Hidden]:
        inside = x.dtype if self.simulated else torch.float32
        values = x if self.simulated else x.detach().float().contiguous()
        if hx is None:
            hx = self._zeros(
                torch.zeros(self.num_layers * self.directions, batch, self.hidden_size, dtype=inside, device=x.device)
            )
        y, *hidden = self._run(values, sizes, _each(hx, lambda h: h.to(inside).contiguous()))
        state = tuple(hidden) if len(hidden) > 1 else hidden[0]
        return y.to(x.dtype), _each(state, lambda h: h.to(x.dtype))

    def _zeros(self, zeros: Tensor) -> Hidden:
        return zeros

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, {super().extra_repr()}"


def _listed(hidden: Hidden) -> list[Tensor]:
    return list(hidden) if isinstance(hidden, (tuple, list)) else [hidden]


def _each(hidden: Hidden, change: Any) -> Hidden:
    return tuple(change(h) for h in hidden) if isinstance(hidden, (tuple, list)) else change(hidden)


@QUANT_MODULES.register("LSTM")
class QuantLSTM(QuantRecurrent):
    """Replaces ``nn.LSTM``."""

    replaces = nn.LSTM
    gates = 4

    def _zeros(self, zeros: Tensor) -> Hidden:
        return zeros, zeros

    def _float_op(self, *args: Any) -> tuple[Any, ...]:
        return torch.lstm(*args)

    def _integer_op(self, *args: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = torch.quantized_lstm(*args, dtype=torch.qint8, use_dynamic=True)
        return found


@QUANT_MODULES.register("GRU")
class QuantGRU(QuantRecurrent):
    """Replaces ``nn.GRU``."""

    replaces = nn.GRU
    gates = 3

    def _float_op(self, *args: Any) -> tuple[Any, ...]:
        return torch.gru(*args)

    def _integer_op(self, *args: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = torch.quantized_gru(*args)
        return found
