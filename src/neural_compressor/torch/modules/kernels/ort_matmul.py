"""ONNX Runtime's product of float32 rows with 2-, 4- and 8-bit weights (MatMulNBits), where the package is installed.

It rounds the inputs to 8 bits, block by block, and so multiplies integers. Blocks of 64 inputs cost the perplexity of a
language model about 0.2%, blocks of 128 four times that: where a weight has larger groups they are cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from neural_compressor.dtypes import IntType
from neural_compressor.schemes import PER_CHANNEL, TensorScheme, pack_bits
from neural_compressor.torch.modules.kernels.kernel_codes import KernelCodes, code_bits, kernel_codes
from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight

_BLOCKS = (16, 32, 64)
_OUTPUTS = ["y"]
_INTEGER_PRODUCT = 4
"""The operator's accuracy level that multiplies in int8."""


@dataclass(frozen=True, eq=False)
class OrtMatMul:
    """A session that holds one layer's weight in the layout of the kernel."""

    session: Any
    outputs: int
    run: Callable[[list[str], dict[str, Any], None], list[Any]]
    """What ``session.run`` calls when it has looked at the model's inputs, which takes a tenth of a small product."""


def takes_ort(weight: StoredWeight) -> bool:
    """Whether codes of the operator's bits hold ``weight``."""
    return weight.float_zero is None and kernel_codes(weight, 8, _BLOCKS) is not None


def ort_runs(weight: StoredWeight) -> bool:
    """Whether ONNX Runtime multiplies with such a weight here.

    Sessions cannot share a pool of threads without touching those of the rest of the process, and one pool a layer
    is a thousand threads: the kernel counts only where torch itself has one thread.
    """
    if torch.get_num_threads() > 1 or not _is_installed():
        return False
    return takes_ort(weight) and _multiplies(_bits_of(weight))


def pack_ort(weight: StoredWeight) -> OrtMatMul:
    """A session for ``weight``."""
    codes = kernel_codes(weight, _bits_of(weight), _BLOCKS)
    assert codes is not None
    return _matmul(_session(codes), weight.shape[0])


def run_ort(matmul: OrtMatMul, x: Tensor) -> Tensor:
    """``x @ weight.T`` for inputs along the last axis of ``x``, in float32."""
    x = x.detach() if x.requires_grad else x
    # Naming the output spares a look at the model's, at every call.
    return torch.from_numpy(
        matmul.run(_OUTPUTS, {"x": (x if x.dtype is torch.float32 else x.float()).numpy()}, None)[0]
    )


def _matmul(session: Any, outputs: int) -> OrtMatMul:
    inner = getattr(session, "_sess", session)  # hidden, so that a version may do without
    return OrtMatMul(session, outputs, inner.run)


def _bits_of(weight: StoredWeight) -> int:
    needed = code_bits(weight)
    assert needed is not None
    return next(bits for bits in (2, 4, 8) if needed <= bits and (bits > 2 or _multiplies(bits)))


def _session(codes: KernelCodes) -> Any:
    onnxruntime, onnx = import_module("onnxruntime"), import_module("onnx")
    outputs, inputs = codes.weight.shape
    blocks = -(-inputs // codes.group)
    packed = [
        pack_bits(codes.codes(part)[:, : blocks * codes.group], codes.bits) for _, part in codes.weight.parts(1 << 20)
    ]
    arrays = {"codes": torch.cat(packed).reshape(outputs, blocks, -1), "scale": codes.scales()[:, :blocks].reshape(-1)}
    zeros = codes.zeros()
    if zeros is not None:
        arrays["zero"] = pack_bits(zeros[:, :blocks].to(torch.uint8), codes.bits).reshape(-1)
    node = onnx.helper.make_node(
        "MatMulNBits",
        ["x", *arrays],
        ["y"],
        domain="com.microsoft",
        K=inputs,
        N=outputs,
        bits=codes.bits,
        block_size=codes.group,
        accuracy_level=_INTEGER_PRODUCT,
    )
    graph = onnx.helper.make_graph(
        [node],
        "layer",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)],  # of any rank
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [_outside(onnx, name, array) for name, array in arrays.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # an arena a layer would keep what its largest call needed
    options.log_severity_level = 3
    # A session keeps the model it was made from: with the weights in it they would be held twice.
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array.contiguous().numpy()) for array in arrays.values()]
    options.add_external_initializers(list(arrays), values)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _outside(onnx: Any, name: str, array: Tensor) -> Any:
    """A tensor whose values are given with the options of the session."""
    kind = onnx.TensorProto.UINT8 if array.dtype == torch.uint8 else onnx.TensorProto.FLOAT
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="given")
    return tensor


@functools.cache
def _is_installed() -> bool:
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


@functools.cache
def _multiplies(bits: int) -> bool:
    """Whether the installed version computes small products with codes of ``bits`` bits rightly.

    Among them are the largest that a sum of two can have: without VNNI, kernels may keep it in 16 bits.
    """
    try:
        errors = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except ImportError:
        return False
    scheme = TensorScheme(IntType(bits, signed=False), symmetric=False, granularity=PER_CHANNEL)
    with torch.device("cpu"):
        largest = (1 << bits) - 1
        codes = torch.cat([torch.arange(8 * 64).reshape(8, 64) % (1 << bits), torch.full((8, 64), largest)])
        packed, zero = pack_bits(codes.to(torch.uint8), bits), torch.ones(16, dtype=torch.uint8)
        found = kernel_codes(StoredWeight(packed, torch.ones(16), zero, None, None, scheme, (16, 64)), bits, _BLOCKS)
        assert found is not None
        x = torch.cat([torch.eye(64), torch.ones(1, 64), -torch.ones(1, 64)])
        try:
            matmul = _matmul(_session(found), 16)
            # One row and many are different kernels.
            y = torch.cat([run_ort(matmul, x), run_ort(matmul, x[64:65]), run_ort(matmul, x[65:])])
        except (errors.NotImplemented, errors.InvalidArgument, errors.Fail, errors.RuntimeException):
            return False
        expected = torch.cat([x, x[64:]]) @ (codes - 1.0).T
    return bool(torch.allclose(y, expected, rtol=0.01, atol=0.01 * (1 << bits)))
