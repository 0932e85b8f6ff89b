"""Ops that are slower in int8 than in float on this machine, found by a race on the shapes they have in the model.

An op is raced where it stands: if the op before it hands on integers, float pays for turning them back, and if it does not,
int8 pays for quantizing; the same behind it. Results are kept for the next run (:mod:`neural_compressor.kernel_timings`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, OpKey, OpScheme, TensorScheme
from neural_compressor.torch.batches import feed
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.modules.kernels import fbgemm, onednn
from neural_compressor.torch.modules.kernels.quint8 import to_quint8
from neural_compressor.torch.modules.kernels.race import Race, Work, current_race
from neural_compressor.torch.modules.kernels.table import kernel_for
from neural_compressor.torch.structure.integer_path import hands_on, sources
from neural_compressor.torch.structure.watch import Trace

logger = logging.getLogger("neural_compressor")

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WEIGHT = TensorScheme(dtype("int8"), granularity=PER_CHANNEL, pair_safe=True)
_ACTIVATION = TensorScheme(dtype("uint8"), symmetric=False)
_QPARAMS = (1 / 255, 0)
_MUST_GAIN = 1.25
"""Integers stay unless float is so many times as fast: noise decides nothing, and they are smaller."""
_MOST_VALUES = 1 << 20
"""A batch is cut to inputs of about so many values."""


@dataclass(frozen=True)
class _Place:
    """Where an op stands: the shape of its input, whether integers come in, whether they are wanted behind it."""

    shape: tuple[int, ...]
    fed: bool
    emits: bool


def slower_in_integers(
    model: nn.Module, ops: Mapping[OpKey, nn.Module], example: Any, trace: Trace | None
) -> dict[str, dict[OpKey, str]]:
    """By mode, the ops that float computes faster, with both times; none where nothing is raced or the inputs are not known.

    ``model`` is the float model in which ``ops`` are, and ``trace`` what was seen of a run of it.
    """
    race, found = current_race(), dict[str, dict[OpKey, str]]()
    if race is None or trace is None or example is None:
        return found
    raced = {key: module for key, module in ops.items() if isinstance(module, (nn.Linear, *_CONVS))}
    shapes = _input_shapes(model, raced, example)
    fed, tried = _fed(trace, {key[0] for key in raced}), Counter[str]()
    for key, module in raced.items():
        if key not in shapes or module.weight.device.type != "cpu":
            continue
        place = _Place(shapes[key], key[0] in fed, key[0] in fed.values())
        what = f"{module!r} on {place.shape}, fed {place.fed}, emits {place.emits}, {torch.get_num_threads()} threads"
        for mode, works in _works(module, place).items():
            if kernel_for(key[1], OpScheme(_WEIGHT, _ACTIVATION, mode)) is None:
                continue  # it is simulated, which is for no race to decide
            tried[mode] += 1
            if reason := lost(race, mode, works, what, place.shape):
                found.setdefault(mode, {})[key] = reason
    for mode in [mode for mode, slower in found.items() if len(slower) == tried[mode]]:
        # A model that was to be quantized and would stay as it is helps nobody: it is at least smaller.
        logger.info(
            "%s int8 makes none of the %d ops faster here; they are quantized for their size", mode, tried[mode]
        )
        del found[mode]
    return found


def lost(race: Race, mode: str, works: Mapping[str, Callable[[], Work]], what: str, shape: tuple[int, ...]) -> str:
    """Why an op computes in float, with both times; empty where int8 is no slower, or the op cannot be raced.

    ``works`` are makers of the float and of the int8 work, which are known by ``mode`` and ``what`` from then on.
    """
    try:
        times = race.microseconds({f"{mode} {name}: {what}": make for name, make in works.items()})
    except RuntimeError as error:
        logger.info("%s is not raced: %s", what, error)
        return ""
    in_float, in_int8 = times.values()
    if in_int8 <= in_float * _MUST_GAIN:
        return ""
    return f"float is faster here: {in_float:.0f} us against {in_int8:.0f} us in int8 for an input of {list(shape)}"


def _works(module: nn.Module, place: _Place) -> dict[str, dict[str, Callable[[], Work]]]:
    """What computes the op in each mode, as makers of the float and of the int8 work."""
    if isinstance(module, nn.Linear):
        static = {"float": lambda: _float(module, place), "int8": lambda: _linear(module, place)}
        plain = _Place(place.shape, False, False)
        dynamic = {"float": lambda: _float(module, plain), "int8": lambda: _dynamic(module, place)}
        return {"static": static, "dynamic": dynamic}
    assert isinstance(module, _CONVS)
    unbatched = len(place.shape) != len(module.kernel_size) + 2
    if isinstance(module.padding, str) or module.padding_mode != "zeros" or unbatched:
        return {}
    return {"static": {"float": lambda: _float(module, place), "int8": lambda: _conv(module, place)}}


def _input(place: _Place) -> Tensor:
    return torch.linspace(0, 1, max(1, torch.Size(place.shape).numel())).reshape(place.shape)


def _float(module: nn.Module, place: _Place) -> Work:
    x = _input(place)
    codes = to_quint8(x, *_QPARAMS)

    def work() -> Tensor:
        y: Tensor = module(codes.dequantize() if place.fed else x)
        return to_quint8(y, *_QPARAMS) if place.emits else y

    return work


def _linear(module: nn.Linear, place: _Place) -> Work:
    packed, x = _packed(module), _input(place)
    codes = to_quint8(x, *_QPARAMS)

    def work() -> Tensor:
        if not (place.fed or place.emits):
            return fbgemm.linear_static(x, *_QPARAMS, packed, relu=False)
        y = fbgemm.linear_quint8(codes if place.fed else to_quint8(x, *_QPARAMS), packed, False, *_QPARAMS)
        return y if place.emits else y.dequantize()

    return work


def _dynamic(module: nn.Linear, place: _Place) -> Work:
    packed, x = _packed(module), _input(place)
    return lambda: fbgemm.linear_dynamic(x, packed, relu=False, reduce_range=False)


def _packed(module: nn.Linear) -> Any:
    codes = torch.zeros(module.weight.shape, dtype=torch.int8)
    return fbgemm.pack_linear(codes, torch.ones(len(codes)), None, torch.zeros(len(codes)))


def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, place: _Place) -> Work:
    assert not isinstance(module.padding, str)
    geometry = onednn.ConvGeometry(module.stride, tuple(module.padding), module.dilation, module.groups)
    codes = torch.zeros(module.weight.shape, dtype=torch.int8)
    scale, bias = torch.ones(len(codes)), torch.zeros(len(codes))
    packed = onednn.pack_conv(codes, scale, bias, geometry, _QPARAMS, place.shape)
    if not place.emits:
        run = onednn.conv_to_float(packed, _QPARAMS, relu=False)
    elif isinstance(module, nn.Conv2d):
        run = onednn.conv2d(lambda: (codes, scale), bias, geometry, False, _QPARAMS)
    else:
        run = onednn.conv_nd(packed, _QPARAMS, False, _QPARAMS)
    layout = torch.channels_last if len(place.shape) == 4 else torch.contiguous_format
    x = _input(place)
    given = to_quint8(x, *_QPARAMS).contiguous(memory_format=layout)
    return lambda: run(given if place.fed else to_quint8(x, *_QPARAMS).contiguous(memory_format=layout))


def _input_shapes(model: nn.Module, ops: Mapping[OpKey, nn.Module], example: Any) -> dict[OpKey, tuple[int, ...]]:
    """The shape of each op's input, its batch cut so that racing it takes no time."""
    shapes: dict[OpKey, tuple[int, ...]] = {}

    def look(key: OpKey, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].numel() and args[0].dtype == torch.float32:
            shapes.setdefault(key, few_samples(tuple(args[0].shape)))

    with hooked(ops, before=look), torch.no_grad():
        feed(model, example)
    return shapes


def few_samples(shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with so few samples that a race takes no time.

    >>> few_samples((64, 3, 224, 224))
    (6, 3, 224, 224)
    """
    return (max(1, min(shape[0], _MOST_VALUES * shape[0] // torch.Size(shape).numel())), *shape[1:])


def _fed(trace: Trace, ops: Collection[str]) -> dict[str, str]:
    """``{op: the op whose integers it can read}`` of what was seen of a run."""
    made_by = {number: call for call in trace.calls for number in call.writes}
    own = {number: call.module for number, call in made_by.items() if call.module is not None and call.module in ops}
    reads = {call.module: call.reads[0] for call in trace.calls if call.module is not None and call.reads}

    def through(number: int) -> int | None:
        call = made_by.get(number)
        if call is None or not call.reads or not hands_on(call.target.rsplit(".", 1)[-1]):
            return None
        return call.reads[0]

    return sources({name: number for name, number in reads.items() if name in ops}, own.get, through)
