"""What a checkpoint format is: a pure transform between a quantized linear layer and the tensors that store it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from neural_compressor.errors import FormatError
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.registry import Registry
from neural_compressor.schemes.arrays import Array


class CheckpointFormat(ABC):
    """A stateless transform over the tensors of one layer, NumPy or torch.

    Tensors go by their local names: ``qweight`` for what a checkpoint calls ``model.layers.0.mlp.up_proj.qweight``. The
    ``config`` is the ``quantization_config`` block of ``config.json``; ``name`` is the layer's name, which errors show and
    by which a configuration may treat layers differently.
    """

    #: The name the format is registered under.
    name: ClassVar[str]
    #: The local names of the tensors of a layer, without the bias.
    parts: ClassVar[tuple[str, ...]]
    #: The one of them whose presence says that a layer is stored in this format.
    key: ClassVar[str]

    @abstractmethod
    def why_not(self, weight: LinearWeight) -> str | None:
        """Why the format cannot store ``weight``; None where it can."""

    def can_compress(self, weight: LinearWeight) -> bool:
        """Whether the format can store ``weight``."""
        return self.why_not(weight) is None

    @abstractmethod
    def _store(self, weight: LinearWeight) -> dict[str, Array]:
        """The tensors of a weight that can be stored, without the bias."""

    def compress(self, weight: LinearWeight, name: str = "") -> dict[str, Array]:
        """The tensors that store ``weight``, by local name."""
        reason = self.why_not(weight)
        if reason is not None:
            raise FormatError(f"the {self.name} format cannot store {layer_called(name)}: {reason}")
        bias = {} if weight.bias is None else {"bias": weight.bias}
        return {**self._store(weight), **bias}

    @abstractmethod
    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> LinearWeight:
        """The weight that ``tensors`` store."""

    def decompress(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str = "") -> LinearWeight:
        """The weight that ``tensors`` store; tensors that contradict each other or ``config`` are refused."""
        try:
            return self._read(tensors, config, name)
        except FormatError as error:
            raise FormatError(f"{layer_called(name)} cannot be read from {self.name}: {error}") from error

    @abstractmethod
    def config(
        self, specs: Mapping[str, LinearSpec], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The ``quantization_config`` block for layers quantized as ``specs`` says.

        ``ignore`` names linear layers that stay in float; ``complete`` says that these are all there are, which who has
        only seen the files cannot know: a layer tied to another one is not in them.
        """

    def files(self, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """JSON files besides ``config.json`` that readers of the format look for, by name."""
        return {}

    @abstractmethod
    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether a ``quantization_config`` block is of this format."""

    def layers(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The layers among the tensors of a checkpoint: ``{layer: {local name: full name}}``, the bias included.

        >>> from neural_compressor.formats import FORMATS
        >>> FORMATS["awq"].layers(["a.fc.qweight", "a.fc.scales", "a.fc.bias", "norm.weight"])
        {'a.fc': {'qweight': 'a.fc.qweight', 'scales': 'a.fc.scales', 'bias': 'a.fc.bias'}}
        """
        known = set(names)
        found = sorted(name[: -len(self.key) - 1] for name in known if name.endswith(f".{self.key}"))
        wanted = {layer: {part: f"{layer}.{part}" for part in (*self.parts, "bias")} for layer in found}
        return {layer: {p: n for p, n in parts.items() if n in known} for layer, parts in wanted.items()}


FORMATS: Registry[CheckpointFormat] = Registry("checkpoint format", entry_point_group="neural_compressor.formats")


def format_of(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a ``quantization_config`` block describes.

    >>> format_of({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}).name
    'gptq_v2'
    """
    for name in FORMATS:
        if FORMATS[name].recognises(config):
            return FORMATS[name]
    told = {key: config[key] for key in ("quant_method", "checkpoint_format", "format", "version") if key in config}
    raise FormatError(f"no format that this release reads is described by {told}; it reads {', '.join(FORMATS)}")


def layer_called(name: str) -> str:
    """How errors speak of a layer."""
    return f"layer {name!r}" if name else "the layer"
