"""``from_pretrained`` that quantizes, or loads what is quantized already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neural_compressor.config.composed import sum_of
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.accelerator import device_named
from neural_compressor.torch.batches import on_device_of
from neural_compressor.torch.files.huggingface import empty_model, transformers_module
from neural_compressor.torch.modules.weight_only import hold_scales_in
from neural_compressor.torch.modules.weighted import FLOATS
from neural_compressor.torch.quantization import RTNConfig, load, quantize, save
from neural_compressor.torch.quantization.autoround_runs import refuse_both
from neural_compressor.torch.quantization.config.autoround_names import device_of
from neural_compressor.torch.quantization.saving import is_quantized_folder
from neural_compressor.torch.quantization.texts import calls_from
from neural_compressor.torch.structure.ops import find_ops
from neural_compressor.transformers.config import CalibratedConfig

logger = logging.getLogger("neural_compressor")


class _QuantizingAuto:
    """A transformers auto class whose ``from_pretrained`` takes a ``quantization_config`` of ours."""

    name = ""
    #: Whether its models read images besides text.
    multimodal = False

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *args: Any,
        quantization_config: Any = None,
        calibration: Iterable[Any] | Callable[[Any], Any] | None = None,
        device_map: Any = "cpu",
        **kwargs: Any,
    ) -> Any:
        """The model of a local folder.

        With a ``quantization_config`` it is quantized on the way; algorithms that need data take it from ``calibration``:
        batches (tensors of ids, or dicts), or a function that runs the model; or from the ``dataset`` of the config. A
        folder that holds a quantized checkpoint is loaded as such. ``device_map`` is one device. The returned model has
        ``save_pretrained`` for quantized weights too.
        """
        folder = Path(pretrained_model_name_or_path)
        for name, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
            if kwargs.pop(name, False):
                raise ConfigError(
                    f"{cls.__name__}: take quantization_config=RtnConfig(bits={bits}) instead of {name}=True"
                )
        device = _device(device_map)
        if folder.is_dir() and is_quantized_folder(folder):
            if quantization_config is not None:
                logger.warning(
                    "%s is quantized already, and loaded as it was saved: %r is not read", folder, quantization_config
                )
            dtype = _dtype_alone(args, kwargs, f"{folder} is quantized, and its model is built from config.json")
            return _saving(load(folder, format="huggingface", device=device, torch_dtype=dtype))
        if quantization_config is None:
            found = getattr(transformers_module(), cls.name).from_pretrained(folder, *args, **kwargs)
            # output_loading_info=True has it give what it found beside the model.
            return (found[0].to(device), *found[1:]) if isinstance(found, tuple) else found.to(device)
        convert = getattr(quantization_config, "to_torch_config", None)
        config = convert() if callable(convert) else quantization_config
        with_images = getattr(quantization_config, "quant_nontext_module", False)
        if with_images and not cls.multimodal:
            raise ConfigError(f"quant_nontext_module: models of {cls.__name__} read text alone; leave it out")
        names_data = getattr(quantization_config, "dataset", None) is not None
        refuse_both(quantization_config, calibration, "calibration")
        if names_data and isinstance(quantization_config, CalibratedConfig):
            calibration = _dataset(quantization_config, folder)
        if any(part.needs_calibration for part in config.parts) and calibration is None and not names_data:
            raise CalibrationError(
                f"{type(quantization_config).__name__} needs data: pass calibration=batches, or a function of the model, or "
                "give the config a dataset"
            )
        if getattr(quantization_config, "use_layer_wise", False):
            model = cls._without_weights(folder, *args, **kwargs)
            if "model_path" in type(config).model_fields:  # others read the folder that the model knows
                config.model_path = config.model_path or str(folder)
        else:
            model = getattr(transformers_module(), cls.name).from_pretrained(folder, *args, **kwargs).eval()
        if cls.multimodal and not with_images:
            config = leaving_images_in_float(model, config)
        model = quantize(model, config, run_fn=_runner(calibration))
        if (scales := getattr(quantization_config, "scale_dtype", None)) is not None:
            hold_scales_in(model, FLOATS[scales])
        if (rest := getattr(quantization_config, "compute_dtype", None)) is not None:
            model = model.to(FLOATS[rest])
        return _saving(model.to(device))

    @classmethod
    def _without_weights(cls, folder: Path, *args: Any, **kwargs: Any) -> Any:
        dtype = _dtype_alone(args, kwargs, "with use_layer_wise=True the model is built from its config.json")
        return empty_model(folder, dtype, getattr(transformers_module(), cls.name))


_OF_DOWNLOADS = (
    "trust_remote_code",
    "revision",
    "local_files_only",
    "use_safetensors",
    "low_cpu_mem_usage",
    "cache_dir",
)
"""Arguments that change nothing where a folder of one of transformers' own models is read."""


def _dtype_alone(args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
    """The float type asked for, where nothing else can be."""
    dtype = kwargs.pop("torch_dtype", kwargs.pop("dtype", None))
    asked = [name for name, value in kwargs.items() if value not in (None, False) and name not in _OF_DOWNLOADS]
    if args or asked:
        more = "; attentions change with model.set_attn_implementation" if "attn_implementation" in asked else ""
        raise ConfigError(f"{why}: only dtype can be given; {', '.join(asked) or args} has no place there{more}")
    return dtype


def _device(device_map: Any) -> str:
    try:
        return str(device_named(device_of(device_map) or "cpu"))
    except ConfigError as error:
        raise ConfigError(f"from_pretrained.device_map: {error}") from None


def leaving_images_in_float(model: nn.Module, config: Any) -> Any:
    """``config`` with rules first that leave what is outside the text model, and is not its head, in float."""
    text, head = model.get_decoder(), model.get_output_embeddings()  # type: ignore[operator]
    inside = {id(module) for module in text.modules()} | {id(head)}
    names = [name for name, _ in find_ops(model)[0] if id(model.get_submodule(name)) not in inside]
    if not names:
        return config
    parts = sorted({".".join(name.split(".")[:2]) for name in names})
    logger.warning(
        "%d layers stay in float, as they read images (%s); quant_nontext_module=True quantizes them, and so does a rule "
        "that speaks of them",
        len(names),
        ", ".join(parts),
    )
    first = config.parts[0]
    rules = RTNConfig(white_list=()).set_local(names, RTNConfig(dtype="fp32")).local
    return sum_of((first.model_copy(update={"local": (*rules, *first.local)}), *config.parts[1:]))


def _dataset(config: CalibratedConfig, folder: Path) -> Callable[[Any], Any]:
    @torch.no_grad()
    def run(model: Any) -> None:
        sizes = {"nsamples": config.n_samples, "seqlen": config.seq_len, "batch_size": config.batch_size}
        for call in calls_from(config.dataset, config.tokenizer, folder, **sizes):
            args, kwargs = on_device_of(model, call)
            model(*args, **kwargs)

    return run


def _runner(calibration: Iterable[Any] | Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if calibration is None or callable(calibration):
        return calibration
    batches = calibration

    @torch.no_grad()
    def run(model: Any) -> None:
        for batch in batches:
            if isinstance(batch, dict) or hasattr(batch, "keys"):
                model(**batch)
            else:
                model(batch)

    return run


def _saving(model: Any) -> Any:
    """Give the model a ``save_pretrained`` that writes quantized weights."""

    def save_pretrained(save_directory: str | Path, layout: str = "compressed-tensors", **kwargs: Any) -> None:
        if not kwargs.pop("safe_serialization", True):
            raise ConfigError("save_pretrained: files are safetensors, not pickles; leave safe_serialization=False out")
        if kwargs:
            raise ConfigError(
                f"save_pretrained of a quantized model takes a folder and a layout, not {', '.join(kwargs)}"
            )
        save(model, save_directory, format="huggingface", layout=layout)

    model.save_pretrained = save_pretrained
    return model


class AutoModelForCausalLM(_QuantizingAuto):
    """Causal language models."""

    name = "AutoModelForCausalLM"


class AutoModelForSeq2SeqLM(_QuantizingAuto):
    """Encoder-decoder language models."""

    name = "AutoModelForSeq2SeqLM"


class AutoModel(_QuantizingAuto):
    """Models without a head."""

    name = "AutoModel"


class _Multimodal(_QuantizingAuto):
    """Images and text: what reads images stays in float."""

    multimodal = True


class Qwen2VLForConditionalGeneration(_Multimodal):
    """Qwen2-VL, images and text."""

    name = "Qwen2VLForConditionalGeneration"


class MllamaForConditionalGeneration(_Multimodal):
    """Llama 3.2 with images."""

    name = "MllamaForConditionalGeneration"


class LlavaForConditionalGeneration(_Multimodal):
    """LLaVA, images and text."""

    name = "LlavaForConditionalGeneration"
