import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor.errors import FormatError
from neural_compressor.torch.modules import quantized_module
from neural_compressor.torch.modules.kernels import fbgemm, integer, table
from neural_compressor.torch.modules.kernels.integer import INTEGER_KERNELS
from neural_compressor.torch.modules.kernels.quint8 import codes_of, to_quint8, with_qparams
from neural_compressor.torch.modules.kernels.table import kernel_for


@pytest.fixture
def fresh_probes():
    probes = {kernel.exact for kernel in INTEGER_KERNELS}
    for probe in probes:
        probe.cache_clear()
    yield
    for probe in probes:
        probe.cache_clear()


@pytest.mark.parametrize("op_type", ["Linear", "Conv1d", "Conv2d", "Conv3d"])
def test_int8_is_real_where_the_cpu_can(scheme, vnni, op_type):
    for mode in ("static", "dynamic"):
        assert (kernel_for(op_type, scheme("int8 channel", "uint8 asym", mode)) is not None) is vnni


@pytest.mark.parametrize(
    ("weight", "activation", "mode"),
    [
        ("int4 channel", "uint8 asym", "static"),
        ("int8 channel", "uint4 asym", "static"),
        ("int8 32", "uint8 asym", "static"),
        ("int8 channel", "uint8 asym channel", "static"),
        ("fp8_e4m3 channel", "fp8_e4m3", "static"),
        ("mxint8", "mxint8", "dynamic"),
    ],
)
def test_everything_else_has_no_kernel(scheme, weight, activation, mode):
    assert kernel_for("Linear", scheme(weight, activation, mode)) is None
    assert kernel_for("Linear", scheme("int8 channel")) is None
    assert kernel_for("ConvTranspose2d", scheme("int8 channel", "uint8 asym", "static")) is None


@pytest.mark.usefixtures("fresh_probes")
def test_a_kernel_that_saturates_is_not_used(scheme, monkeypatch):
    """What a CPU without VNNI does: pairs of products are summed in 16 bits."""

    def saturating(x, scale, zero_point, packed, relu):
        weight = torch.ops.quantized.linear_unpack(packed)[0].int_repr().float()
        pairs = (x[:, None, :] * weight[None]).unflatten(-1, (-1, 2)).sum(-1)
        return pairs.clamp(-(2**15), 2**15 - 1).sum(-1)

    monkeypatch.setattr(fbgemm, "linear_static", saturating)
    assert kernel_for("Linear", scheme("int8 channel", "uint8 asym", "static")) is None
    assert kernel_for("Linear", scheme("int8 channel reduced", "uint8 asym", "static")) is not None
    assert kernel_for("Linear", scheme("int8 channel", "uint8 asym reduced", "static")) is not None


@pytest.mark.usefixtures("fresh_probes")
def test_a_torch_without_the_engines_simulates(scheme, monkeypatch):
    monkeypatch.setattr(integer, "_has_engine", lambda name: False)
    q = quantized_module(nn.Conv2d(3, 4, 3), scheme("int8 channel", "uint8 asym", "static"), [(-1.0, 1.0)])
    assert q.simulated
    assert q(torch.randn(1, 3, 5, 5)).shape == (1, 4, 3, 3)


def test_packing_leaves_the_selected_engine_alone(scheme):
    before = torch.backends.quantized.engine
    other = next(e for e in torch.backends.quantized.supported_engines if e not in ("x86", "none"))
    torch.backends.quantized.engine = other
    try:
        q = quantized_module(nn.Linear(8, 4), scheme("int8 channel", "uint8 asym", "static"), [(-1.0, 1.0)])
        q(torch.randn(2, 8))
        assert torch.backends.quantized.engine == other
    finally:
        torch.backends.quantized.engine = before


def test_users_see_no_warnings():
    """In a process of its own: torch warns once a process."""
    script = """
import warnings, torch
warnings.simplefilter("error")
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules import quantized_module
how = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"}}
module = quantized_module(torch.nn.Linear(8, 4), OpScheme.from_dict(how), [(-1.0, 1.0)])
module(torch.randn(2, 8))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_codes_share_memory_with_the_quint8_tensor(layout):
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=layout)
    quint8 = to_quint8(x, 0.05, 100)
    assert torch.equal(codes_of(quint8), quint8.int_repr())
    assert codes_of(quint8).data_ptr() == quint8.data_ptr()
    back = with_qparams(codes_of(quint8), 0.05, 100)
    assert torch.equal(back.dequantize(), quint8.dequantize())
    assert back.stride() == x.stride()
    assert back.data_ptr() == quint8.data_ptr()
    assert to_quint8(back, 1.0, 0) is back
    part = codes_of(quint8[1:])
    assert torch.equal(part, quint8.int_repr()[1:])


# -- CPUs without VNNI ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["Linear", "Conv1d", "Conv2d", "Conv3d"])
def test_safe_pairs_and_reduced_weights_are_exact_on_every_x86_cpu(scheme, op_type):
    for mode in ("static", "dynamic"):
        assert kernel_for(op_type, scheme("int8 channel safe", "uint8 asym", mode)) is not None
        assert kernel_for(op_type, scheme("int8 channel reduced", "uint8 asym", mode)) is not None


@pytest.mark.parametrize(
    "shape", [(4, 6), (4, 5), (4, 4, 3), (4, 3, 2, 2), (4, 1, 3, 3), (4, 1, 2, 2, 2), (4, 2, 1, 3, 1)]
)
def test_partners_are_mutual_and_of_neighbouring_channels(shape):
    op_type = "Linear" if len(shape) == 2 else f"Conv{len(shape) - 2}d"
    partners = integer.kernel_pairs(op_type, shape)
    columns = np.arange(partners.size)
    assert (partners[partners] == columns).all()
    for first, second in zip(columns, partners, strict=True):
        a, b = (np.unravel_index(c, shape[1:]) for c in (first, second))
        if len(shape) > 2 and shape[1] > 1:
            assert a[1:] == b[1:]  # the same place of the window
            assert a[0] // 2 == b[0] // 2
        elif op_type in ("Conv1d", "Conv2d"):
            assert first == second


@pytest.fixture
def without_vnni(monkeypatch):
    """The kernels as a CPU has them that adds pairs of products in 16 bits."""
    saturating = [replace(k, exact=lambda kind, act, codes: act == 127 or codes != "all") for k in INTEGER_KERNELS[:-1]]
    monkeypatch.setattr(table, "KERNELS", [*saturating, INTEGER_KERNELS[-1]])


@pytest.mark.usefixtures("without_vnni")
def test_weights_that_would_saturate_are_simulated_and_say_why(scheme):
    q = quantized_module(nn.Linear(8, 4), scheme("int8 channel", "uint8 asym", "static"), [(-1.0, 1.0)])
    assert q.simulated
    assert "16 bits" in q.why_simulated()
    assert "reduce_range=True" in q.why_simulated()
    lstm = quantized_module(nn.LSTM(8, 4), scheme("int8 channel", "uint8 asym", "dynamic"))
    assert lstm.simulated
    assert "float" in lstm.why_simulated()
    assert torch.isfinite(lstm(torch.randn(3, 2, 8))[0]).all()


@pytest.mark.usefixtures("without_vnni")
@pytest.mark.parametrize(
    ("weight", "safe"),
    [
        ("int8 channel", "int8 channel safe"),
        ("int8 asym channel", "int8 asym channel reduced"),
        ("int4 channel", "int4 channel"),
    ],
)
def test_the_weight_a_saturating_cpu_runs_exactly(scheme, weight, safe):
    assert integer.safe_weight("Linear", scheme(weight, "uint8 asym", "static")) == scheme(safe).weight


@pytest.mark.parametrize(
    ("op_type", "how", "words"),
    [
        ("ConvTranspose2d", ("int8 channel", "uint8 asym", "static"), "no integer kernel for ConvTranspose2d"),
        ("LSTM", ("int8 channel", "uint8 asym", "static"), "only dynamic"),
        ("Linear", ("int4 channel", "uint8 asym", "static"), "8-bit weights"),
    ],
)
def test_why_there_is_no_kernel(scheme, op_type, how, words):
    assert words in integer.why_simulated(op_type, scheme(*how))


def test_a_stored_weight_that_is_not_what_it_says_is_refused(scheme):
    how = scheme("int8 channel safe", "uint8 asym", "static")
    q = quantized_module(nn.Linear(8, 4), how, [(-1.0, 1.0)])
    state = q.state_dict()
    state["weight_packed"] = torch.full_like(state["weight_packed"], 127)
    with pytest.raises(FormatError, match="pair_safe"):
        quantized_module(nn.Linear(8, 4), how, state=state)
