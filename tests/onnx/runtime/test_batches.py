"""Batches of data loaders as inputs by name."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.runtime.batches import LoaderReader, ModelInputs, batch_size
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples

FLOAT, LONG = np.dtype(np.float32), np.dtype(np.int64)
ONE, TWO = ModelInputs({"x": FLOAT}), ModelInputs({"ids": LONG, "mask": FLOAT})


def test_inputs_of_a_model_are_those_that_are_no_weights():
    values = [helper.make_tensor_value_info(n, t, [2]) for n, t in (("a", TensorProto.FLOAT), ("b", TensorProto.INT64))]
    extra = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2])
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "w"], ["y"])], "g", [*values, extra], [values[0]], [weight]
    )
    assert ModelInputs.of(ir.from_proto(helper.make_model(graph))).dtypes == {"a": FLOAT, "b": LONG}


@pytest.mark.parametrize(
    ("batch", "inputs"),
    [
        (([1.0], 7), [1.0]),
        ([1.0], [1.0]),
        (({"x": [1.0]}, 7), {"x": [1.0]}),
        ({"x": [1.0]}, {"x": [1.0]}),
    ],
    ids=["pair", "inputs alone", "dict and label", "dict"],
)
def test_the_label_is_left_out(batch, inputs):
    assert ONE.split(batch) == inputs


def test_a_tuple_as_long_as_the_inputs_has_no_label():
    assert TWO.split((1, 2)) == (1, 2)
    assert TWO.split((1, 2, 3)) == (1, 2)
    assert TWO.split(({"ids": 1}, 3)) == {"ids": 1}
    assert TWO.split(((1, 2), 3)) == (1, 2)


def test_arrays_go_to_inputs_by_order_or_by_name():
    ids, mask = np.ones((2, 3), np.int64), np.zeros((2, 3), np.float32)
    for given in ((ids, mask), [ids, mask], {"mask": mask, "ids": ids}):
        fed = TWO.feed(given)
        assert list(fed) == ["ids", "mask"]
        assert fed["ids"] is ids
        assert fed["mask"] is mask
    row = np.ones((1, 2), np.float32)
    assert ONE.feed(row)["x"] is ONE.feed([row])["x"] is row
    assert ONE.feed([[1.0, 2.0], [3.0, 4.0]])["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_numbers_come_in_the_width_the_model_takes_and_never_in_another_kind():
    assert ONE.feed(np.ones(2, np.float64))["x"].dtype == np.float32
    assert TWO.feed((np.ones(2, np.int32), np.ones(2)))["ids"].dtype == np.int64
    assert ONE.feed(np.ones(2, np.int64))["x"].dtype == np.int64  # for the runtime to refuse


def test_tensors_of_torch_are_taken():
    class Tensor:
        """What a tensor with a gradient is like: no array until it is detached."""

        def detach(self):
            return self

        def cpu(self):
            return np.ones(2, np.float32)

    assert ONE.feed(Tensor())["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": [1]}, "mask are missing"),
        ({"ids": [1], "mask": [1], "labels": [1]}, "no input 'labels'"),
        (np.ones(3), "one input, and the model takes 2: ids, mask"),
        ((1, 2, 3), "3 inputs, and the model takes 2"),
        (([[1], [2, 3]], 4), "input 'ids' is a list that is no array"),
    ],
)
def test_inputs_that_do_not_fit_are_an_error(inputs, message):
    with pytest.raises(ConfigError, match=message):
        TWO.feed(inputs)


def loader(count, size=4):
    return [(np.full((size, 2), i, np.float32), np.zeros(size)) for i in range(count)]


@pytest.mark.parametrize(("limit", "batches"), [(1, 1), (4, 1), (5, 2), (1000, 3)])
def test_a_reader_stops_when_it_has_enough_samples(limit, batches):
    reader = LoaderReader(loader(3), ONE, limit)
    for _ in range(2):
        assert [feed["x"][0, 0] for feed in reader] == list(range(batches))
        reader.rewind()


def test_a_calibration_data_reader_serves_as_a_loader():
    class Reader(CalibrationDataReader):
        def __init__(self):
            self.rewind()

        def get_next(self):
            return next(self.rest, None)

        def rewind(self):
            self.rest = iter([{"x": np.full((2, 1), i, np.float32)} for i in range(4)])

    samples = Samples(LoaderReader(Reader(), ONE, 6))
    for _ in range(2):
        assert [int(feed["x"][0, 0]) for feed in samples] == [0, 1, 2]


def test_no_data_and_data_that_does_not_fit_are_errors_that_say_which_batch():
    with pytest.raises(CalibrationError, match="yielded no batch"):
        LoaderReader([], ONE, 5).get_next()
    reader = LoaderReader([*loader(1), {"y": 1}], ONE, 50)
    reader.get_next()
    with pytest.raises(CalibrationError, match=r"batch 1 .* no input 'y'"):
        reader.get_next()


def test_the_size_of_a_batch_is_its_first_dimension():
    assert batch_size({"x": np.ones((7, 2))}) == 7
    assert batch_size({"scale": np.asarray(1.0), "x": np.ones((3, 2))}) == 3
    assert batch_size({"scale": np.asarray(1.0)}) == 1
