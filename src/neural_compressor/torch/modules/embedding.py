"""Quantized Embedding: rows stay packed, and only those looked up are dequantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme, PackedArray, PerTensor
from neural_compressor.schemes.ranges import scale_granularity
from neural_compressor.torch.modules.base import QUANT_MODULES
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.layer_operator import is_compiled
from neural_compressor.torch.modules.portable import makes_graph
from neural_compressor.torch.modules.weighted import WeightedModule


@QUANT_MODULES.register("Embedding")
class QuantEmbedding(WeightedModule):
    """Replaces ``nn.Embedding``; the output is of the float module's type."""

    replaces: ClassVar[type[nn.Module]] = nn.Embedding
    inputs = ()
    output_type = "dtype"

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        if module.max_norm is not None:
            raise QuantizationError(
                "an Embedding with max_norm rewrites its weight at each call: it cannot be quantized"
            )
        self.num_embeddings, self.embedding_dim = self.weight_shape
        self.padding_idx = module.padding_idx
        self.dtype = module.weight.dtype

    def _keep_input(self, change: InputChange | None) -> None:
        if change:
            raise QuantizationError("the input of an Embedding are indices: they have no channels to scale or turn")

    def _stored_inputs(self) -> tuple[str, ...]:
        return ()

    def _choose_kernel(self, device: str) -> str:
        return "packed rows"  # looking them up needs no kernel of a device

    def forward(self, input: Tensor) -> Tensor:
        if is_compiled():
            return self._as_operator(input)
        flat = input.reshape(-1)
        if not flat.numel():
            rows = torch.empty(0, self.embedding_dim, device=self.weight_packed.device)
        else:
            rows = _rows_of(self._packed(), flat).unpack().dequantize()
        y = rows.reshape(*input.shape, self.embedding_dim).to(self.dtype)
        return y.relu() if self.relu else y

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [inputs[0].new_empty(*inputs[0].shape, self.embedding_dim, dtype=self.dtype)]

    weight_packed: Tensor

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {super().extra_repr()}"


@QUANT_MODULES.register("EmbeddingBag")
class QuantEmbeddingBag(QuantEmbedding):
    """Replaces ``nn.EmbeddingBag``: the rows that a call looks up are dequantized, each once."""

    replaces: ClassVar[type[nn.Module]] = nn.EmbeddingBag

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module, nn.EmbeddingBag)
        self.mode, self.include_last_offset = module.mode, module.include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        has_gradients = per_sample_weights is not None and per_sample_weights.requires_grad and torch.is_grad_enabled()
        if is_compiled() and not has_gradients:
            return self._as_operator(*(x for x in (input, offsets, per_sample_weights) if x is not None))
        if makes_graph():  # how many different rows are looked up is not known there
            places, table, padding = input, self._packed().unpack().dequantize(), self.padding_idx
        else:
            places, table, padding = self._rows_for(input)
        y = F.embedding_bag(
            places,
            table.to(self.dtype),
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )
        return y.relu() if self.relu else y

    def _rows_for(self, input: Tensor) -> tuple[Tensor, Tensor, int | None]:
        """Where each place of ``input`` finds its row, the rows looked up, and which of these is the padding, if any."""
        wanted, places = torch.unique(input, return_inverse=True)
        if not wanted.numel():
            wanted = wanted.new_zeros(1)
        padding = None
        if self.padding_idx is not None and bool((found := wanted == self.padding_idx).any()):
            padding = int(found.nonzero()[0])
        return places, _rows_of(self._packed(), wanted).unpack().dequantize(), padding

    def operator_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [self.forward(inputs[0], **_named(inputs[1:]))]

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        offsets = _named(inputs[1:]).get("offsets")
        bags = inputs[0].shape[0] if offsets is None else offsets.shape[0] - int(self.include_last_offset)
        return [inputs[0].new_empty(bags, self.embedding_dim, dtype=self.dtype)]


def _named(given: Sequence[Tensor]) -> dict[str, Tensor]:
    """What an EmbeddingBag may be called with beside indices, told apart by its type."""
    return {"per_sample_weights" if x.is_floating_point() else "offsets": x for x in given}


def _rows_of(table: PackedArray, indices: Tensor) -> PackedArray:
    """The rows ``indices`` of a packed matrix with the scales that belong to them."""
    shared = isinstance(scale_granularity(table.scheme), PerTensor)
    scale, zero = table.scale, table.zero_point
    if not shared:
        assert isinstance(scale, Tensor)
        scale, zero = scale[indices], None if zero is None else zero[indices]
    return replace(
        table, data=table.data[indices], scale=scale, zero_point=zero, shape=(indices.shape[0], table.shape[1])
    )
