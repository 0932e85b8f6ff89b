"""Checks of a plan before any work: ops that the model does not have, and what the executor does not run, are refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from neural_compressor.adaptor.plan_check import check_no_method, check_weight_range
from neural_compressor.algorithms import options_of
from neural_compressor.algorithms.qat import NAME as QAT
from neural_compressor.algorithms.weight_qparams import has_full_range
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.schemes.scheme import RTN
from neural_compressor.torch.methods import learned_rounding  # noqa: F401 - registered by being imported
from neural_compressor.torch.methods.weight_only.methods import is_block_method, method_of, option
from neural_compressor.torch.methods.weight_only.quantizer import sees_data
from neural_compressor.torch.modules.base import quant_class
from neural_compressor.torch.modules.kernels.table import kernel_for
from neural_compressor.torch.passes import (  # noqa: F401 - registered by being imported
    correct,
    equalize,
    range_search,
    rotation,
    smooth,
)
from neural_compressor.torch.passes.model_pass import read_pass
from neural_compressor.torch.structure.ops import is_linear, is_parameter, op_type, outer_blocks


def check(model: nn.Module, plan: Plan) -> None:
    """Refuse, before any work, a plan that names what the model does not have or the executor does not run."""
    for step in plan.passes:
        read_pass(step).check(model, plan)
    modules = dict(model.named_modules())
    for key, op in plan.items():
        _check_name(model, key, modules)
        try:
            _check_op(model, key, op)
        except (ConfigError, QuantizationError) as error:
            raise ConfigError(f"op {key[0]!r} ({key[1]}): {error}") from None
    methods = {key[0]: op for key, op in plan.items() if has_method(model, key, op)}
    _check_absorbers(modules, methods)
    _check_blocks(model, methods)


def has_method(model: nn.Module, key: OpKey, op: OpScheme) -> bool:
    """Whether a method finds the weight of an op, and not the range of it alone."""
    if op.method is None or op.weight is None or op.precision == "fp32":
        return False
    if op.mode != "weight_only" and op.weight.dtype.scale_type is None and op.method.name in (RTN.name, QAT):
        return False  # rounded to nearest by the layer itself
    return is_parameter(model, key[0]) or is_linear(model.get_submodule(key[0]))


def _check_name(model: nn.Module, key: OpKey, modules: Mapping[str, nn.Module]) -> None:
    name, kind = key
    owner = name.rpartition(".")[0]
    if name not in modules and (owner not in modules or not is_parameter(model, name)):
        raise ConfigError(f"the plan names op {name!r}, which the model does not have; {close_matches(name, modules)}")
    if op_type(model, name) != kind:
        raise ConfigError(f"the plan calls op {name!r} a {kind}, but it is a {op_type(model, name)}")


def _check_op(model: nn.Module, key: OpKey, op: OpScheme) -> None:
    if op.is_float or op.precision == "fp32":
        return
    check_weight_range(op)
    runs = op.mode != "weight_only" and kernel_for(key[1], op) is not None
    if op.output is not None and runs:
        raise ConfigError(
            f"results in {op.output.dtype.name} are simulated, and an integer kernel runs this op; leave it out"
        )
    if op.output is not None and (is_parameter(model, key[0]) or not is_linear(model.get_submodule(key[0]))):
        raise ConfigError(
            f"results in {op.output.dtype.name} are those of a linear layer; leave out the output of a {key[1]}"
        )
    if has_method(model, key, op):
        assert op.method is not None
        assert op.weight is not None
        method_of(op).check(op.weight, options_of(op.method))
        if op.mode != "weight_only":
            _check_beside_activations(model, key, op)
        if sees_data(op) and is_parameter(model, key[0]):
            raise ConfigError(
                f"experts fused into one parameter, of which {op.method.name} would have to see the inputs of each; "
                "rtn or hqq quantize it"
            )
        return
    if is_parameter(model, key[0]):
        raise ConfigError(f"a parameter of its module has no {op.mode} form; its weight can be quantized alone")
    quant_class(model.get_submodule(key[0]))
    check_no_method(key, op)


def _check_beside_activations(model: nn.Module, key: OpKey, op: OpScheme) -> None:
    """Refuse what a layer with quantized activations cannot do to its input: calibration saw that as it came."""
    quant_class(model.get_submodule(key[0]))
    assert op.weight is not None
    if op.weight.scales is not None or op.weight.zeros is not None:
        raise ConfigError("scales are quantized of weights that are quantized alone; leave out double quantization")
    if has_full_range(op.weight) and option(op, "full_range", False) is not False:
        raise ConfigError("scales beside quantized activations are above zero; give the method full_range=False")
    if op.weight.pair_safe and not method_of(op).keeps_pairs:
        raise ConfigError(
            "weights that are safe in pairs are rounded to nearest or by autoround; leave out the method, or pair_safe"
        )
    for name in ("act_order", "hadamard", "auto_scale") if op.mode == "static" else ():
        if option(op, name):
            raise ConfigError(
                f"{name}=True changes the input of a layer, and calibration fixed its scale; use mode dynamic"
            )


def _check_absorbers(modules: Mapping[str, nn.Module], ops: Mapping[str, OpScheme]) -> None:
    listed = [option(op, "absorb", None) or {} for op in ops.values()]
    named = {name for each in listed for norm, layers in each.items() for name in (norm, *layers)}  # type: ignore[attr-defined]
    for name in sorted(named):
        if name not in modules:
            raise ConfigError(
                f"a layer is to take up the scales of others, and none is called {name!r}; {close_matches(name, modules)}"
            )


def _check_blocks(model: nn.Module, ops: Mapping[str, OpScheme]) -> None:
    """Layers of a block that are quantized together must ask for the same."""
    together = {name: op for name, op in ops.items() if is_block_method(op)}
    for block in outer_blocks(model, together) or [""]:
        inside = {name: op for name, op in together.items() if name.startswith(f"{block}." if block else "")}
        wanted = {op.method: name for name, op in inside.items()}
        if len(wanted) > 1:
            names = " and ".join(dict.fromkeys(method.name for method in wanted if method is not None))
            raise ConfigError(
                f"the layers {sorted(wanted.values())} are trained together with {names}, and their configurations differ "
                "in more than the data type; give them the same iters, lr, minmax_lr, batch_size, seed and enable_ fields, "
                "and use_full_range=False beside layers with activations in few bits"
            )
