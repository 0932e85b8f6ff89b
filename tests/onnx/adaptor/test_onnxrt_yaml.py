"""What the framework YAML says of each execution provider."""

import pytest

from neural_compressor.adaptor.framework_yaml import read_entries
from neural_compressor.config.op_options import op_options
from neural_compressor.config.op_request import Request
from neural_compressor.config.resolver import op_space
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.onnxrt import RECIPES
from neural_compressor.onnx.graph.ops import OP_TYPES
from neural_compressor.onnx.methods.dynamic import DYNAMIC_OPS
from neural_compressor.onnx.passes.store_weights import STORED_TYPES, is_stored
from neural_compressor.onnx.runtime.capability import IN_FLOAT_UNLESS_NAMED, YAML, OnnxQuery, runs_in
from neural_compressor.onnx.runtime.providers import PROVIDERS

ALL = ("static", "dynamic", "weight_only")


def schemes(query, op_type):
    return [
        o for o in op_options(query.node_configs(op_type, ALL, has_weight=True, per_channel=True)) if not o.is_float
    ]


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.name)
def test_every_provider_quantizes_products_in_each_of_its_forms(provider):
    forms = [f for e in read_entries(YAML) if provider.name in e.backends for f in e.formats]
    assert forms
    for form in forms:
        query = OnnxQuery(provider.name, form)
        assert query.quant_format == form
        assert schemes(query, "MatMul")


@pytest.mark.parametrize("entry", read_entries(YAML), ids=lambda e: f"{e.backends[0]} {e.formats[0]}")
def test_nothing_is_listed_that_no_code_quantizes(entry):
    for modes in entry.capabilities.values():
        assert set(modes.get("static", {})) <= set(OP_TYPES)
        assert set(modes.get("dynamic", {})) <= {*DYNAMIC_OPS, *STORED_TYPES}
        assert set(modes.get("weight_only", {})) <= {"MatMul", "Gemm", "Gather"}
    assert set(entry.recipes) <= {*RECIPES, "quantize_bias", IN_FLOAT_UNLESS_NAMED}


@pytest.mark.parametrize("entry", read_entries(YAML), ids=lambda e: f"{e.backends[0]} {e.formats[0]}")
def test_what_computes_in_float_unless_named_has_its_weight_stored_and_can_be_had_by_name(entry):
    for form in entry.formats:
        query = OnnxQuery(entry.backends[0], form)
        for mode, types in query.in_float_unless_named.items():
            for kind in types:
                found = [scheme for scheme in schemes(query, kind) if scheme.mode == mode]
                assert any(is_stored(("op", kind), scheme) for scheme in found)
                # There is no ConvTranspose of integers: quantizers around it are what can be had by name.
                assert kind == "ConvTranspose" or not all(is_stored(("op", kind), scheme) for scheme in found)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm"])
def test_unsigned_activations_with_signed_weights_are_the_default_on_the_cpu(form, op_type):
    configs = OnnxQuery("CPUExecutionProvider", form).node_configs(op_type, ALL, has_weight=True, per_channel=True)
    best = op_space(("op", op_type), configs, Request()).default
    assert (best.weight.dtype.name, best.weight.symmetric, best.weight.granularity.name) == (
        "int8",
        True,
        "per_channel",
    )
    assert (best.activation.dtype.name, best.activation.symmetric, best.mode) == ("uint8", False, "static")


def test_sixteen_bits_and_four_bits_need_the_form_that_has_kernels_for_them():
    def dtypes(form):
        found = schemes(OnnxQuery("CPUExecutionProvider", form), "Conv")
        return {t.dtype.name for o in found for t in (o.weight, o.activation) if t is not None}

    assert {"int16", "uint16", "int4"} <= dtypes("QDQ")
    assert dtypes("QOperator") == {"int8", "uint8"}


def test_no_option_pairs_unsigned_weights_with_signed_activations():
    # There is no kernel for it: ONNX Runtime refuses the integer operators.
    for form in ("QDQ", "QOperator"):
        for scheme in schemes(OnnxQuery("CPUExecutionProvider", form), "Conv"):
            if scheme.activation is not None:
                assert (scheme.weight.dtype.name, scheme.activation.dtype.name) != ("uint8", "int8")


def test_tensorrt_has_symmetric_int8_alone_in_qdq_alone():
    query = OnnxQuery("TensorrtExecutionProvider")
    assert query.quant_format == "QDQ"
    assert not runs_in(query.provider, "QOperator", "weight_only")
    with pytest.raises(ConfigError, match="TensorrtExecutionProvider with the format QOperator"):
        OnnxQuery("TensorrtExecutionProvider", "QOperator")
    for op_type in ("Conv", "MatMul", "Gemm"):
        static = [o for o in schemes(query, op_type) if o.mode == "static"]
        assert {t.dtype.name for o in static for t in (o.weight, o.activation)} == {"int8"}
        assert all(t.symmetric for o in static for t in (o.weight, o.activation))
        assert static[0].weight.granularity.name == "per_channel"
        assert not [o for o in schemes(query, op_type) if o.mode == "dynamic"]
    needed = {"add_qdq_pair_to_weight": True, "dedicated_qdq_pair": True, "quantize_bias": False}
    assert dict(query.entry.recipes) == needed


def test_weights_alone_are_four_bits_in_groups_of_32_by_default():
    query = OnnxQuery("CPUExecutionProvider")
    assert runs_in(query.provider, "QOperator", "weight_only")
    configs = query.node_configs("MatMul", ALL, has_weight=True, per_channel=True)
    best = op_space(("op", "MatMul"), configs, Request(("weight_only",))).default
    assert (best.weight.dtype.name, best.weight.granularity.size, best.method.name) == ("int4", 32, "rtn")


def test_node_configs_leave_out_what_a_node_does_not_admit():
    query = OnnxQuery("CPUExecutionProvider")
    configs = query.node_configs("MatMul", ("static",), has_weight=False, per_channel=False)
    assert {c["activation"].get("quant_mode") for c in configs} == {"static", None}
    assert not any("weight" in c for c in configs)
    one_scale = query.node_configs("Conv", ("static",), has_weight=True, per_channel=False)
    assert {c["weight"]["granularity"][0] for c in one_scale if "granularity" in c["weight"]} == {"per_tensor"}


@pytest.mark.parametrize(
    ("modes", "stored", "expected"),
    [
        (("dynamic",), True, ["uint8", "fp32"]),
        (("dynamic",), False, ["uint8"]),
        ((), True, ["fp32"]),
        ((), False, None),
    ],
)
def test_node_configs_store_the_weights_that_can_be(modes, stored, expected):
    query = OnnxQuery("CPUExecutionProvider")
    configs = query.node_configs("Conv", modes, has_weight=True, per_channel=True, stored=stored)
    found = [c["activation"]["dtype"] for c in configs if c["activation"].get("quant_mode") == "dynamic"]
    assert found == ([] if expected is None else [expected])
