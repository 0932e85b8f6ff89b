"""Convolutions that ONNX Runtime on a CPU computes no faster in integers than in float."""

from __future__ import annotations

import math

import onnx_ir as ir

from neural_compressor.onnx.graph.graph import array_of

_MANY_CHANNELS = 8
"""In groups of fewer channels an integer convolution takes 3 to 10 times as long as a float one; with 16 it is even."""
_MUCH_WEIGHT = 1 << 16
"""At one place of an image a convolution with fewer weights takes less time than its two conversions."""


def is_slow(conv: ir.Node) -> bool:
    """Whether ``conv`` takes longer in integers even where they come and go at no cost: groups of a few channels each.

    Depthwise convolutions have a kernel of their own.
    """
    groups, (outputs, inputs, *_) = _groups(conv), _sizes(conv)
    return groups > 1 and max(inputs, outputs // groups) > 1 and min(inputs, outputs // groups) < _MANY_CHANNELS


def is_depthwise(conv: ir.Node) -> bool:
    """Whether ``conv`` is a depthwise one on images, for which the float kernel is the faster one.

    On signals, and in three dimensions, it is the other way round.
    """
    outputs, inputs, *kernel = _sizes(conv)
    return len(kernel) == 2 and inputs == 1 and _groups(conv) == outputs


def is_small(conv: ir.Node) -> bool:
    """Whether there is so little for ``conv`` to compute, such as on averages over an image, that conversions count."""
    shape = conv.outputs[0].shape
    at_one_place = shape is not None and all(size == 1 for size in shape[2:])
    return at_one_place and math.prod(_sizes(conv)) < _MUCH_WEIGHT


def _groups(conv: ir.Node) -> int:
    return conv.attributes.get_int("group", 1)


def _sizes(conv: ir.Node) -> tuple[int, ...]:
    """Of the weight, which is a constant: the channels it gives, those it reads for each, and the kernel."""
    return array_of(conv.inputs[1]).shape
