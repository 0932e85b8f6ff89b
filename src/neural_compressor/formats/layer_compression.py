"""Linear layers of a checkpoint, quantized one by one as they are read, and the configuration that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neural_compressor.formats.base import CheckpointFormat
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.schemes.arrays import Array


class LayerCompression:
    """The transform for :func:`quantize_checkpoint` that stores layers in a format, and its ``config`` and ``files``.

    ``quantize(layer, weight)`` gives the quantized weight of a layer, or None for one that stays in float. What the format
    cannot store stays in float too, and :attr:`refused` says why.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.formats import FORMATS
    >>> from neural_compressor.schemes import PerGroup, TensorScheme, quantize
    >>> scheme = TensorScheme(dtype("int4"), True, PerGroup(32))
    >>> rtn = LayerCompression(FORMATS["gptq"], lambda _, w: LinearWeight.from_quantized(quantize(w, scheme)))
    >>> sorted(rtn("a.fc.weight", np.ones((32, 64), np.float32)))
    ['a.fc.g_idx', 'a.fc.qweight', 'a.fc.qzeros', 'a.fc.scales']
    """

    def __init__(self, format: CheckpointFormat, quantize: Callable[[str, Array], LinearWeight | None]) -> None:
        self.format = format
        self.quantize = quantize
        #: How each layer that was quantized is.
        self.specs: dict[str, LinearSpec] = {}
        #: The matrices that stay in float.
        self.kept: list[str] = []
        #: Why those do that were to be quantized.
        self.refused: dict[str, str] = {}

    def __call__(self, name: str, tensor: Array) -> dict[str, Array]:
        """The tensors that take the place of one."""
        layer, _, part = name.rpartition(".")
        if part != "weight" or len(tensor.shape) != 2:
            return {name: tensor}
        weight = self.quantize(layer, tensor)
        reason = None if weight is None else self.format.why_not(weight)
        if reason is not None:
            self.refused[layer] = reason
        if weight is None or reason is not None:
            self.kept.append(layer)
            return {name: tensor}
        self.specs[layer] = weight.spec
        return {f"{layer}.{part}": array for part, array in self.format.compress(weight, layer).items()}

    def config(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The content of ``config.json`` with the block that describes what was quantized."""
        return {**settings, "quantization_config": self.format.config(self.specs, self.kept, complete=False)}

    def files(self, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The further JSON files of the format."""
        return self.format.files(settings["quantization_config"])
