"""The configuration of AutoRound."""

from __future__ import annotations

import logging
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PlainValidator
from torch.optim.lr_scheduler import LRScheduler

from neural_compressor.algorithms import AutoRoundOptions
from neural_compressor.config.composition import register_config
from neural_compressor.config.process_options import usual_seed
from neural_compressor.config.validators import (
    at_least,
    flag,
    group_size,
    one_or_more,
    optional,
    rate,
    whole_between,
)
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_TENSOR, PER_TOKEN, OpScheme, PerGroup, TensorScheme, in_groups
from neural_compressor.torch.modules.activation import has_fixed_range
from neural_compressor.torch.quantization.config.autoround_names import (
    BUDGET_FIELDS,
    RUN_FIELDS,
    average_bits,
    block_selectors,
    cache_dtype,
    checked,
    data_of,
    device_of,
    layer_groups,
    layer_rules,
    sampler,
    scale_type,
    tokenizer_of,
    written_format,
)
from neural_compressor.torch.quantization.config.autoround_schemes import (
    BLOCK_SCHEMES,
    FLOAT_BITS,
    activation_bits,
    scheme_fields,
    scheme_list,
    scheme_name,
)
from neural_compressor.torch.quantization.config.fields import (
    FLOAT,
    Count,
    Flag,
    FoldedHadamard,
    GroupSize,
    Seed,
    dtype_of,
    path_text,
    weight_dtype,
)
from neural_compressor.torch.quantization.config.lr_schedules import factors, schedule
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig, has_exponent_scales

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("neural_compressor")
_OF_A_SCHEME = ("dtype", "bits", "group_size", "act_bits", "act_dtype", "act_dynamic")
_ACTIVATION = ("act_dtype", "act_group_size", "act_sym", "act_dynamic")
RULES = frozenset({"white_list", "local", "scheme", *RUN_FIELDS})
"""Fields that a rule for some layers does not take over from the whole: ``scheme`` says what others say."""
_USUAL = AutoRoundOptions()


# Outside the class, in which the name is that of a field.
_BatchSize = Annotated[int, one_or_more(whole_between(1, 65536, "samples"))]
_Sampler = Annotated[str, one_or_more(sampler)]
_ActGroupSize = Annotated[int | None, one_or_more(optional(group_size))]


@register_config("torch", "autoround")
class AutoRoundConfig(WeightOnlyConfig):
    """AutoRound: the rounding of each weight and the clipping of each group are trained by signed gradient descent.

    ``scheme`` is short for bits of weights and activations (and the group size), and follows them where it is not given.
    ``lr`` is 1 / ``iters`` by default and ``minmax_lr`` smaller, the more bits there are. Of the calibration data the first
    ``nsamples`` samples are used, and ``seqlen`` tokens of each; other algorithms beside it may ask for more. Activations
    stay in float, or are rounded as they come: to integers in groups or token by token (``act_bits=8``), or to blocks as
    the weights are (``scheme`` MXFP4, MXFP8, NVFP4). With ``act_dynamic=False`` an input of 8 bits has one scale, from the
    calibration data as in :class:`StaticQuantConfig`, and the weight one a channel (``act_bits=8`` for integers,
    ``scheme="FP8_STATIC"`` for fp8). Weights are trained on float ones.
    With ``iters=0`` weights go to the nearest value of grids whose scales were searched, and with ``disable_opt_rtn`` (which
    says nothing of training), or where scales are powers of two (MXFP4, MXFP8), of grids that span the weights:
    :class:`RTNConfig`, without data. A step sees
    ``gradient_accumulate_steps`` batches of ``batch_size`` samples, drawn at random or in order (``sampler="seq"``). What
    was learned is given up where the error of a block is no smaller than before, unless ``not_use_best_mse``.
    ``lr_scheduler`` is ``"linear"``, ``"cosine"``, ``"constant"``, a factor for each step, a scheduler of torch (the factors
    are those of a copy), or a function that makes one for an optimizer; ``dynamic_max_gap`` steps without
    a smaller loss end the training of a block. ``nblocks`` consecutive blocks are trained together, for what the last of
    them gives, fewer at the end; where the model does more between two than hand it on, these are trained one by one, and
    a warning says so. With ``to_quant_block_names`` (``"model.layers"``, also lists, nested ones too) only layers inside
    these blocks are quantized, as with ``white_list``. ``layer_config`` (fields by name of layer) and ``ignore_layers``
    (names, of which parts do) become local rules.
    ``dataset`` (a text file, a list of texts, batches) runs through the model when it is prepared, by the ``tokenizer`` or
    that of the model's folder; without it, calibrate as with other algorithms. ``export_format`` and ``output_dir`` have
    the result written when it is converted, the tokenizer beside it, with ``static_kv_dtype="fp8"`` also scales of keys
    and values on that data. ``static_attention_dtype="fp8"`` has attentions round queries, keys and values, each with one
    scale from calibration, which files have as well.
    ``device_map`` or ``device`` is the one device (``"cpu"``, ``0``, ``"cuda:0"``, ``"auto"``) that the model is moved to
    when it is prepared, and stays on; without it a model is quantized where it is.
    ``super_bits`` and ``super_group_size`` quantize scales, so many of them together, once weights are trained;
    ``scale_dtype`` ``"fp16"`` or ``"bf16"`` has them held in 16 bits when the model is converted.
    With ``target_bits`` each layer gets one of the schemes ``options``, such that weights have at most so many bits on
    average, scales included, and layers lose least, on ``dataset`` where there is one; ``shared_layers`` are groups of
    layers, by the ends of their names, that get the same (``[["q_proj", "k_proj", "v_proj"]]``). Without it those of a
    language model do that read one input, as engines want it; ``[]`` lets each have its own.
    ``amp`` is that of :class:`GPTQConfig`, of the training too, and on. ``use_full_range`` is that of :class:`RTNConfig`,
    and on by default for symmetric integers: a scale may be negative.

    >>> AutoRoundConfig(scheme="W2A16G64").group_size, AutoRoundConfig(bits=3).scheme
    (64, 'W3A16')
    """

    apart: ClassVar[frozenset[str]] = frozenset(RUN_FIELDS) - {*BUDGET_FIELDS, "scale_dtype", "static_attention_dtype"}

    use_sym: Flag = True
    group_size: GroupSize = 128
    act_bits: Annotated[int, one_or_more(activation_bits)] = 16
    act_group_size: _ActGroupSize = None
    act_sym: Annotated[bool | None, one_or_more(optional(flag))] = None
    act_dtype: Annotated[str | None, one_or_more(optional(weight_dtype))] = None
    act_dynamic: Flag = True
    iters: Annotated[int, one_or_more(at_least(0))] = 200
    nsamples: Count = 128
    seqlen: Count = 2048
    batch_size: _BatchSize = 8
    lr: Annotated[float | None, one_or_more(optional(rate))] = _USUAL.lr
    minmax_lr: Annotated[float | None, one_or_more(optional(rate))] = _USUAL.minmax_lr
    enable_minmax_tuning: Flag = _USUAL.enable_minmax_tuning
    enable_quanted_input: Flag = _USUAL.quantized_input
    seed: Seed = Field(default_factory=usual_seed)
    scheme: Annotated[str, one_or_more(scheme_name)] = "W4A16"
    quant_lm_head: Flag = False
    amp: Flag = _USUAL.amp
    use_full_range: Flag = True
    hadamard: FoldedHadamard = False
    gradient_accumulate_steps: Count = _USUAL.gradient_accumulate_steps
    not_use_best_mse: Flag = not _USUAL.keep_best
    dynamic_max_gap: Annotated[int, one_or_more(at_least(-1))] = _USUAL.dynamic_max_gap
    lr_scheduler: Annotated[str | tuple[float, ...], PlainValidator(schedule)] = "linear"
    nblocks: Count = _USUAL.nblocks
    sampler: _Sampler = _USUAL.sampler
    disable_opt_rtn: Flag = False
    super_bits: Annotated[int | None, one_or_more(optional(whole_between(1, 8, "bits")))] = None
    super_group_size: _ActGroupSize = None
    tokenizer: Annotated[Any, PlainValidator(tokenizer_of)] = None
    dataset: Annotated[Any, PlainValidator(data_of)] = None
    export_format: Annotated[str | None, PlainValidator(written_format)] = None
    output_dir: Annotated[str | None, PlainValidator(optional(path_text))] = None
    static_kv_dtype: Annotated[str | None, PlainValidator(cache_dtype)] = None
    static_attention_dtype: Annotated[str | None, PlainValidator(cache_dtype)] = None
    scale_dtype: Annotated[str | None, PlainValidator(scale_type)] = None
    device_map: Annotated[str | None, PlainValidator(device_of)] = None
    target_bits: Annotated[float | None, PlainValidator(optional(one_or_more(average_bits).func))] = None
    options: Annotated[tuple[str, ...] | None, PlainValidator(scheme_list)] = None
    shared_layers: Annotated[tuple[tuple[str, ...], ...] | None, PlainValidator(layer_groups)] = None

    def __init__(self, *args: Any, **values: Any) -> None:
        rules = layer_rules(values)
        block_selectors(values)
        if (device := values.pop("device", None)) is not None:
            if values.get("device_map") is not None:
                raise ConfigError("AutoRoundConfig: device and device_map say the same; give one of them")
            values["device_map"] = device
        if "enable_full_range" in values:
            values.setdefault("use_full_range", values.pop("enable_full_range"))
        scheduler = values.get("lr_scheduler")
        if callable(scheduler) or isinstance(scheduler, LRScheduler):
            values["lr_scheduler"] = factors(scheduler, values.get("iters", type(self).model_fields["iters"].default))
        super().__init__(*args, **checked(values))
        for selector, fields in rules.items():
            said = {name: getattr(self, name) for name in self.model_fields_set - RULES}
            if "scheme" in self.model_fields_set and "scheme" not in fields:
                said |= {name: getattr(self, name) for name in _OF_A_SCHEME}
            elif "scheme" in fields:
                said = {name: value for name, value in said.items() if name not in _OF_A_SCHEME}
            said = fields if fields == {"dtype": FLOAT} else {**said, **fields}
            self.set_local(selector, AutoRoundConfig(**said))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # Data and tokenizers are handed on, not copied.
        shared = {id(value): value for value in (self.tokenizer, self.dataset) if value is not None}
        return super().__deepcopy__({**(memo or {}), **shared})

    def expand(self) -> list[Self]:
        """As for all configurations; one a budget, of which each has what was given and no more."""
        if not isinstance(self.target_bits, list):
            return super().expand()
        budgets = [self.model_copy(update={"target_bits": bits}) for bits in self.target_bits]
        return [single for budget in budgets for single in budget.expand()]

    def to_dict(self) -> dict[str, Any]:
        """As for all configurations; a tokenizer is the folder that it came from."""
        is_path = self.dataset is None or isinstance(self.dataset, str | PathLike)
        is_texts = isinstance(self.dataset, tuple) and all(isinstance(each, str) for each in self.dataset)
        if not is_path and not is_texts:
            raise ConfigError(
                "AutoRoundConfig.dataset: batches cannot be written down; a text file or a list of texts can"
            )
        found = super().to_dict()
        fields = found.get("global", found)
        fields["tokenizer"] = getattr(self.tokenizer, "name_or_path", self.tokenizer)
        for name in ("tokenizer", "dataset"):
            fields[name] = str(fields[name]) if isinstance(fields[name], PathLike) else fields[name]
        return found

    @property
    def algorithm(self) -> str:
        """The registered algorithm that finds the weights: without steps and a search of scales that is nearest rounding."""
        is_searched = self.disable_opt_rtn is not True and not has_exponent_scales(self.dtype, self.bits)
        return "rtn" if self.iters == 0 and not is_searched else super().algorithm

    def _option_fields(self) -> dict[str, Any]:
        fields = super()._option_fields()
        if self.algorithm == "rtn":  # which sees no data, whatever is said of it
            return {name: value for name, value in fields.items() if name in ("use_full_range", "hadamard")}
        return fields

    @property
    def wanted(self) -> OpScheme:
        """How an op computes: weights are trained, activations stay in float or are rounded to blocks."""
        if idle := self.changed(*BUDGET_FIELDS):
            raise ConfigError(f"AutoRoundConfig.{next(iter(idle))}: schemes are chosen by prepare, which has the model")
        activation = self.activation_scheme()
        if activation is not None:
            self._check_activation(activation)
            found = self._beside(activation, "dynamic" if self.act_dynamic else "static")
            return (
                replace(found, method=None) if self.algorithm == "rtn" else found
            )  # nearest rounding has no name there
        return super().wanted

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for; the data types where both tensors are quantized."""
        activation = self.activation_scheme()
        if activation is None:
            return super().said
        tensors = {"weight": self.weight_scheme(), "activation": activation}
        said = {(name, "dtype"): tensor.dtype.name for name, tensor in tensors.items()}
        if self._is_static(activation):
            said |= {(name, "scheme"): "sym" if tensor.symmetric else "asym" for name, tensor in tensors.items()}
        return said

    @property
    def left_open(self) -> tuple[tuple[str, str], ...]:
        """The fields of :attr:`wanted` that are the framework's to choose: how static ranges are found."""
        activation = self.activation_scheme()
        return (("activation", "algorithm"),) if activation is not None and self._is_static(activation) else ()

    def excludes(self, name: str, op_type: str) -> str:
        """Why an op is left in float where inputs are static, which ops without a trained weight could have too."""
        activation = self.activation_scheme()
        if activation is None or not self._is_static(activation) or op_type == "Linear":
            return ""
        return f"AutoRound trains weights of linear layers; StaticQuantConfig or FP8Config quantizes a {op_type}"

    def _is_static(self, activation: TensorScheme) -> bool:
        """Whether inputs have one scale, known beforehand."""
        return not self.act_dynamic and not activation.dtype.block_size

    def _parameters(self) -> tuple[TensorScheme | None, TensorScheme | None]:
        if self.super_bits is None and self.super_group_size is None:
            return None, None
        if self.super_bits is None or self.super_group_size is None:
            missing = "super_bits" if self.super_bits is None else "super_group_size"
            raise ConfigError(
                f"AutoRoundConfig.{missing}: scales are quantized to super_bits, super_group_size together"
            )
        kind = self.weight_scheme().dtype
        if kind.scale_type is not None or self.activation_scheme() is not None:
            why = (
                f"{kind.name} has scales of a small type"
                if kind.scale_type
                else "kernels with rounded inputs want floats"
            )
            raise ConfigError(f"AutoRoundConfig.super_bits: {why}; leave it out")
        return TensorScheme(dtype_of("int", self.super_bits), False, in_groups(self.super_group_size)), None

    def _check_activation(self, activation: TensorScheme) -> None:
        """Refuse what has no form beside weights that are trained."""
        kind = activation.dtype
        if kind.scale_type is not None and self.weight_scheme().dtype.scale_type is None:
            raise ConfigError(
                f"AutoRoundConfig.act_dtype={kind.name!r}: inputs in blocks are multiplied with weights in blocks; say both "
                f"as in the schemes {', '.join(BLOCK_SCHEMES)}"
            )
        if not self.act_dynamic and not has_fixed_range(activation):
            raise ConfigError(
                f"AutoRoundConfig.act_dynamic=False: blocks of {kind.name} inputs have scales of their own, none "
                "beforehand; leave it out"
            )
        if self._is_static(activation):
            if self.weight_scheme().dtype.bits != kind.bits:
                raise ConfigError(
                    f"AutoRoundConfig.act_dynamic=False: got {self.weight_scheme().dtype.name} weights, and beside "
                    f"{kind.name} inputs with one scale weights are of {kind.bits} bits too; give bits={kind.bits}, or "
                    "leave act_dynamic out"
                )
            if self.changed("act_group_size"):
                raise ConfigError(
                    f"AutoRoundConfig.act_group_size: got {self.act_group_size}, and with act_dynamic=False an input has "
                    "one scale; leave it out"
                )
            if self.group_size != -1:
                raise ConfigError(
                    f"AutoRoundConfig.group_size: got {self.group_size}, and beside inputs with one scale "
                    "(act_dynamic=False) weights have one a channel; leave it out, or give -1"
                )
        if kind.block_size and (idle := self.changed("act_group_size", "act_sym")):
            raise ConfigError(f"AutoRoundConfig.{next(iter(idle))}: {kind.name} has blocks of its own; leave it out")

    def _distinct(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**super()._distinct(values), "disable_opt_rtn": self.algorithm == "rtn"}  # it is about iters=0 alone

    def activation_scheme(self) -> TensorScheme | None:
        """How activations are quantized: as the weights where nothing else is said; None where they stay in float."""
        self.require_single()
        if self.act_bits in FLOAT_BITS or not self.quantizes:
            return None
        kind = dtype_of(self.act_dtype or "int", self.act_bits)
        size = self.group_size if self.act_group_size is None else self.act_group_size
        symmetric = self.use_sym if self.act_sym is None else self.act_sym
        dynamic = PER_TOKEN if size == -1 else PerGroup(size)
        return TensorScheme(kind, symmetric, dynamic if self.act_dynamic or kind.block_size else PER_TENSOR)

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if values["dtype"] == FLOAT:
            return values
        usual = {name: field.default for name, field in cls.model_fields.items()}
        if "scheme" in given or values["scheme"] != usual["scheme"]:
            spoken = given | {name for name in values if values[name] != usual[name]}
            values = cls._with(values, scheme_fields(values["scheme"]), spoken, f"scheme {values['scheme']!r}")
            return cls._settled_activation(
                super()._settled(values, given), given | scheme_fields(values["scheme"]).keys()
            )
        values = cls._settled_activation(super()._settled(values, given), given)
        name = values["dtype"].upper()
        block = name in BLOCK_SCHEMES and values["act_dtype"] == values["dtype"]
        return {**values, "scheme": name if block else f"W{values['bits']}A{values['act_bits']}"}

    @classmethod
    def _settled_activation(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        name = values["act_dtype"]
        if name not in (None, "int"):
            values = cls._with(values, {"act_bits": dtype_of(name, 0).bits}, given, f"act_dtype {name!r}")
        idle = [name for name in _ACTIVATION if name in given and values[name] != cls.model_fields[name].default]
        if idle and values["act_bits"] in FLOAT_BITS:
            logger.warning(
                "AutoRoundConfig: with act_bits=%d activations stay in float; not read: %s",
                values["act_bits"],
                ", ".join(idle),
            )
        in_blocks = name not in (None, "int") and dtype_of(name, 0).block_size
        if values["act_bits"] not in FLOAT_BITS and not values["act_dynamic"] and not in_blocks:
            # One scale a channel is what kernels with static inputs take.
            values = values if "group_size" in given else {**values, "group_size": -1}
        return values
