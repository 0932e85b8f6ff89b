"""Configurations as the trials of a tuning run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from neural_compressor.config.composition import Composition
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.files.model_forms import as_proto
from neural_compressor.onnx.quantization.calibration_store import CalibrationStore
from neural_compressor.onnx.quantization.pipeline import carry_out
from neural_compressor.onnx.quantization.prepared import Prepared, has_static, prepare
from neural_compressor.onnx.quantization.resolution import NothingToQuantizeError, Resolution, resolve
from neural_compressor.schemes import OpScheme, Plan
from neural_compressor.strategy.base import Proposal

logger = logging.getLogger("neural_compressor")

RECIPE = "config"
"""Where a plan has its configuration."""


@dataclass(frozen=True)
class Candidate:
    """A configuration and what it does to a model."""

    config: Composition
    prepared: Prepared
    resolution: Resolution

    @property
    def proposal(self) -> Proposal:
        """Its plan: the schemes of the nodes, and the configuration itself for what schemes do not say."""
        ops = {key: work.scheme for key, work in self.resolution.work.items()}
        return Proposal(Plan(ops, recipes={RECIPE: self.config.to_dict()}), str(self.config))


def candidates(source: Any, configs: Sequence[Composition], level: Any = None) -> list[Candidate]:
    """What each configuration does to the model in ``source``; what makes no sense is said here, before any work.

    A configuration that quantizes nothing is left out, with a warning; where all do, that is an error.
    """
    prepared: dict[bool, Prepared] = {}
    found = []
    idle: list[NothingToQuantizeError] = []
    for config in configs:
        static = has_static(config)
        if static not in prepared:
            prepared[static] = prepare(source, config, level)
        try:
            resolution = resolve(config, prepared[static])
            if not resolution.work:
                raise NothingToQuantizeError("what it could quantize is too little to matter")
        except NothingToQuantizeError as error:
            idle.append(error)
            logger.warning("%s is not tried: %s", config, error)
            continue
        found.append(Candidate(config, prepared[static], resolution))
    if not found and idle:
        raise idle[0]
    return found


class ConfigAdaptor(ONNXRTAdaptor):
    """ONNX Runtime for plans that carry a whole configuration; nodes that such a plan has in float stay there."""

    def __init__(self, tried: Iterable[Candidate], store: CalibrationStore) -> None:
        super().__init__()
        self._tried = {_key(candidate.config.to_dict()): candidate for candidate in tried}
        self._store = store
        work = (each for candidate in self._tried.values() for each in candidate.resolution.work.values())
        readers = {id(reader): reader for reader in (store.reader, *(each.config.reader for each in work))}
        self.calibration_data = tuple(readers.values())

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Any,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Any], Any] | None = None,
    ) -> onnx.ModelProto:
        candidate = self._tried[_key(tune_cfg["recipe_cfgs"][RECIPE])]
        self._source = model
        self._feed = self._store.example(work.config for work in candidate.resolution.work.values())
        self.example = self._feed
        floats = [key for key, scheme in tune_cfg["op"].items() if OpScheme.from_dict(scheme).is_float]
        new = carry_out(candidate.prepared.model, candidate.resolution.without(floats), self._store)
        self._warn_if_saturating(new)
        return as_proto(new)


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
