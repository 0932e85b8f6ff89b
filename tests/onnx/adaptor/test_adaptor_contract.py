"""The ONNX Runtime adaptor passes the suite that every adaptor has to pass."""

import numpy as np
from onnx import helper, numpy_helper

from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.testing import AdaptorContract
from neural_compressor.tuning.metrics import METRICS


def classifier():
    """Convolution, batch normalisation, two products."""
    rng = np.random.default_rng(0)

    def weight(name, *shape, scale=0.3):
        return numpy_helper.from_array(rng.normal(scale=scale, size=shape).astype(np.float32), name)

    def positive(name, size):
        return numpy_helper.from_array(rng.uniform(0.5, 1.5, size).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "conv_w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "bn_s", "bn_b", "bn_m", "bn_v"], ["n"], name="bn"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("Flatten", ["r"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fc1_w", "fc1_b"], ["h"], name="fc1"),
        helper.make_node("Relu", ["h"], ["hr"], name="relu1"),
        helper.make_node("MatMul", ["hr", "fc2_w"], ["y"], name="fc2"),
    ]
    constants = [
        weight("conv_w", 8, 1, 3, 3),
        *(positive("bn_s", 8), weight("bn_b", 8), weight("bn_m", 8), positive("bn_v", 8)),
        *(weight("fc1_w", 512, 32, scale=0.05), weight("fc1_b", 32), weight("fc2_w", 32, 4)),
    ]
    x = helper.make_tensor_value_info("x", 1, ["n", 1, 8, 8])
    y = helper.make_tensor_value_info("y", 1, ["n", 4])
    graph = helper.make_graph(nodes, "classifier", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class TestONNXRTAdaptor(AdaptorContract):
    def make_adaptor(self):
        return ONNXRTAdaptor({"dataloader": self.make_dataloader()})

    def make_model(self):
        return classifier()

    def make_dataloader(self):
        rng = np.random.default_rng(0)
        return [(rng.normal(size=(8, 1, 8, 8)).astype(np.float32), rng.integers(0, 4, 8)) for _ in range(4)]

    def make_metric(self):
        return METRICS["accuracy"]()


class TestIntegerOperators(TestONNXRTAdaptor):
    def make_adaptor(self):
        return ONNXRTAdaptor({"dataloader": self.make_dataloader(), "quant_format": "QOperator"})
