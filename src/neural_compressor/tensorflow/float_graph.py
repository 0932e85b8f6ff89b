"""A float model as the executor and its passes see it: of Keras layers, or of the ops in a LiteRT file.

Tensors go by a number that is theirs in one graph; their names are the same in a copy of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from neural_compressor.algorithms import LayerResult
from neural_compressor.schemes import OpKey, OpScheme, Plan, QParams

Array = np.ndarray[Any, Any]
Calibrate = Callable[[Any], None]
"""Runs calibration data through the model it is given."""
Watchers = Mapping[int, Sequence[Any]]
"""What looks at tensors while data runs, by tensor: objects with ``update(array)``."""


@dataclass(frozen=True)
class Call:
    """One call of an op, which a layer may have several of.

    ``inputs`` are the float tensors that it reads, ``end`` is its output behind the activation that kernels compute with it.
    ``moves`` says that it gives values of its input on, ``one_scale`` that a kernel wants inputs and output in one scale.
    """

    place: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    end: int
    moves: bool = False
    one_scale: bool = False


class Weight(Protocol):
    """A weight as the matrix (outputs, inputs) that the core quantizes."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""

    def matrix(self) -> Array:
        """The weight, one row an output."""

    def assign(self, matrix: Array) -> None:
        """Put ``matrix`` into the graph."""


@dataclass(frozen=True)
class QuantizedGraph:
    """What a quantized model is made of; the model has it as its attribute ``quantization``.

    ``codes`` are the weights by op and tensor, ``ranges`` the scale and zero point of each site by name, ``biases`` those
    that were corrected. ``graph`` is the float graph that was quantized: as simplified, and changed by passes. ``shared``
    says of ops which of their tensors have the scheme of another op.
    """

    plan: Plan
    codes: Mapping[str, Mapping[str, LayerResult]] = field(default_factory=dict)
    ranges: Mapping[str, QParams] = field(default_factory=dict)
    biases: Mapping[str, Array] = field(default_factory=dict)
    graph: Any = None
    shared: Mapping[str, str] = field(default_factory=dict)


class FloatGraph(ABC):
    """What the executor asks of a graph. Ops are objects of the graph, by name and type."""

    kind: ClassVar[str]
    """What such a graph is a graph of, in messages."""
    scalable: ClassVar[tuple[str, ...]]
    """Types of ops whose weights can take up a scale of each input channel."""
    smoothed: ClassVar[tuple[str, ...]]
    """Those that smoothing is about where nothing else is said."""

    @abstractmethod
    def ops(self) -> dict[OpKey, Any]:
        """The ops that can be quantized, in the order they run."""

    @abstractmethod
    def skipped(self) -> dict[OpKey, str]:
        """Why other ops cannot be quantized."""

    @abstractmethod
    def refusal(self, op: Any, scheme: OpScheme) -> str:
        """Why there is no such op with ``scheme`` here; empty where there is."""

    @abstractmethod
    def weights(self, op: Any) -> Mapping[str, Weight]:
        """The weights of an op that are quantized, by the name of the tensor."""

    @abstractmethod
    def bias(self, op: Any) -> Array | None:
        """The bias of an op, where it has one of its own."""

    @abstractmethod
    def channels_mixed(self, op: Any) -> int:
        """How many input channels each output is a sum over; 0 where biases cannot take up what rounding adds."""

    @abstractmethod
    def vectors(self, op: Any) -> Callable[[Array], Array] | str:
        """What makes of a batch of inputs the vectors that the matrix of an op is multiplied with, or why nothing does."""

    @abstractmethod
    def sequence(self) -> list[Call]:
        """Every call of every op, in the order they run."""

    @abstractmethod
    def calls_of(self, op: Any) -> list[Call]:
        """The calls of one op."""

    @abstractmethod
    def tensor_names(self) -> dict[int, str]:
        """What the tensors are called."""

    @abstractmethod
    def watch(self, tensors: Iterable[int]) -> Callable[[Watchers, Calibrate], None]:
        """What runs data through the graph, as its weights are then, and shows some of these tensors to watchers."""

    @abstractmethod
    def copy(self) -> FloatGraph:
        """The graph with ops of its own, which may be changed."""

    @abstractmethod
    def input_reach(self, op: Any) -> Array:
        """The largest magnitude of the weights that read each input channel."""

    @abstractmethod
    def output_reach(self, op: Any) -> Array | None:
        """The largest magnitude of the weights that make each output channel; None of what only normalises."""

    @abstractmethod
    def scale_inputs(self, op: Any, factors: Array) -> None:
        """Multiply the weights that read each input channel."""

    @abstractmethod
    def scale_outputs(self, op: Any, factors: Array) -> None:
        """Multiply what an op gives, channel by channel."""

    @abstractmethod
    def takes_scales(self, op: Any) -> bool:
        """Whether the inputs of an op, one of the :attr:`scalable` types, can be scaled."""

    @abstractmethod
    def maker_of(self, tensor: int) -> Any:
        """The op that can take up factors of the channels of ``tensor``: it makes them for one reader alone, through nothing
        but a ReLU, pooling and the like; None where there is none."""

    @abstractmethod
    def with_scales(self, scales: Mapping[str, Array]) -> FloatGraph:
        """The graph with the inputs of ops, by name, multiplied by factors."""

    @abstractmethod
    def finish(self, parts: QuantizedGraph) -> Any:
        """The quantized model."""

    @abstractmethod
    def arrays(self, name: str) -> dict[str, Array]:
        """The constants of the op called ``name``, by the name of the tensor."""

    @abstractmethod
    def with_arrays(self, arrays: Mapping[str, Array]) -> Any:
        """The model with constants, by ``op.tensor``, written into a copy."""
