"""What a person sees of schemes and plans when they are printed."""

import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TOKEN,
    Method,
    OpScheme,
    Pass,
    PerBlock,
    PerGroup,
    Plan,
    Scaling,
    TensorScheme,
)


def fp8(**more):
    return TensorScheme(dtype("fp8_e4m3"), **more)


TENSORS = {
    "int4 asym per_group 32": TensorScheme(dtype("int4"), symmetric=False, granularity=PerGroup(32)),
    "int8 sym per_channel pair_safe=True": TensorScheme(dtype("int8"), granularity=PER_CHANNEL, pair_safe=True),
    "uint8 asym per_tensor algorithm=kl": TensorScheme(dtype("uint8"), symmetric=False, algorithm="kl"),
    "fp8_e4m3 per_block [128, 128]": fp8(granularity=PerBlock()),
    "fp8_e4m3 per_token scaling=(maxabs, pow2, 0.25)": fp8(
        granularity=PER_TOKEN, scaling=Scaling("maxabs", "pow2", 0.25)
    ),
    "bf16": TensorScheme(dtype("bf16")),
}


@pytest.mark.parametrize("text", TENSORS)
def test_a_tensor_scheme_is_a_line(text):
    assert str(TENSORS[text]) == text


def test_an_op_scheme_is_a_line():
    gptq = OpScheme(TensorScheme(dtype("int4")), mode="weight_only", method=Method("gptq", {"act_order": True}))
    assert str(gptq) == "weight_only, weight int4 sym per_tensor, by gptq(act_order=True)"
    assert str(OpScheme(activation=fp8(), mode="static")) == "static, input fp8_e4m3 per_tensor"
    assert str(OpScheme()) == "fp32"


def test_a_plan_is_a_line_for_each_op():
    plan = Plan({("fc", "Linear"): OpScheme(TensorScheme(dtype("int8")), mode="dynamic")}, passes=[Pass("fold")])
    assert str(plan).splitlines() == ["fc  Linear  dynamic, weight int8 sym per_tensor", "passes: fold()"]
    assert str(Plan()) == ""
