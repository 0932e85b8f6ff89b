"""What a checkpoint format is: a pure transform between a quantized linear layer and the tensors that store it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from neural_compressor.errors import FormatError
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.registry import Registry
from neural_compressor.schemes import OpScheme
from neural_compressor.schemes.arrays import Array

Layer = LinearWeight | QuantizedLinear
"""A quantized linear layer: integer weights alone, or weights of any type with the way inputs are quantized."""
Spec = LinearSpec | OpScheme
"""How a layer is quantized, as the configuration of a checkpoint says it."""
L = TypeVar("L", bound=Layer)
_KINDS = {LinearWeight: "integer weights alone", QuantizedLinear: "weights in small floats, or quantized inputs too"}


class CheckpointFormat(ABC, Generic[L]):
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
    #: What stands between the name of a layer and those of its tensors.
    separator: ClassVar[str] = "."
    #: What kinds of layers it stores.
    takes: ClassVar[tuple[type[Layer], ...]] = (LinearWeight,)

    def why_not(self, weight: Layer) -> str | None:
        """Why the format cannot store ``weight``; None where it can."""
        if not isinstance(weight, self.takes):
            return f"it stores {' and '.join(_KINDS[kind] for kind in self.takes)}"
        return self._why_not(weight)  # type: ignore[arg-type]

    @abstractmethod
    def _why_not(self, weight: L) -> str | None:
        """:meth:`why_not` of a layer of a kind that it takes."""

    def can_compress(self, weight: Layer) -> bool:
        """Whether the format can store ``weight``."""
        return self.why_not(weight) is None

    @abstractmethod
    def _store(self, weight: L) -> dict[str, Array]:
        """The tensors of a weight that can be stored, without the bias."""

    def compress(self, weight: L, name: str = "") -> dict[str, Array]:
        """The tensors that store ``weight``, by local name."""
        reason = self.why_not(weight)
        if reason is not None:
            raise FormatError(f"the {self.name} format cannot store {layer_called(name)}: {reason}")
        bias = {} if weight.bias is None else {"bias": weight.bias}
        return {**self._store(weight), **bias}

    @abstractmethod
    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> L:
        """The weight that ``tensors`` store."""

    def decompress(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str = "") -> L:
        """The weight that ``tensors`` store; tensors that contradict each other or ``config`` are refused."""
        try:
            return self._read(tensors, config, name)
        except FormatError as error:
            raise FormatError(f"{layer_called(name)} cannot be read from {self.name}: {error}") from error

    @abstractmethod
    def config(self, specs: Mapping[str, Any], ignore: Iterable[str] = (), complete: bool = True) -> dict[str, Any]:
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
        known, between = set(names), self.separator
        found = sorted(name[: -len(self.key) - 1] for name in known if name.endswith(f"{between}{self.key}"))
        wanted = {layer: {part: f"{layer}{between}{part}" for part in (*self.parts, "bias")} for layer in found}
        return {layer: {p: n for p, n in parts.items() if n in known} for layer, parts in wanted.items()}


FORMATS: Registry[CheckpointFormat[Any]] = Registry("checkpoint format", entry_point_group="neural_compressor.formats")


def format_of(config: Mapping[str, Any]) -> CheckpointFormat[Any]:
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
