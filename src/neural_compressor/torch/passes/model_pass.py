"""What acts on a whole model, before its ops are quantized or on the quantized model: the passes of a plan, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry
from neural_compressor.schemes import OpScheme, Pass, Plan
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.passes.fold import Structure, fold
from neural_compressor.torch.passes.survey import Survey
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, call_block
from neural_compressor.validation import explain


class PassOptions(BaseModel):
    """The options of a pass; an unknown name or a bad value is a :class:`ConfigError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class PassState:
    """A model on its way through the passes of a plan.

    ``survey`` is what was seen of the model as it came, on all data: names of modules stay what they were. ``structure`` is
    what passes before this one made of it. ``calls`` are those that calibration made of the model, up to a limit: they
    hold inputs alone. ``changes`` is for passes to fill: what the quantized op of a name does to its input first, while the
    float one stays as it is. So is ``settled``: layers whose biases were found together with their weights. ``floats`` is
    the float model that was quantized, for passes that compare with it.
    """

    model: nn.Module
    plan: Plan
    survey: Survey | None = None
    structure: Structure = field(default_factory=Structure)
    calls: Sequence[Arguments] = ()
    changes: dict[str, InputChange] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    floats: nn.Module | None = None

    def replay(self) -> Iterator[Any]:
        """Make the calls again, of the model as it is now: the output of each, one at a time."""
        for call in self.calls:
            yield call_block(self.model, call)


class ModelPass:
    """One pass of one plan that is carried out; a child names its options and does either step, or both.

    >>> class Halve(ModelPass):
    ...     moves_ranges = True
    ...     def before(self, state):
    ...         state.model.weight.data *= 0.5
    >>> _ = PASSES.add("halve", Halve)
    >>> read_pass(Pass("halve", {"by": 2}))
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: the pass halve has no options; leave out by
    >>> _ = PASSES._items.pop("halve")
    """

    Options: ClassVar[type[PassOptions]] = PassOptions
    #: Whether it looks at ``survey`` or ``calls``, so that the model has to run on data first.
    sees_data: ClassVar[bool] = False
    #: Whether of the data it looks at ``calls`` alone, so that nothing has to be watched while that runs.
    calls_alone: ClassVar[bool] = False
    #: Whether ops receive other values after :meth:`before`, so that ranges are those of the changed model alone.
    moves_ranges: ClassVar[bool] = False
    #: What is remembered of the data at most.
    limit: ClassVar[CalibrationLimit] = CalibrationLimit(samples=512)

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def serves(cls, kind: str, op: OpScheme) -> bool:
        """Whether an op of that type is one of those that the option ``ops``, where there is one, can name."""
        return True

    def check(self, model: nn.Module, plan: Plan) -> None:
        """Refuse, before any work, what the pass cannot do to ``model``."""

    def wants_data(self, plan: Plan) -> bool:
        """Whether the model has to run on data for the ops of ``plan``."""
        return self.sees_data

    def compares(self, plan: Plan) -> bool:
        """Whether :meth:`after` looks at ``floats``, so that float weights are kept beside the quantized ones till then."""
        return False

    def before(self, state: PassState) -> Structure | None:
        """Change the float model in place; what became of modules, where that is another than ``state.structure``."""

    def after(self, state: PassState) -> None:
        """Change the quantized model in place, before its ops hand integers to each other."""


PASSES: Registry[type[ModelPass]] = Registry("pass of PyTorch", entry_point_group="neural_compressor.torch_passes")


def read_pass(step: Pass) -> ModelPass:
    """The pass that ``step`` names, with its options read."""
    kind = PASSES[step.name]
    if step.options and not kind.Options.model_fields:
        raise ConfigError(f"the pass {step.name} has no options; leave out {', '.join(step.options)}")
    try:
        return kind(kind.Options(**step.options))
    except ValidationError as error:
        known = kind.Options.model_fields
        raise ConfigError(explain(error, f"the pass {step.name}", "option", known)) from None


@PASSES.register("fold")
class Fold(ModelPass):
    """Batch normalisation goes into the layers before it, and ReLUs into kernels, as far as the runs seen prove it right."""

    def before(self, state: PassState) -> Structure:
        structure = Structure() if state.survey is None else state.survey.structure
        fold(state.model, structure)
        return structure
