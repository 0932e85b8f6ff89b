"""Post-training quantization under an accuracy promise: ``fit`` a model, ``load`` what it saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.contract import Adaptor, adaptor_for
from neural_compressor.adaptor.user_code import require_function
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.process_options import options
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.model import Model, unwrapped
from neural_compressor.paths import path_of
from neural_compressor.report.run_report import RunReport
from neural_compressor.strategy import Strategy, build_space, strategy_for, unapplied_recipes
from neural_compressor.tuning.evaluator import Evaluator, require_repeatable
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.result import TuningResult
from neural_compressor.tuning.workspace import writable_folder

_PACKED = {
    **dict.fromkeys(("qweight_config_path", "gptq_config_path"), "None"),
    "enable_full_range": "False",
    "compression_dtype": "torch.int32",
    "compression_dim": "1",
    "scale_dtype": "torch.float32",
    "device": "cpu",
    "use_optimum_format": "True",
}
"""The options of ``export_compressed_model`` elsewhere, with the values that they have when they are left out."""


class QuantizedModel(Model):
    """A quantized model with the evidence of how it was found."""

    def __init__(self, model: Any, adaptor: Adaptor, result: TuningResult) -> None:
        super().__init__(model, adaptor)
        self.result = result

    @property
    def verdict(self) -> str:
        """Whether the promise is kept, in a sentence."""
        return self.result.verdict

    @property
    def q_config(self) -> dict[str, Any]:
        """How each op was quantized, as plain data: what an adaptor's ``quantize`` takes."""
        return {} if self.result.best is None else self.result.best.plan.to_tune_cfg()

    def export_compressed_model(self, **options: Any) -> Any:
        """The framework's model: its weights are packed already. ``options`` may say what they are without."""
        if other := [name for name, value in options.items() if name not in _PACKED or _PACKED[name] != str(value)]:
            raise ConfigError(
                f"export_compressed_model: got {', '.join(other)}; weights are packed as kernels here read them. For the "
                "layouts of other programs use neural_compressor.torch.quantization.save(model, folder, "
                "format='huggingface', layout='gptq')"
            )
        return self.model

    def __repr__(self) -> str:
        return f"QuantizedModel({self.verdict})\n{self.adaptor.describe(self.model)}"


def fit(
    model: Any,
    conf: PostTrainingQuantConfig,
    calib_dataloader: Iterable[Any] | None = None,
    calib_func: Callable[[Any], Any] | None = None,
    eval_func: Callable[[Any], Any] | None = None,
    eval_dataloader: Iterable[Any] | None = None,
    eval_metric: Any = None,
    *,
    workspace: str | Path | None = None,
    storage: str | None = None,
    title: str | None = None,
    resume: bool = True,
    quiet: bool = False,
) -> QuantizedModel:
    """Quantize ``model`` so that the promise of ``conf.accuracy_criterion`` holds.

    Accuracy comes from ``eval_func(model) -> float``, or from ``eval_dataloader`` and ``eval_metric``. Without either the
    model is quantized once, with the default configuration. Where ``calib_func(model)`` calibrates, ``calib_dataloader``
    shows how the model is called, and is the data by which strategies rank ops. Trials are journaled under ``workspace``
    (or in the Optuna ``storage``): the same call after a crash goes on where it stopped, and one with more ``max_trials`` or
    ``timeout`` after the end. Each run keeps its HTML report in ``reports`` there; ``report.html`` is the last one.

    With the objective ``performance`` the float model takes part: where no quantized model is faster, the best of them is
    returned all the same, and the verdict says so and why instead of "promise met" (``result.beats_float`` is False).
    """
    _check_arguments(conf, calib_dataloader, calib_func, eval_func, eval_dataloader, eval_metric)
    info = {
        "dataloader": calib_dataloader,
        "calib_func": calib_func,
        "calibration_sampling_size": max(conf.calibration_sampling_size),
        "framework_yaml": conf.framework_yaml,
        "quant_format": conf.quant_format,
        "inputs": conf.inputs,
        "outputs": conf.outputs,
        "recipes": conf.recipes,
        "approach": conf.approach,
        "op_type_dict": conf.op_type_dict,
        "op_name_dict": conf.op_name_dict,
    }

    def strategy(adaptor: Adaptor, capability: dict[str, Any]) -> Strategy:
        space = build_space(capability, conf, calib_dataloader is not None or calib_func is not None)
        if unapplied := unapplied_recipes(capability, conf):
            raise ConfigError(
                f"{type(adaptor).__name__} does not apply the recipes {', '.join(unapplied)} with the approach "
                f"{conf.approach!r}; leave them out"
            )
        return strategy_for(conf, space)

    return FitSettings(workspace, storage, title, resume, quiet).tuned(
        model,
        conf,
        info,
        strategy,
        (eval_func, eval_dataloader, eval_metric),
        calib_dataloader=calib_dataloader,
        calib_func=calib_func,
    )


def load(path: str | Path, model: Any) -> Any:
    """The quantized model that was saved to ``path``; ``model`` is the float model it was made from."""
    adaptor = adaptor_for(model)
    return adaptor().load(path_of(path, "load"), model)


def _check_arguments(
    conf: Any, calib_dataloader: Any, calib_func: Any, eval_func: Any, eval_dataloader: Any, eval_metric: Any
) -> None:
    if not isinstance(conf, PostTrainingQuantConfig):
        raise ConfigError(f"conf is a {type(conf).__name__}; quantization.fit takes a PostTrainingQuantConfig")
    if calib_dataloader is not None:
        require_repeatable(calib_dataloader, "calib_dataloader")
    if calib_func is not None and conf.approach == "dynamic" and not conf.recipes.get("smooth_quant"):
        raise ConfigError("approach 'dynamic' does not calibrate, and calib_func would not be called: leave it out")
    check_evaluation(conf, eval_func, eval_dataloader, eval_metric)
    require_function(calib_func, "calib_func")
    if conf.approach in ("static", "auto") and calib_dataloader is None and calib_func is None:
        raise CalibrationError(
            f"approach {conf.approach!r} calibrates activations: pass calib_dataloader or calib_func, "
            "or use approach='dynamic', which needs no data"
        )


@dataclass(frozen=True)
class FitSettings:
    """Where a run is kept, and how it is shown: the arguments that ``fit`` has here and in mixed precision."""

    workspace: str | Path | None
    storage: str | None
    title: str | None
    resume: bool
    quiet: bool

    def __post_init__(self) -> None:
        if self.title is not None and not isinstance(self.title, str):
            raise ConfigError(f"title: got {self.title!r}, expected a string")
        for name in ("resume", "quiet"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name}: got {value!r}, expected True or False")

    def tuned(
        self,
        model: Any,
        conf: Any,
        info: Mapping[str, Any],
        strategy: Callable[[Adaptor, dict[str, Any]], Strategy],
        evaluation: tuple[Any, Any, Any],
        **calibration: Any,
    ) -> QuantizedModel:
        """The best model of the plans that ``strategy`` finds for the framework's adaptor, which is made with ``info``."""
        eval_func, eval_dataloader, eval_metric = evaluation
        workspace = options.folder(self.workspace)
        writable_folder(workspace)
        model = unwrapped(model)
        adaptor = adaptor_for(model)(
            {
                **info,
                "example_inputs": conf.example_inputs,
                "workspace": str(workspace),
                "device": conf.device,
                "backend": conf.backend,
                # A model that nobody evaluates need not run here.
                "graph_only": eval_func is None and eval_dataloader is None,
            }
        )
        adaptor.check_settings(conf)
        model = adaptor.ready(model)
        evaluator = None
        if eval_func is not None or eval_dataloader is not None:
            evaluator = Evaluator(
                adaptor, eval_func=eval_func, eval_dataloader=eval_dataloader, eval_metric=eval_metric
            )
        best, result = tune(
            adaptor,
            model,
            conf,
            strategy(adaptor, adaptor.query_fw_capability(model)),
            evaluator=evaluator,
            workspace=workspace,
            storage=self.storage,
            title=self.title,
            reporter=RunReport(self.quiet),
            resume=self.resume,
            **calibration,
        )
        return QuantizedModel(best, adaptor, result)


def check_evaluation(conf: Any, eval_func: Any, eval_dataloader: Any, eval_metric: Any) -> None:
    """Refuse what says twice, or not at all, how a model is evaluated."""
    if eval_func is not None and (eval_dataloader is not None or eval_metric is not None):
        raise ConfigError("eval_func evaluates, and eval_dataloader and eval_metric would not be read: leave them out")
    if eval_func is None and eval_dataloader is None:
        for name, (given, usual) in conf.changed("accuracy_criterion", "tuning_criterion", "quant_level").items():
            raise ConfigError(
                f"{name}={given!r} has no effect without an evaluation: pass eval_func, or eval_dataloader and "
                f"eval_metric, or leave it at {usual!r}"
            )
    if (eval_dataloader is None) != (eval_metric is None) and eval_func is None:
        raise ConfigError("eval_dataloader and eval_metric go together: give both, or an eval_func")
    require_function(eval_func, "eval_func")
