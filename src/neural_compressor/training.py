"""Quantization-aware training: hand your model over before training, take the quantized one after."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from neural_compressor import config
from neural_compressor.adaptor.contract import adaptor_for
from neural_compressor.adaptor.user_code import require_function
from neural_compressor.algorithms.qat import trained
from neural_compressor.config import QuantizationAwareTrainingConfig
from neural_compressor.config.validators import is_whole
from neural_compressor.errors import ConfigError
from neural_compressor.model import Model
from neural_compressor.quantization import check_evaluation
from neural_compressor.report.terminal import print_ops
from neural_compressor.strategy.build import build_space
from neural_compressor.strategy.space import TuningSpace
from neural_compressor.tuning.evaluator import Evaluator

logger = logging.getLogger("neural_compressor")

_TUNING = ("quant_level", "accuracy_criterion", "tuning_criterion", "model_name")
"""Fields that a search over trials would read; training is one run, and it is the user's."""


class Callbacks:
    """What a training loop calls; only its two ends have to be called, and where ranges are frozen its epochs."""

    def __init__(self, manager: CompressionManager) -> None:
        self._manager = manager

    def on_train_begin(self, dataloader: Any = None) -> None:
        """Make ``manager.model`` round as the quantized model will.

        A ``dataloader`` shows how the model is called, as ``example_inputs`` do, on more than one batch.
        """
        self._manager.begin(dataloader)

    def on_epoch_begin(self, epoch: int) -> None:
        """Another run through the data, counted from 0; from ``conf.freeze_after`` on ranges stay as they are."""
        self._manager.begin_epoch(epoch)

    def on_epoch_end(self) -> None:
        """For loops that call it: there is nothing to do, nor in the next five."""

    def on_step_begin(self, batch_id: int) -> None:
        """Before a batch."""

    def on_step_end(self) -> None:
        """After a batch."""

    def on_before_optimizer_step(self) -> None:
        """Gradients are there."""

    def on_after_optimizer_step(self) -> None:
        """Weights have changed."""

    def on_after_compute_loss(self, inputs: Any, outputs: Any, loss: Any, teacher_output: Any = None) -> Any:
        """The loss to train with, which is the one that was computed."""
        return loss

    def on_train_end(self) -> None:
        """Make ``manager.model`` the quantized model."""
        self._manager.end()


class CompressionManager:
    """Holds the model through quantization-aware training; :func:`prepare_compression` makes one."""

    def __init__(
        self, model: Any, conf: QuantizationAwareTrainingConfig, example_inputs: Any = None, quiet: bool = False
    ) -> None:
        self._float = model
        self._quiet = quiet
        self.conf = conf
        self._adaptor = adaptor_for(model)({"example_inputs": example_inputs, "device": conf.device})
        self._adaptor.check_settings(conf)
        for name, (given, usual) in conf.changed(*_TUNING).items():
            raise ConfigError(
                f"prepare_compression does not apply {name}={given!r}: training is one run without trials; leave it at "
                f"{usual!r}"
            )
        self._session: Any = None
        self._space: TuningSpace | None = None
        self._done = False
        self._epochs = 0
        self.model = model
        self.callbacks = Callbacks(self)

    def begin(self, dataloader: Any = None) -> None:
        """Start rounding."""
        if self._session is not None:
            raise ConfigError(
                "on_train_begin() was called twice; call prepare_compression() again for a second training"
            )
        if dataloader is not None:
            self._adaptor.info["dataloader"] = dataloader
        self._space = build_space(self._adaptor.query_fw_capability(self._float), self.conf)
        plan = self._space.default_plan()
        options = {name: given for name, (given, _) in self.conf.changed("learned_step_size", "freeze_after").items()}
        self._session = self._adaptor.prepare_training(trained(plan, **options).to_tune_cfg(), self._float)
        self.model = self._session.model

    def begin_epoch(self, epoch: int) -> None:
        """Count the epochs."""
        if self._session is None:
            raise ConfigError("on_epoch_begin() without on_train_begin(): call that before training")
        if not is_whole(epoch) or epoch < 0:
            raise ConfigError(f"on_epoch_begin: got {epoch!r}, expected the number of the epoch, from 0 on")
        self._epochs += 1
        self._session.begin_epoch(epoch)

    def end(self) -> None:
        """Convert what was trained."""
        if self._session is None:
            raise ConfigError("on_train_end() without on_train_begin(): call that before training")
        if self._done:
            raise ConfigError("on_train_end() was called already: manager.model is the quantized model")
        if self.conf.freeze_after is not None and not self._epochs:
            raise ConfigError(
                f"freeze_after={self.conf.freeze_after} counts epochs, and none began: call "
                "callbacks.on_epoch_begin(epoch) before each, or leave it out"
            )
        self.model = self._session.finish()
        self._done = True
        if not self._quiet:
            assert self._space is not None
            print_ops([self._space.explained(record) for record in self._adaptor.summary(self.model)])

    def save(self, root: str | Path | None = None) -> None:
        """Write the quantized model into the folder ``root``, without one into ``saved_model`` in the workspace."""
        self.quantized.save(root)

    def export(self, save_path: str | Path, conf: Any) -> None:
        """Write the quantized model as an ONNX file, as ``conf``, a ``Torch2ONNXConfig``, says."""
        self.quantized.export(save_path, conf)

    @property
    def quantized(self) -> Model:
        """The quantized model, with the adaptor of its framework."""
        if not self._done:
            raise ConfigError("there is no quantized model yet: call callbacks.on_train_end() after training")
        return Model(self.model, self._adaptor)


def __getattr__(name: str) -> Any:
    if name.endswith("Config"):  # of what programs import from here and is out of scope, the error says so
        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def prepare_compression(
    model: Any, confs: QuantizationAwareTrainingConfig, example_inputs: Any = None, *, quiet: bool = False
) -> CompressionManager:
    """A manager that takes ``model`` through quantization-aware training.

    With ``example_inputs`` batch normalisation is folded first, so that the trained weights are those the kernel will see.
    When training ends, a few lines on standard error say what runs in integers and what does not; ``quiet`` leaves them out.
    """
    if isinstance(confs, list | tuple) and len(confs) == 1:
        (confs,) = confs
    if not isinstance(confs, QuantizationAwareTrainingConfig):
        raise ConfigError(
            f"confs is a {type(confs).__name__}; prepare_compression takes a QuantizationAwareTrainingConfig"
        )
    return CompressionManager(model, confs, example_inputs, quiet)


def fit(
    compression_manager: CompressionManager,
    train_func: Callable[[Any], Any],
    eval_func: Callable[[Any], Any] | None = None,
    eval_dataloader: Iterable[Any] | None = None,
    eval_metric: Any = None,
) -> Model:
    """Train with ``train_func(model)`` and convert: the quantized model.

    What ``eval_func``, or ``eval_metric`` on ``eval_dataloader``, gives for it is in the log.
    """
    check_evaluation(compression_manager.conf, eval_func, eval_dataloader, eval_metric)
    require_function(train_func, "train_func", optional=False)
    compression_manager.callbacks.on_train_begin()
    train_func(compression_manager.model)
    compression_manager.callbacks.on_train_end()
    quantized = compression_manager.quantized
    if eval_func is not None or eval_dataloader is not None:
        evaluate = Evaluator(
            quantized.adaptor, eval_func=eval_func, eval_dataloader=eval_dataloader, eval_metric=eval_metric
        )
        logger.info("the quantized model reaches %s", evaluate(quantized.model))
    return quantized
