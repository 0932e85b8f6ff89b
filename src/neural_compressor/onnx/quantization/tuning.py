"""``autotune``: configurations tried one after the other until one keeps the accuracy promise."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.onnx.adaptor.float_model import FloatModel
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.executor import Executor, RunOptions
from neural_compressor.onnx.files.model_file import read_model, weight_bytes, write_model
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.quantization.config import OnnxConfig, TuningConfig
from neural_compressor.onnx.quantization.resolution import Resolution, resolve
from neural_compressor.onnx.quantization.selection import require_onnx
from neural_compressor.onnx.quantization.source_model import Source, read_float_model
from neural_compressor.onnx.runtime.data_reader import Samples, example_of
from neural_compressor.paths import raise_if_full
from neural_compressor.report.run_report import RunReport
from neural_compressor.schemes import Plan
from neural_compressor.strategy.base import Proposal
from neural_compressor.strategy.listed import candidates, is_from
from neural_compressor.tuning.evaluator import with_arguments
from neural_compressor.tuning.loop import tune

logger = logging.getLogger("neural_compressor")


def resolutions(executor: Executor, configs: Sequence[Composition], level: Any, reader: Any) -> list[Resolution]:
    """What each configuration does to the executor's model; what makes no sense is said here, before any work.

    A configuration that quantizes nothing is left out, with a warning; where all do, that is an error.
    """

    def made(config: Composition) -> Resolution:
        resolution = resolve(config, executor, level, reader)
        if not resolution.quantized:
            raise NothingToQuantizeError("what it could quantize is too little to matter")
        return resolution

    return [resolution for _, resolution in candidates(configs, made)]


class _ListedPlans(ONNXRTAdaptor):
    """ONNX Runtime for plans on a list, and for these with ops back in float: each on the data of its configuration."""

    def __init__(self, executor: Executor, model: Any, listed: Sequence[Resolution], reader: Any) -> None:
        super().__init__()
        self._floats = FloatModel(model, executor, self.target, self.query_handler)
        self._listed, self._samples = listed, dict[int, Samples]()
        self._examples: dict[int, Mapping[str, Any] | None] = {}
        readers = (reader, *(each for resolution in listed for each in resolution.readers.values()))
        self.calibration_data = tuple({id(each): each for each in readers}.values())

    def _float_model(self, model: Any) -> FloatModel:
        assert self._floats is not None
        return self._floats

    def _run_options(
        self, plan: Plan, dataloader: Iterable[Any] | None, q_func: Callable[[Any], Any] | None
    ) -> RunOptions:
        resolution = next(each for each in self._listed if is_from(plan, each.plan))
        for reader in list(resolution.readers.values())[:1]:
            if id(reader) not in self._examples:
                self._examples[id(reader)] = example_of(reader)
            self._feed = self.example = self._examples[id(reader)]
        options = resolution.run_options(self._samples)
        floats = {key: "kept in float" for key, scheme in plan.items() if scheme.is_float}
        return replace(options, reasons={**options.reasons, **floats})


VERDICT = "neural_compressor.verdict"
"""Where a tuned model has, among its metadata, whether the promise is kept."""


def autotune(
    model_input: Source,
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
    TuningConfig.require(tune_config)
    configs = tune_config.candidates()
    if _readers(tune_config.config_set) != _readers(tune_config.expand()):
        raise ConfigError(
            "TuningConfig.config_set: a configuration differs from an earlier one in its calibration_data_reader alone, and "
            "is tried once; give each reader an autotune of its own, in a workspace of its own"
        )
    for config in configs:
        require_onnx(config)
    executor = Executor(read_float_model(model_input))
    listed = resolutions(executor, configs, optimization_level, calibration_data_reader)
    with scratch_folder() as folder:
        best, result = tune(
            _ListedPlans(executor, model_input, listed, calibration_data_reader),
            model_input,
            tune_config,
            [Proposal(each.plan, each.label) for each in listed],
            evaluator=_OnFile(with_arguments(eval_fn, eval_args), model_input, folder),
            workspace=tune_config.workspace,
            title=_title(model_input),
            reporter=RunReport(quiet),
        )
    logger.log(logging.INFO if result.satisfied else logging.WARNING, "%s", result.verdict)
    onnx.helper.set_model_props(best, {**{p.key: p.value for p in best.metadata_props}, VERDICT: result.verdict})
    return best  # type: ignore[no-any-return]


def _readers(configs: Iterable[Composition]) -> set[int]:
    parts = (part for config in configs for part in config.parts if isinstance(part, OnnxConfig))
    return {id(part.reader) for part in parts if part.reader is not None}


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
