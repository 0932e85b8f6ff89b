import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules import QUANT_MODULES, quantized_module

RNN = {"LSTM": nn.LSTM, "GRU": nn.GRU}
SHAPES = list(itertools.product([1, 2], [False, True], [False, True], [True, False]))
DYNAMIC = ("int8 tensor safe", "uint8 asym", "dynamic")


pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")


@pytest.fixture(autouse=True)
def _plain_float_recurrence():
    """oneDNN's float recurrence, which is the reference here, comes out wrong on an emulated CPU."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def flat(output):
    y, hidden = output
    return [y, *hidden] if isinstance(hidden, tuple) else [y, hidden]


def make(kind, layers=1, both=False, batch_first=False, bias=True):
    return RNN[kind](10, 6, num_layers=layers, bidirectional=both, batch_first=batch_first, bias=bias).eval()


def hidden_for(kind, layers, both, batch):
    h = torch.randn(layers * (2 if both else 1), batch, 6)
    return (h, torch.randn_like(h)) if kind == "LSTM" else h


@pytest.mark.parametrize(("layers", "both", "batch_first", "bias"), SHAPES)
@pytest.mark.parametrize("kind", RNN)
def test_int8_is_close_to_float(scheme, kind, *, layers, both, batch_first, bias):
    module = make(kind, layers, both, batch_first, bias)
    x = torch.randn(3, 5, 10)
    hx = hidden_for(kind, layers, both, 3 if batch_first else 5)
    q = quantized_module(module, scheme(*DYNAMIC))
    for given in (None, hx):
        for found, expected in zip(flat(q(x, given)), flat(module(x, given)), strict=True):
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, rtol=0, atol=0.03)
    assert (q.kernel, q.simulated) == ("fbgemm int8 dynamic", False)


@pytest.mark.parametrize("kind", RNN)
@pytest.mark.parametrize("both", [False, True])
def test_int8_equals_torchs_own_module_on_the_same_codes(scheme, kind, both):
    module = make(kind, 2, both)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.ao.quantization.quantize_dynamic(nn.Sequential(module), {RNN[kind]}, dtype=torch.qint8)[0]
    # torch's module reduces the range of activations, and keeps weights per tensor with a zero-point.
    how = scheme("int8 asym tensor", "uint8 asym reduced", "dynamic")
    q = QUANT_MODULES[kind].from_state(module, how, their_state(theirs))
    x, hx = torch.randn(4, 3, 10), hidden_for(kind, 2, both, 3)
    for found, expected in zip(flat(q(x, hx)), flat(theirs(x, hx)), strict=True):
        assert torch.equal(found, expected)


def their_state(quantized):
    state = {}
    for index, cell in enumerate(quantized._all_weight_values):
        layer, reverse = divmod(index, 2) if quantized.bidirectional else (index, 0)
        end = f"l{layer}{'_reverse' if reverse else ''}"
        (_, biases, _, _, packed), _ = cell.param.__getstate__()
        for side, bias, linear in zip(("ih", "hh"), biases, packed, strict=True):
            weight, _ = torch.ops.quantized.linear_unpack(linear)
            state[f"weight_{side}_{end}_packed"] = weight.int_repr().view(torch.uint8)
            state[f"weight_{side}_{end}_scale"] = torch.tensor(weight.q_scale(), dtype=torch.float32)
            state[f"weight_{side}_{end}_zero_point"] = torch.tensor(weight.q_zero_point(), dtype=torch.int8)
            state[f"bias_{side}_{end}"] = bias.detach()
    return state


@pytest.mark.parametrize("both", [False, True])
def test_lstm_against_the_equations(scheme, ref, both):
    """The LSTM equations step by step in float64, weights and activations rounded to 8 bits."""
    module = make("LSTM", 1, both)
    q = quantized_module(module, scheme("int8 channel safe", "uint8 asym", "dynamic"))
    weights = q.dequantized_weights()
    x = torch.randn(4, 1, 10)
    outputs = [lstm_by_hand(module, weights, ref, x, "")]
    if both:
        outputs.append(lstm_by_hand(module, weights, ref, x.flip(0), "_reverse").flip(0))
    torch.testing.assert_close(q(x)[0].double(), torch.cat(outputs, -1), rtol=0, atol=1e-5)
    assert (module(x)[0] - q(x)[0]).abs().max() > 1e-4


def lstm_by_hand(module, weights, ref, x, end):
    ih, hh = (weights[f"weight_{s}_l0{end}"].double() for s in ("ih", "hh"))
    bias = (getattr(module, f"bias_ih_l0{end}") + getattr(module, f"bias_hh_l0{end}")).detach().double()
    h = c = torch.zeros(1, 6, dtype=torch.float64)
    steps = []
    for t in ref.rounded(x, x.min(), x.max()):  # the kernel multiplies the whole sequence at once
        h8 = ref.rounded(h, h.min(), h.max()) if h.any() else h
        i, f, g, o = (t @ ih.T + h8 @ hh.T + bias).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        steps.append(h)
    return torch.stack(steps)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
@pytest.mark.parametrize("kind", RNN)
def test_packed_sequences(scheme, kind, mode):
    module = make(kind, 2, True)
    q = quantized_module(module, scheme(*DYNAMIC) if mode == "dynamic" else scheme("int8 channel"))
    x = pack_sequence([torch.randn(n, 10) for n in (2, 5, 3)], enforce_sorted=False)
    hx = hidden_for(kind, 2, True, 3)
    for given in (None, hx):
        found, expected = q(x, given), module(x, given)
        for a, b in zip(pad_packed_sequence(found[0]), pad_packed_sequence(expected[0]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0.03)
        for a, b in zip(flat(("", found[1]))[1:], flat(("", expected[1]))[1:], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0.03)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", RNN)
def test_unbatched_and_bfloat16(scheme, kind, batch_first, mode):
    module = make(kind, batch_first=batch_first)
    q = quantized_module(module, scheme(*DYNAMIC) if mode == "dynamic" else scheme("int8 channel"))
    x = torch.randn(5, 10)
    hx = hidden_for(kind, 1, False, 1)
    squeezed = tuple(h[:, 0] for h in hx) if kind == "LSTM" else hx[:, 0]
    for given in (None, squeezed):
        for a, b in zip(flat(q(x, given)), flat(module(x, given)), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0.03)
    for found in flat(q(x.bfloat16())):
        assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", RNN)
@pytest.mark.parametrize("weight", ["int4 channel", "nf4 8", "int8 channel"])
def test_weight_only_runs_the_float_recurrence_on_dequantized_weights(scheme, kind, weight):
    module = make(kind, 2, True)
    q = quantized_module(module, scheme(weight))
    twin = make(kind, 2, True)
    twin.load_state_dict({**module.state_dict(), **q.dequantized_weights()})
    x = torch.randn(4, 3, 10)
    for found, expected in zip(flat(q(x)), flat(twin(x)), strict=True):
        torch.testing.assert_close(found, expected)
    assert q.simulated


def test_what_cannot_run_is_said_at_once(scheme):
    with pytest.raises(QuantizationError, match="projections"):
        quantized_module(nn.LSTM(4, 4, proj_size=2), scheme("int8 channel"))
    for how in (scheme("int8 channel", "uint8 asym", "static"), scheme("int4 channel", "uint8 asym", "dynamic")):
        with pytest.raises(QuantizationError, match="or weight_only"):
            quantized_module(nn.LSTM(4, 4), how)
    broken = nn.GRU(4, 4)
    broken.weight_hh_l0.data[0, 0] = float("nan")
    with pytest.raises(QuantizationError, match="weight_hh_l0"):
        quantized_module(broken, scheme("int8 channel"))
