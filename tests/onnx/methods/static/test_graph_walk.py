"""Models run part by part give what they give at once."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.static.corrections import GraphWalk

Kit = SimpleNamespace
CPU = ("CPUExecutionProvider",)


def branching_net(kit: Kit) -> onnx.ModelProto:
    """Two convolutions, of which an If behind them reads one, and something computed ahead of both."""
    net = kit.Net()
    early = net.op("Relu", "x")
    first = net.conv(early, (3, 4))
    second = net.conv(first, (4, 4))
    is_large = net.op("Greater", net.op("ReduceMax", early, keepdims=0), net.constant(0.5))

    def body(op_type: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op_type}_y", onnx.TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op_type, [first], [f"{op_type}_y"])], op_type, [], [out])

    chosen = net.op("If", is_large, then_branch=body("Relu"), else_branch=body("Neg"))
    return net.proto({"x": [1, 3, 6, 6]}, net.op("Add", second, chosen))


def test_parts_give_what_the_whole_gives(kit: Kit) -> None:
    model = normalise(read_model(branching_net(kit)))
    samples = kit.feeds_of(model, 3)
    walk = GraphWalk(model, samples, CPU)
    nodes = [node for node in model.graph if node.op_type in ("Conv", "Add")]
    results = [walk.run_to(node) for node in nodes]
    assert [len(arrays) for arrays in results] == [3, 3, 3]
    for sample, found in zip(samples, results[-1], strict=True):
        np.testing.assert_allclose(found, kit.run(model, sample)[0], atol=1e-5)


def test_a_part_with_weights_that_are_handed_over_as_arrays(kit: Kit) -> None:
    net = kit.Net()
    wide = net.op("Conv", net.conv("x", (3, 16)), net.weight(16, 16, 33, 33), pads=[16] * 4)
    model = net.model({"x": [1, 3, 6, 6]}, net.op("Relu", wide))
    held = [value.const_value for value in model.graph.initializers.values()]
    assert max(tensor.nbytes for tensor in held) >= 1 << 20
    (sample,) = samples = kit.feeds_of(model, 1)
    (found,) = GraphWalk(model, samples, CPU).run_to(model.graph[-1])
    np.testing.assert_allclose(found, kit.run(model, sample)[0], atol=1e-4)
    assert [value.const_value for value in model.graph.initializers.values()] == held


def test_what_is_replaced_is_what_later_parts_read(kit: Kit) -> None:
    model = normalise(read_model(branching_net(kit)))
    walk = GraphWalk(model, kit.feeds_of(model, 2), CPU)
    first, second = (node for node in model.graph if node.op_type == "Conv")
    arrays = walk.run_to(first)
    walk.replace(first.outputs[0], [np.zeros_like(array) for array in arrays])
    bias = second.inputs[2].const_value.numpy()
    for found in walk.run_to(second):
        np.testing.assert_allclose(found, np.broadcast_to(bias[:, None, None], found.shape), atol=1e-6)


def test_nothing_is_held_that_no_node_ahead_reads(kit: Kit) -> None:
    net = kit.Net()
    y = "x"
    for _ in range(5):
        y = net.op("Relu", net.conv(y, (3, 3)))
    model = net.model({"x": [1, 3, 8, 8]}, y)
    walk = GraphWalk(model, kit.feeds_of(model, 2), CPU)
    for node in [node for node in model.graph if node.op_type == "Conv"]:
        walk.run_to(node)
        assert [list(held) for held in walk._held] == [[node.outputs[0]]] * 2


def test_each_node_runs_once(kit: Kit) -> None:
    model = normalise(read_model(branching_net(kit)))
    walk = GraphWalk(model, kit.feeds_of(model, 1), CPU)
    conv = next(node for node in model.graph if node.op_type == "Conv")
    walk.run_to(conv)
    with pytest.raises(IndexError):
        walk.run_to(conv)


def test_samples_that_take_too_much_room_are_given_up_the_last_first(kit: Kit) -> None:
    model = normalise(read_model(branching_net(kit)))
    feeds = kit.feeds_of(model, 5)
    first = next(iter(model.graph))
    one = GraphWalk(model, feeds[:1], CPU)
    one.run_to(first)
    size = sum(array.nbytes for array in one._held[0].values())
    walk = GraphWalk(model, feeds, CPU, limit=2.5 * size)
    assert len(walk.run_to(first)) == 3
    narrow = GraphWalk(model, feeds, CPU, limit=1)
    assert len(narrow.run_to(first)) == 1
