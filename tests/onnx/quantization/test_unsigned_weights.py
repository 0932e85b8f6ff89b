"""Unsigned weights of convolutions, which the runtime computes in integers with one zero point only."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from neural_compressor.errors import CapabilityError
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.quantization import StaticQuantConfig, quantize


def test_unsigned_weights_of_a_convolution_have_one_zero_point(convnet, images, reader, run, types):
    """Where each channel has one of its own the runtime dequantizes the weight at every run."""
    for given in ({}, {"extra_options": {"WeightSymmetric": True}}):
        config = StaticQuantConfig(
            reader(images), weight_type="QUInt8", per_channel=True, op_types_to_quantize=["Conv"], **given
        )
        new = quantize(convnet, None, config)
        (conv,) = (node for node in new.graph.node if node.op_type == "QLinearConv")
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in new.graph.initializer}
        codes, scale, zero = (arrays[name] for name in conv.input[3:6])
        assert zero.dtype == np.uint8
        assert set(zero.ravel().tolist()) == {128}
        assert scale.shape == (16,)
        assert abs(codes.astype(int) - 128).reshape(16, -1).max(axis=1).tolist() == [127] * 16


def test_zero_points_for_each_channel_of_a_convolution_are_refused(convnet, images, reader):
    config = StaticQuantConfig(
        reader(images), weight_type="QUInt8", per_channel=True, extra_options={"WeightSymmetric": False}
    )
    with pytest.raises(
        CapabilityError, match=r"'Conv'.*cannot have this combination: .*'uint8'.*'asym'.*'per_channel'"
    ):
        quantize(convnet, None, config)


def test_an_unsigned_weight_of_one_scale_may_have_any_zero_point(convnet, images, reader):
    config = StaticQuantConfig(reader(images), weight_type="QUInt8", op_types_to_quantize=["Conv"])
    record = read_record(ir.from_proto(quantize(convnet, None, config)))
    weight = record.ops["conv", "Conv"].weight
    assert (weight.dtype.name, weight.symmetric, weight.granularity.name) == ("uint8", False, "per_tensor")
