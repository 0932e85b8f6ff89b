"""The class that users of ONNX Runtime know."""

import onnx
import pytest
from onnx import helper, numpy_helper

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.quantization.matmul_nbits_quantizer import (
    AWQWeightOnlyQuantConfig,
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)

FC_OUT = "/h.4/mlp/fc_out/MatMul"


def attributes(model):
    nodes = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    return [{a.name: a.i for a in node.attribute} for node in nodes]


def test_defaults(mlp):
    quantizer = MatMulNBitsQuantizer(mlp)
    quantizer.process()
    # the first product has 64 inputs, and no more fit into a block
    assert [(each["bits"], each["block_size"]) for each in attributes(quantizer.model)] == [(4, 64), (4, 128)]
    names = [i.name for i in quantizer.model.graph.initializer]
    assert any("zero_point" in name for name in names)  # not symmetric


def test_its_parameters(mlp):
    quantizer = MatMulNBitsQuantizer(
        mlp, block_size=32, is_symmetric=True, accuracy_level=1, nodes_to_exclude=[FC_OUT], n_bits=8
    )
    quantizer.process()
    (found,) = attributes(quantizer.model)
    assert (found["bits"], found["block_size"], found["accuracy_level"]) == (8, 32, 1)
    assert not any("zero_point" in i.name for i in quantizer.model.graph.initializer)


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda data: RTNWeightOnlyQuantConfig(ratios={"w1": 0.9}),
        lambda data: DefaultWeightOnlyQuantConfig(block_size=64, bits=8),
        lambda data: GPTQWeightOnlyQuantConfig(data, percdamp=0.05, mse=True),
        lambda data: AWQWeightOnlyQuantConfig(calibration_data_reader=data),
        lambda data: HQQWeightOnlyQuantConfig(block_size=64),
    ],
    ids=["rtn", "default", "gptq", "awq", "hqq"],
)
def test_algorithms(algorithm, mlp, vectors, reader, run):
    quantizer = MatMulNBitsQuantizer(mlp, block_size=32, algo_config=algorithm(reader(vectors)))
    quantizer.process()
    assert len(attributes(quantizer.model)) == 2
    exact, now = run(mlp, vectors[0]), run(quantizer.model, vectors[0])
    assert 0 < abs(now - exact).max() < 0.4 * abs(exact).max()


def test_a_width_that_only_the_quantizer_was_given_is_not_passed_over(mlp):
    with pytest.raises(ConfigError, match=r"n_bits=8.*HQQWeightOnlyQuantConfig has its own bits, 4; give bits=8 there"):
        MatMulNBitsQuantizer(mlp, n_bits=8, algo_config=HQQWeightOnlyQuantConfig()).process()


def test_the_other_form_and_tables(mlp, make_model):
    quantizer = MatMulNBitsQuantizer(mlp, block_size=32, algo_config=RTNWeightOnlyQuantConfig(quant_format="QDQ"))
    quantizer.process()
    assert [node.op_type for node in quantizer.model.graph.node].count("DequantizeLinear") == 2
    table = numpy_helper.from_array(numpy_helper.to_array(mlp.graph.initializer[0]), "t")
    index = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 96])
    node = helper.make_node("Gather", ["t", "i"], ["y"], name="embed")
    graph = helper.make_graph([node], "table", [index], [y], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    quantizer = MatMulNBitsQuantizer(
        model, block_size=32, algo_config=RTNWeightOnlyQuantConfig(op_types_to_quantize=("Gather",))
    )
    quantizer.process()
    assert [node.op_type for node in quantizer.model.graph.node] == ["GatherBlockQuantized"]


def test_saving(mlp, tmp_path):
    quantizer = MatMulNBitsQuantizer(mlp)
    with pytest.raises(ConfigError, match="process"):
        quantizer.save(tmp_path / "q.onnx")
    quantizer.process()
    quantizer.save(tmp_path / "q.onnx")
    assert len(attributes(onnx.load(tmp_path / "q.onnx"))) == 2


def test_bad_input(mlp):
    with pytest.raises(CalibrationError, match="calibration data"):
        MatMulNBitsQuantizer(mlp, algo_config=GPTQWeightOnlyQuantConfig()).process()
    with pytest.raises(ConfigError, match="algo_config"):
        MatMulNBitsQuantizer(mlp, algo_config="rtn").process()
    with pytest.raises(ConfigError, match="names no algorithm"):
        MatMulNBitsQuantizer(mlp, algo_config=WeightOnlyQuantConfig()).process()
    with pytest.raises(ConfigError, match="bits"):
        MatMulNBitsQuantizer(mlp, n_bits=9).process()


def test_the_terminal_says_what_was_done(mlp, capsys):
    MatMulNBitsQuantizer(mlp, nodes_to_exclude=[FC_OUT]).process()
    err = " ".join(capsys.readouterr().err.split())
    assert "integers: 1 MatMul (MatMulNBits)" in err
    assert "float: 1 MatMul (nodes_to_exclude names it)" in err
    MatMulNBitsQuantizer(mlp, quiet=True).process()
    assert capsys.readouterr().err == ""
