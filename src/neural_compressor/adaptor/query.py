"""Reading what a framework can run from its YAML, for the version that is installed."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.framework_yaml import Entry, read_entries
from neural_compressor.adaptor.tensor_options import OpConfig
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches


class QueryBackendCapability:
    """The framework YAML as an adaptor asks it.

    Subclasses say which file and which version by overriding :meth:`config_file` and :meth:`installed_version`, or pass
    both to the constructor. ``overlay`` is the path of a user's YAML laid over the chosen entry; its op types have to be
    those of :meth:`known_op_types`.

    The entry used is the one with the highest version not above the installed one, else the one named ``default``; of
    those for ``backend`` and ``quant_format``, where these are given.
    """

    def __init__(
        self,
        local_config_file: str | Path | None = None,
        version: str | None = None,
        overlay: str | Path | None = None,
        backend: str | None = None,
        quant_format: str | None = None,
    ) -> None:
        self.path = Path(local_config_file) if local_config_file is not None else self.config_file()
        self.version = version if version is not None else self.installed_version()
        self.entry = choose_entry(read_entries(self.path), self.version, self.path, backend, quant_format)
        if overlay is not None:
            over = choose_entry(read_entries(overlay), self.version, Path(overlay), backend, quant_format)
            self._check_op_types(over, Path(overlay))
            self.entry = self.entry.overlaid(over)

    def config_file(self) -> Path:
        """Path of the framework YAML; for subclasses."""
        raise NotImplementedError(f"{type(self).__name__} needs local_config_file, or has to override config_file()")

    def installed_version(self) -> str:
        """Version of the installed framework; for subclasses."""
        raise NotImplementedError(f"{type(self).__name__} needs version, or has to override installed_version()")

    def known_op_types(self) -> Collection[str] | None:
        """The op types of the framework that can be quantized, for subclasses; None where any name may be one."""
        return None

    def known_float_types(self) -> Collection[str] | None:
        """The op types of the framework, quantizable or not; for subclasses."""
        return self.known_op_types()

    def _check_op_types(self, over: Entry, path: Path) -> None:
        """Refuse op types in a user's file that the framework does not have: nothing would ever match them."""
        quantized = [
            (p, op_type) for p, modes in over.capabilities.items() for ops in modes.values() for op_type in ops
        ]
        floats = [(p, op_type) for p, types in over.op_types.items() for op_type in types]
        for named, known in ((quantized, self.known_op_types()), (floats, self.known_float_types())):
            for precision, op_type in named:
                if known is not None and op_type != "*" and op_type not in known:
                    raise ConfigError(
                        f"framework YAML {path}: {precision} names the op type {op_type!r}, which the framework does not "
                        f"have; {close_matches(op_type, known)}"
                    )

    def get_version(self) -> str:
        """The version name of the entry in use: its highest name not above the installed version, or ``default``."""
        return best_name(self.entry.versions, self.version) or "default"

    def get_precisions(self) -> list[str]:
        """Every precision the entry knows, those it names first."""
        return list(dict.fromkeys([*self.entry.precisions, *self.entry.capabilities, *self.entry.op_types]))

    def get_valid_mixed_precisions(self) -> list[str]:
        """The combinations of precisions that may stand in one model, as the YAML lists them; empty: any."""
        return list(self.entry.valid_mixed_precisions)

    def get_op_types(self) -> dict[str, list[str]]:
        """Op types by precision."""
        return {precision: self.get_op_types_by_precision(precision) for precision in self.get_precisions()}

    def get_op_types_by_precision(self, precision: str) -> list[str]:
        """The op types that run in ``precision``; ``['*']`` stands for all."""
        if precision in self.entry.op_types:
            return list(self.entry.op_types[precision])
        modes = self.entry.capabilities.get(precision, {})
        return list(dict.fromkeys(op_type for ops in modes.values() for op_type in ops))

    def runs_in(self, op_type: str, precision: str) -> bool:
        """Whether ``op_type`` runs in ``precision``, the wildcard counted."""
        return bool({op_type, "*"} & set(self.get_op_types_by_precision(precision)))

    def quantizable_types(self) -> set[str]:
        """Op types with a quantized option in any precision and mode."""
        return {kind for modes in self.entry.capabilities.values() for ops in modes.values() for kind in ops}

    def get_quantization_capability(self) -> dict[str, PrecisionCapability]:
        """``{precision: {mode: {op type: config}}}``, the caller's to change; ``[precision][op type]`` works too."""
        return {
            p: PrecisionCapability((mode, copy.deepcopy(dict(ops))) for mode, ops in modes.items())
            for p, modes in self.entry.capabilities.items()
        }

    def get_fuse_patterns(self) -> dict[str, list[tuple[str, ...]]]:
        """Sequences of op types that are fused, by precision."""
        return {precision: list(patterns) for precision, patterns in self.entry.patterns.items()}


class PrecisionCapability(dict[str, dict[str, OpConfig]]):
    """Configs of one precision by mode; an op type in place of a mode gives its config in the first mode that has it.

    >>> PrecisionCapability({"static": {}, "dynamic": {"Linear": {"activation": {}}}})["Linear"]
    {'activation': {}}
    """

    def __missing__(self, op_type: str) -> Any:
        for ops in self.values():
            if op_type in ops:
                return ops[op_type]
        raise KeyError(op_type)


def choose_entry(
    entries: list[Entry], version: str, path: Path, backend: str | None = None, quant_format: str | None = None
) -> Entry:
    """The entry for the framework version ``version``, of those for the backend and the format."""
    fitting = [entry for entry in entries if entry.is_for(backend, quant_format)]
    if not fitting:
        known = " | ".join(f"{', '.join(e.backends) or 'any'}: {', '.join(e.formats) or 'any format'}" for e in entries)
        raise ConfigError(
            f"framework YAML {path} has no entry for the backend {backend or 'any'} with the format "
            f"{quant_format or 'any'}; it has {known}"
        )
    entries = fitting
    name = best_name((name for entry in entries for name in entry.versions), version) or "default"
    for entry in entries:
        if name in entry.versions:
            return entry
    known = ", ".join(name for entry in entries for name in entry.versions)
    raise ConfigError(
        f"framework YAML {path} has no entry for version {version} and no 'default'; its versions: {known}"
    )


def best_name(names: Iterable[str], version: str) -> str | None:
    """The highest of the version ``names`` that is not above ``version``.

    >>> best_name(["default", "2.6", "2.10", "3.0"], "2.13.0+cpu")
    '2.10'
    """
    numbered = [(_numbers(name), name) for name in names if name != "default"]
    fitting = [(number, name) for number, name in numbered if number <= _numbers(version)]
    return max(fitting)[1] if fitting else None


def _numbers(version: str) -> tuple[int, ...]:
    """The release part of a version, without trailing zeros, so that 2.6 equals 2.6.0."""
    release = re.match(r"\d+(\.\d+)*", version.strip())
    if release is None:
        raise ConfigError(
            f"{version!r} is not a version; expected something like '2.6.0', or 'default' in a framework YAML"
        )
    numbers = [int(part) for part in release.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
