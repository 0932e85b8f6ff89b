"""Which configuration each node gets."""

import pytest

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config import DynamicQuantConfig, GPTQConfig, RTNConfig, StaticQuantConfig
from neural_compressor.onnx.quantization.selection import require_onnx, select
from neural_compressor.torch.quantization.config import RTNConfig as TorchRTNConfig

KINDS = {
    "embed": "Gather",
    "conv": "Conv",
    "/h.0/fc/MatMul": "MatMul",
    "/h.1/fc/MatMul": "MatMul",
    "/h.10/fc/MatMul": "MatMul",
    "softmax": "Softmax",
    "head": "Gemm",
}
PRODUCTS = ["/h.0/fc/MatMul", "/h.1/fc/MatMul", "/h.10/fc/MatMul", "head"]


def chosen(config):
    return list(select(config, KINDS).configs)


def test_everything_is_asked_for_by_default():
    assert chosen(StaticQuantConfig()) == list(KINDS)
    assert chosen(RTNConfig()) == PRODUCTS


def test_local_rules_by_name_regex_and_type():
    config = RTNConfig().set_local("/h.1/fc/MatMul", RTNConfig(weight_bits=8))
    config.set_local(".*h.10.*", RTNConfig(weight_dtype="fp32")).set_local("Gemm", GPTQConfig())
    found = select(config, KINDS)
    assert found.configs["/h.1/fc/MatMul"].weight_bits == 8
    assert found.configs["/h.0/fc/MatMul"].weight_bits == 4
    assert "/h.10/fc/MatMul" not in found.configs
    assert found.left["/h.10/fc/MatMul"] == "its configuration leaves it in float"
    assert found.configs["head"].name == "gptq"
    assert found.named == {"/h.1/fc/MatMul"}


def test_a_rule_names_types_that_are_usually_left():
    assert "embed" in chosen(RTNConfig().set_local("Gather", RTNConfig(weight_bits=8)))
    assert chosen(RTNConfig(op_types_to_quantize=["Gather"])) == ["embed"]
    assert chosen(RTNConfig(nodes_to_quantize=["embed"])) == ["embed"]
    assert chosen(RTNConfig(white_list=["Gather"])) == ["embed"]


def test_lists_of_nodes_and_types():
    assert chosen(StaticQuantConfig(op_types_to_quantize=["Conv", "Gemm", "LSTM"])) == ["conv", "head"]
    assert chosen(StaticQuantConfig(nodes_to_exclude=["conv", "/h.1.*"])) == [
        "embed",
        "/h.0/fc/MatMul",
        "softmax",
        "head",
    ]
    found = select(StaticQuantConfig(nodes_to_quantize=["/h.0/fc/MatMul"]), KINDS)
    assert list(found.configs) == ["/h.0/fc/MatMul"]
    assert found.named == {"/h.0/fc/MatMul"}
    assert found.left["conv"] == "nodes_to_quantize does not name it"


def test_the_last_product_stays_in_float():
    found = select(RTNConfig(quant_last_matmul=False), KINDS)
    assert list(found.configs) == PRODUCTS[:-1]
    assert found.left["head"] == "quant_last_matmul=False"


def test_sums_are_split_by_approach():
    config = RTNConfig(white_list=["MatMul"]) + DynamicQuantConfig()
    found = select(config, KINDS)
    assert list(found.of("weight_only")) == PRODUCTS[:-1]
    assert list(found.of("dynamic")) == ["embed", "conv", "softmax", "head"]
    assert found.of("static") == {}


@pytest.mark.parametrize(
    ("config", "guess"),
    [
        (StaticQuantConfig(nodes_to_exclude=["cnov"]), "did you mean 'conv'"),
        (StaticQuantConfig(nodes_to_quantize=["/h.2/fc/MatMul"]), "/h.1/fc/MatMul"),
        (StaticQuantConfig(op_types_to_quantize=["Matmul"]), "did you mean 'MatMul'"),
        (RTNConfig().set_local("/h.1/fc/MatMull", RTNConfig()), "did you mean '/h.1/fc/MatMul'"),
        (RTNConfig().set_local("conv", RTNConfig(nodes_to_exclude=["hed"])), "did you mean 'head'"),
        (StaticQuantConfig(nodes_to_exclude=["Conv"]), "did you mean 'Conv'"),
    ],
)
def test_names_that_match_nothing_are_errors_with_close_matches(config, guess):
    with pytest.raises(ConfigError, match=guess):
        select(config, KINDS)


@pytest.mark.parametrize("config", [None, {"weight_bits": 4}, TorchRTNConfig()])
def test_other_configurations_are_refused(config):
    with pytest.raises(ConfigError, match=r"expected .*ONNX|expected a configuration"):
        require_onnx(config)
