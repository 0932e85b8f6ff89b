"""What types operators take, in the version a model uses."""

from __future__ import annotations

import onnx_ir as ir

from neural_compressor.onnx.runtime.kernels import signature


def node(op_type: str, inputs: int, outputs: int = 1, domain: str = "") -> ir.Node:
    return ir.node(op_type, [ir.Value(name=f"i{n}") for n in range(inputs)], domain=domain, num_outputs=outputs)


def test_inputs_are_tied_by_variables_or_have_one_type() -> None:
    found = signature(node("Resize", 3), {"": 17})
    assert found is not None
    assert found.inputs == ("T1", "T2", "tensor(float)")
    assert found.outputs == ("T1",)
    assert "tensor(float16)" in found.admitted["T1"]


def test_the_last_input_may_repeat() -> None:
    found = signature(node("Concat", 4), {"": 17})
    assert found is not None
    assert found.inputs == ("T",) * 4


def test_the_version_counts() -> None:
    old, new = (signature(node("Conv", 2), {"": version}) for version in (11, 22))
    assert old is not None
    assert new is not None
    assert "tensor(bfloat16)" not in old.admitted["T"]
    assert "tensor(bfloat16)" in new.admitted["T"]


def test_operators_of_the_runtime_are_known() -> None:
    found = signature(node("MatMulNBits", 4, domain="com.microsoft"), {"": 17, "com.microsoft": 1})
    assert found is not None
    assert found.inputs == ("T1", "T2", "T1", "T3")


def test_others_are_not() -> None:
    assert signature(node("Mystery", 1, domain="mine"), {"": 17, "mine": 1}) is None
    assert signature(node("Loop", 3, outputs=2), {"": 17}) is None  # each of its values has a type of its own
