"""Configurations of one algorithm each, with rules of their own for some ops and parameters that span a space."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator

from neural_compressor.config.base import named_arguments, plain
from neural_compressor.config.composition import FRAMEWORK_QUERIES, PROCESSORS, Composition, ops_of
from neural_compressor.config.op_selector import Claim, OpNames, OpSelector, Tier, selectors
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Pass

if TYPE_CHECKING:
    from typing_extensions import Self

_RULES = ("white_list", "local")


@dataclass(frozen=True)
class LocalRule:
    """A configuration for the ops that ``selector`` names. It is a copy: what was given may change, the rule does not."""

    selector: OpSelector
    config: ComposableConfig

    def __post_init__(self) -> None:
        if not isinstance(self.config, ComposableConfig):
            raise ConfigError(
                f"the rule for {self.selector} has {self.config!r}, expected a configuration of one algorithm"
            )
        if self.config.local or self.config.white_list is not None:
            raise ConfigError(
                f"the rule for {self.selector} has a configuration with a white_list or local rules, which would mean "
                "nothing there; set them on the outer configuration"
            )
        object.__setattr__(self, "config", self.config.model_copy(deep=True))


def _white_list(value: Any) -> tuple[OpSelector, ...] | None:
    return None if value is None or value == "*" else selectors(value)


def _local_rules(value: Any) -> tuple[LocalRule, ...]:
    """Rules in their order; one for a selector that had a rule replaces it and comes last."""
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise ConfigError(f"got {value!r}, expected a list of {{'op': ..., 'config': ...}}")
    rules: dict[OpSelector, LocalRule] = {}
    for item in value:
        for rule in [item] if isinstance(item, LocalRule) else _read_rule(item):
            rules.pop(rule.selector, None)
            rules[rule.selector] = rule
    return tuple(rules.values())


def _read_rule(item: Any) -> list[LocalRule]:
    if not isinstance(item, Mapping) or set(item) != {"op", "config"}:
        raise ConfigError(f"got {item!r}, expected {{'op': ..., 'config': ...}}")
    config = item["config"]
    read: Any = Composition.from_dict(config) if isinstance(config, Mapping) else config
    return [LocalRule(selector, read) for selector in selectors(item["op"])]


class ComposableConfig(Composition):
    """The configuration of one algorithm.

    - A parameter given as a list spans a space: :meth:`expand` yields its single configurations.
    - ``white_list`` names the ops the parameters apply to (names, regular expressions, types): all by default; with an
      empty list only those that local rules name.
    - :meth:`set_local` gives some ops a configuration of their own.
    - ``a + b`` of one class for all ops has the parameters of ``a`` (of one white list: of ``b``) and the local rules of
      both. Any other sum is a :class:`ComposedConfig`.

    ``local`` holds the local rules; of several that match an op the last one wins.

    >>> class Doc(ComposableConfig):
    ...     sym: bool = True
    >>> config = Doc().set_local("fc1", Doc(sym=False))
    >>> {name: each.sym for name, each in config.resolve({"fc1": "Linear", "fc10": "Linear"}).items()}
    {'fc1': False, 'fc10': True}
    """

    white_list: Annotated[tuple[OpSelector, ...] | None, PlainValidator(_white_list)] = None
    local: Annotated[tuple[LocalRule, ...], PlainValidator(_local_rules)] = ()

    params_list: ClassVar[list[str]] = []
    """The names of its parameters."""
    apart: ClassVar[frozenset[str]] = frozenset()
    """The names of those that are no part of its identity."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.params_list = [name for name in cls.model_fields if name not in _RULES]

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(**named_arguments(type(self), self.params_list, args, values))
        for rule in self.local:
            if rule.config.framework != self.framework:
                raise ConfigError(
                    f"{type(self).__name__}: the rule for {rule.selector} has a configuration for "
                    f"{rule.config.framework}, not for {self.framework}"
                )
        if not self.spans:
            self.__dict__.update(self._settled(self._values(), frozenset(self.model_fields_set)))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self).model_fields:
            super().__setattr__(name, value)
            return
        # Parameters depend on each other, so all are validated before any is changed.
        fresh = type(self)(**{**{given: getattr(self, given) for given in self.model_fields_set}, name: value})
        self.__dict__.update(fresh.__dict__)
        self.model_fields_set.add(name)

    def set_local(self, operator_name_or_list: OpNames, config: ComposableConfig) -> Self:
        """Give these ops ``config`` instead; later rules win. Returns this configuration.

        ``operator_name_or_list`` is a name, a regular expression matched whole, a class, the name of a class, or a list of
        those.
        """
        try:
            added = tuple(LocalRule(selector, config) for selector in selectors(operator_name_or_list))
        except ConfigError as error:
            raise ConfigError(f"{type(self).__name__}.set_local: {error}") from None
        if not added:
            raise ConfigError(f"{type(self).__name__}.set_local: got an empty list, expected at least one op")
        self.local = (*self.local, *added)
        return self

    @property
    def local_config(self) -> dict[str, ComposableConfig]:
        """The local rules by what they name, as text."""
        return {rule.selector.text: rule.config for rule in self.local}

    @property
    def parts(self) -> tuple[ComposableConfig, ...]:
        return (self,)

    @property
    def quantizes(self) -> bool:
        """Whether the ops it applies to are changed at all."""
        return True

    @property
    def needs_calibration(self) -> bool:
        """Whether the algorithm, or what is done to the whole model before it, has to see data run through the model."""
        return any(each.passes for each in self.alone().expand())

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What it asks to be done to the whole model before its ops are quantized."""
        return ()

    @property
    def spans(self) -> dict[str, list[Any]]:
        """The parameters that hold several values to try. (What is a list by nature is held as a tuple.)"""
        return {name: value for name, value in self._values().items() if isinstance(value, list)}

    @property
    def identity(self) -> str:
        values = self._values() if self.spans else self._distinct(self._values())
        values = {name: value for name, value in values.items() if name not in self.apart}
        rules = [[rule.selector.to_plain(), rule.config.identity] for rule in self.local]
        parts = [f"{self.framework}.{self.name}", plain(values), self._plain_white_list(), rules]
        return json.dumps(parts, default=repr)

    def expand(self) -> list[Self]:
        """The single configurations of the space: all combinations in the order of the fields, the last field varying
        fastest and then the local rules; each once. A configuration that spans no space is its own only one."""
        choices = [[replace(rule, config=config) for config in rule.config.expand()] for rule in self.local]
        if not self.spans and all(len(choice) == 1 for choice in choices):
            return [self]
        found: dict[str, Self] = {}
        for values in combinations(self._values()):
            settled = self._settled(values, frozenset())
            for rules in product(*choices):
                single = type(self)(**settled, white_list=self.white_list, local=rules)
                found.setdefault(single.identity, single)
        return list(found.values())

    def require_single(self) -> None:
        """Raise an error if parameters hold several values to try."""
        if self.spans:
            lists = ", ".join(f"{name}={values}" for name, values in self.spans.items())
            raise ConfigError(
                f"{type(self).__name__} spans a space ({lists}), and a model is quantized with one value each; "
                "choose one, or let autotune try them"
            )

    def alone(self) -> Self:
        """The parameters without rules."""
        return self.model_copy(update={"white_list": None, "local": ()})

    def claims(self) -> list[Claim[ComposableConfig]]:
        """What the configuration asks for, the rules that win last."""
        for config in (self, *(rule.config for rule in self.local)):
            config.require_single()
        owner, alone = type(self).__name__, self.alone()
        if self.white_list is None:
            claims = [Claim[ComposableConfig](alone, owner)]
        else:
            claims = [Claim(alone, owner, Tier.WHITE_LIST, selector) for selector in self.white_list]
        return claims + [Claim(rule.config, owner, Tier.LOCAL, rule.selector) for rule in self.local]

    def to_dict(self) -> dict[str, Any]:
        """The parameters; with local rules those of all ops as ``global``, and those of some by op as ``local``.

        ``config`` says which configuration it is, in a rule where that differs, and ``op`` there which op where that is a
        class.

        >>> class Doc(ComposableConfig):
        ...     sym: bool = True
        >>> Doc().set_local("fc1", Doc(sym=False)).to_dict()
        {'global': {'sym': True, 'white_list': None}, 'local': {'fc1': {'sym': False}}}
        """
        kind = {"config": f"{self.framework}.{self.name}"} if self.name else {}
        values = {**plain(self._values()), "white_list": self._plain_white_list()}
        if not self.local:
            return {**kind, **values}
        local: dict[str, dict[str, Any]] = {}
        for rule in self.local:
            said = {name: value for name, value in rule.config.to_dict().items() if name != "white_list"}
            if type(rule.config) is type(self):
                said.pop("config", None)
            op, key = rule.selector.to_plain(), rule.selector.text
            while key in local:  # a class and a name are written alike
                key += " "
            local[key] = said if op == key else {"op": op, **said}
        return {**kind, "global": values, "local": local}

    def to_diff_dict(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        return {name: plain(value) for name, (value, _) in self.changed(*self.params_list).items()}

    @classmethod
    def get_model_info(cls, model: Any, example_inputs: Any = None) -> list[tuple[str, str]]:
        """The ops of a model that can be quantized: pairs of name and type; it does not run for that."""
        return ops_of(cls.framework, model)

    @classmethod
    def get_config_set_for_tuning(cls, **parameters: Any) -> list[Self]:
        """The configurations of this class that are worth trying; the default one where there is no better list.

        All have the ``parameters`` that are given.
        """
        found = [each for each in FRAMEWORK_QUERIES[cls.framework].tuning_set() if type(each) is cls] or [cls()]
        named = ({name: getattr(each, name) for name in each.model_fields_set} for each in found)
        return list({each.identity: each for each in (cls(**{**values, **parameters}) for values in named)}.values())

    @classmethod
    def get_predefined_configs(cls) -> dict[str, Self]:
        """The defaults by kind of processor. Kernels are chosen by what the machine has, so that they do the same."""
        return {kind: cls() for kind in PROCESSORS}

    def __repr__(self) -> str:
        shown: dict[str, Any] = {name: value for name, (value, _) in self.changed(*self._values()).items()}
        if self.white_list is not None:
            shown["white_list"] = self._plain_white_list()
        rules = "".join(f".set_local({rule.selector.to_plain()!r}, {rule.config!r})" for rule in self.local)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())}){rules}"

    __str__ = __repr__

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Single ``values`` with those that follow from others filled in.

        What contradicts another value is an error if its name is in ``given``, and gives way otherwise.
        """
        return values

    @classmethod
    def _with(
        cls, values: dict[str, Any], follows: dict[str, Any], given: frozenset[str], cause: str
    ) -> dict[str, Any]:
        """``values`` with what ``follows`` from ``cause``; a given value that says otherwise is an error."""
        for field, right in follows.items():
            if field in given and values[field] != right:
                raise ConfigError(
                    f"{cls.__name__}.{field}: got {values[field]!r}, and {cause} has {field}={right!r}; leave one out"
                )
        return {**values, **follows}

    def _distinct(self, values: dict[str, Any]) -> dict[str, Any]:
        """Single ``values`` less what makes no difference."""
        return values

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.params_list}

    def _plain_white_list(self) -> list[Any] | None:
        return None if self.white_list is None else [selector.to_plain() for selector in self.white_list]


def combinations(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every choice of one value from each list in ``values``, the last list varying fastest.

    >>> [c["bits"] for c in combinations({"bits": [4, 8], "sym": True})]
    [4, 8]
    """
    axes = [value if isinstance(value, list) else [value] for value in values.values()]
    for choice in product(*axes):
        yield dict(zip(values, choice, strict=True))
