"""Quantization settings in the manner of Hugging Face's ``from_pretrained(quantization_config=...)``."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from neural_compressor.config.base import ConfigModel, plain
from neural_compressor.config.validators import (
    Flag,
    Names,
    Seed,
    at_least,
    flag,
    group_size,
    number_between,
    optional,
    rate,
    whole_between,
    word,
)
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import config as torch_config
from neural_compressor.torch.quantization.config.fields import LayerMap, Path, weight_dtype
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig

_FLOATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_TORCH_NAMES = {
    "sym": "use_sym",
    "weight_dtype": "dtype",
    "n_samples": "nsamples",
    "seq_len": "seqlen",
    "desc_act": "act_order",
    "damp_percent": "percdamp",
    "blocksize": "block_size",
    "mse_range": "use_mse_search",
    "auto_scale": "use_auto_scale",
    "auto_clip": "use_auto_clip",
    "absorb_layer_dict": "absorb_to_layer",
}
"""The fields that have another name in the configurations of ``neural_compressor.torch``, which is understood too."""


def _precision(value: Any) -> str | None:
    """A floating-point precision by name, or as ``torch.bfloat16``."""
    if value is None:
        return None
    name = str(value).removeprefix("torch.")
    return word(("fp32", "bf16", "fp16"))(_FLOATS.get(name, name))


Count = Annotated[int, PlainValidator(at_least(1))]
Precision = Annotated[str | None, PlainValidator(_precision)]
GroupSize = Annotated[int, PlainValidator(group_size)]
WeightDtype = Annotated[str, PlainValidator(weight_dtype)]
Rate = Annotated[float | None, PlainValidator(optional(rate))]


class PretrainedQuantConfig(ConfigModel):
    """What all of them share.

    ``weight_dtype`` is ``"int"`` (with ``bits``), or a data type such as ``"nf4"``. ``compute_dtype`` is the precision
    that what stays in float is cast to once the model is quantized, ``scale_dtype`` the one that scales are rounded to;
    None leaves them as they come.
    ``modules_to_not_convert`` names modules that stay in float with all that is in them, by the end of their name.
    ``quant_nontext_module`` has the layers quantized that read images, in models that do.
    """

    quant_method: ClassVar[str]
    _torch_class: ClassVar[type[WeightOnlyConfig]]

    bits: Annotated[int, PlainValidator(whole_between(1, 8, "bits"))] = 4
    group_size: GroupSize = 32
    sym: Flag = True
    weight_dtype: WeightDtype = "int"
    compute_dtype: Precision = None
    scale_dtype: Precision = None
    quant_lm_head: Flag = False
    modules_to_not_convert: Names = Field(default_factory=list)
    quant_nontext_module: Flag = False

    def __init__(self, **values: Any) -> None:
        fields = type(self).model_fields
        for name, other in _TORCH_NAMES.items():
            if other in values and other not in fields and name in fields:
                if name in values:
                    raise ConfigError(f"{type(self).__name__} got {name} twice, as {name!r} and as {other!r}")
                values[name] = values.pop(other)
        super().__init__(**values)

    def to_diff_dict(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        return {name: plain(value) for name, (value, _) in self.changed(*type(self).model_fields).items()}

    @property
    def use_sym(self) -> bool:
        """``sym`` by the name it has elsewhere."""
        return self.sym

    def to_torch_config(self) -> WeightOnlyConfig:
        """The same settings for :mod:`neural_compressor.torch.quantization`."""
        there, fields = self._torch_class.model_fields, type(self).model_fields
        # A name that both sides have means the same.
        names = {name: name if name in there else _TORCH_NAMES.get(name, name) for name in fields}
        values = {target: getattr(self, name) for name, target in names.items() if target in there}
        # What was not spoken of follows from the data type, and from whether it is symmetric.
        follows = ("use_full_range",) if self.weight_dtype == "int" else ("bits", "group_size", "use_full_range")
        unspoken = {names[name] for name in follows if name in names and getattr(self, name) == fields[name].default}
        values = {name: value for name, value in values.items() if name not in unspoken}
        config = self._torch_class.from_dict({name: value for name, value in values.items() if value is not None})
        for name in self.modules_to_not_convert:
            config.set_local(rf"(.*\.)?{re.escape(name)}(\..*)?", self._torch_class.from_dict({"dtype": "fp32"}))
        return config


class CalibratedConfig(PretrainedQuantConfig):
    """What those share that need data: ``n_samples`` samples of ``dataset`` of ``seq_len`` tokens, by the ``tokenizer``.

    ``dataset`` is a text file, a list of texts or an iterable of batches. Texts are fed ``batch_size`` samples at a time;
    without a ``tokenizer`` that of the model's folder is taken.
    """

    tokenizer: Any = None
    dataset: Any = None
    batch_size: Count = 8
    n_samples: Count = 128
    seq_len: Count = 2048


class LayerWise(ConfigModel):
    """What those share that can take weights from the checkpoint block by block.

    With ``use_layer_wise=True`` the model is built without weights, and those of ``model_path`` (by default its own folder)
    are read when their turn comes.
    """

    use_layer_wise: Annotated[bool | None, PlainValidator(optional(flag))] = None
    model_path: Path = ""


class RtnConfig(PretrainedQuantConfig, LayerWise):
    """Round to nearest.

    >>> RtnConfig(bits=8, group_size=-1).to_torch_config()
    RTNConfig(bits=8, group_size=-1)
    """

    quant_method = "rtn"
    _torch_class = torch_config.RTNConfig

    use_full_range: Flag = True
    mse_range: Flag = False


class GPTQConfig(CalibratedConfig, LayerWise):
    """GPTQ; ``desc_act`` takes the inputs with the largest activations first."""

    quant_method = "gptq"
    _torch_class = torch_config.GPTQConfig

    blocksize: Count = 128
    damp_percent: Annotated[float, PlainValidator(number_between(0, 1))] = 0.01
    desc_act: Flag = False
    static_groups: Flag = False
    use_mse_search: Flag = False
    true_sequential: Flag = False


class AwqConfig(CalibratedConfig, LayerWise):
    """AWQ; ``zero_point`` is the opposite of ``sym``, and the default."""

    quant_method = "awq"
    _torch_class = torch_config.AWQConfig

    sym: Flag = False
    zero_point: Flag = True
    auto_scale: Flag = True
    auto_clip: Flag = True
    folding: Flag = False
    absorb_layer_dict: LayerMap = Field(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        sym = values.get("sym", values.get("use_sym"))
        if isinstance(sym, bool):
            values.setdefault("zero_point", not sym)
        elif isinstance(values.get("zero_point"), bool):
            values["sym"] = not values["zero_point"]
        super().__init__(**values)
        if self.sym == self.zero_point:
            raise ConfigError(
                f"AwqConfig: sym={self.sym} and zero_point={self.zero_point} contradict; give one of them"
            )


class TeqConfig(CalibratedConfig, LayerWise):
    """TEQ."""

    quant_method = "teq"
    _torch_class = torch_config.TEQConfig

    folding: Flag = True
    absorb_layer_dict: LayerMap = Field(default_factory=dict)


class AutoRoundConfig(CalibratedConfig, LayerWise):
    """AutoRound; ``disable_quanted_input`` tunes each block on the inputs of the float model."""

    quant_method = "autoround"
    _torch_class = torch_config.AutoRoundConfig

    group_size: GroupSize = 128
    iters: Count = 200
    lr: Rate = None
    minmax_lr: Rate = None
    disable_quanted_input: Flag = False
    enable_minmax_tuning: Flag = True
    gradient_accumulate_steps: Count = 1
    nblocks: Count = 1
    seed: Seed = 42

    def __init__(self, **values: Any) -> None:
        if "enable_quanted_input" in values:
            if "disable_quanted_input" in values:
                raise ConfigError(
                    "AutoRoundConfig: enable_quanted_input and disable_quanted_input are opposites; give one"
                )
            values["disable_quanted_input"] = not flag(values.pop("enable_quanted_input"))
        super().__init__(**values)

    def to_torch_config(self) -> WeightOnlyConfig:
        """The same settings for :mod:`neural_compressor.torch.quantization`."""
        config = super().to_torch_config()
        config.dataset = None  # from_pretrained runs it, as with the other algorithms
        config.enable_quanted_input = not self.disable_quanted_input
        return config
