"""``autotune``: configurations tried one after the other until one keeps the accuracy promise."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.files.model_file import read_model, weight_bytes, write_model
from neural_compressor.onnx.files.scratch import raise_if_full, scratch_folder
from neural_compressor.onnx.files.serialized import as_proto
from neural_compressor.onnx.quantization.calibration_store import CalibrationStore
from neural_compressor.onnx.quantization.config import TuningConfig
from neural_compressor.onnx.quantization.pipeline import run_pipeline
from neural_compressor.onnx.quantization.prepared import Prepared, has_static, prepare
from neural_compressor.onnx.quantization.resolution import NothingToQuantizeError, Resolution, resolve
from neural_compressor.onnx.quantization.selection import require_onnx
from neural_compressor.report.run_report import RunReport
from neural_compressor.schemes import OpScheme, Plan
from neural_compressor.strategy.base import Proposal
from neural_compressor.tuning.evaluator import with_arguments
from neural_compressor.tuning.loop import tune

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
        new = run_pipeline(candidate.prepared.model, candidate.resolution.without(floats), self._store)
        self._warn_if_saturating(new)
        return as_proto(new)


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


VERDICT = "neural_compressor.verdict"
"""Where a tuned model has, among its metadata, whether the promise is kept."""


def autotune(
    model_input: str | Path | onnx.ModelProto | ir.Model,
    tune_config: TuningConfig,
    eval_fn: Callable[..., Any],
    eval_args: Any = None,
    calibration_data_reader: Any = None,
    optimization_level: Any = None,
    *,
    quiet: bool = False,
) -> onnx.ModelProto:
    """The best model found for ``tune_config``, by the metric that ``eval_fn(path, *eval_args)`` returns.

    ``path`` is that of a model in a file, with the ``config.json`` beside it that ``model_input`` has beside it. The
    configurations are tried in order; where none keeps the promise, nodes of the best one go back to float, one after the
    other. The result is the best model also where the promise could not be kept; its metadata and the log say so, and
    the report in ``tune_config.workspace`` has the evidence. A journal there lets a killed run go on. ``quiet`` leaves
    out what the terminal shows of it.
    """
    if not isinstance(tune_config, TuningConfig):
        raise ConfigError(
            f"got {tune_config!r}, expected a TuningConfig, such as TuningConfig(config_set=[RTNConfig()])"
        )
    configs = tune_config.candidates()
    for config in configs:
        require_onnx(config)
    tried = candidates(model_input, configs, optimization_level)
    with scratch_folder() as folder:
        best, result = tune(
            ConfigAdaptor(tried, CalibrationStore(calibration_data_reader)),
            model_input,
            tune_config,
            [candidate.proposal for candidate in tried],
            evaluator=_OnFile(with_arguments(eval_fn, eval_args), model_input, folder),
            workspace=tune_config.workspace,
            title=_title(model_input),
            reporter=RunReport(quiet),
        )
    logger.log(logging.INFO if result.satisfied else logging.WARNING, "%s", result.verdict)
    onnx.helper.set_model_props(best, {**{p.key: p.value for p in best.metadata_props}, VERDICT: result.verdict})
    return best  # type: ignore[no-any-return]


class _OnFile:
    """An evaluation of paths as one of models. A journal knows it by ``func``, not by the folder, another one each time."""

    def __init__(self, func: Callable[[str], Any], source: Any, folder: Path) -> None:
        self.func = func
        self.folder = folder
        beside = Path(source).with_name("config.json") if isinstance(source, str | Path) else None
        if beside is not None and beside.is_file():
            shutil.copyfile(beside, folder / beside.name)

    @property
    def known_by(self) -> tuple[Any, ...]:
        return (self.func,)

    def __call__(self, model: Any) -> Any:
        if isinstance(model, str | Path):
            return self.func(str(model))
        quantized = read_model(model)
        raise_if_full(self.folder, weight_bytes(quantized))
        return self.func(str(write_model(quantized, self.folder / "model.onnx")))


def _title(source: Any) -> str:
    return Path(source).stem if isinstance(source, str | Path) else read_model(source).graph.name or "model"
