"""The capability file of the eager PyTorch adaptor."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import neural_compressor.adaptor
from neural_compressor.adaptor import QueryBackendCapability, op_configs
from neural_compressor.adaptor.capability import is_float_config
from neural_compressor.config.op_options import op_options
from neural_compressor.schemes import OpScheme, quantize, sqnr_db
from neural_compressor.testing.options import choices

FILE = Path(neural_compressor.adaptor.__file__).with_name("pytorch_cpu.yaml")
WEIGHTED = ["Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
FUNCTIONAL = ["MatMul", "Add", "Mul"]
RECURRENT = ["LSTM", "GRU"]


@pytest.fixture(scope="module")
def query():
    return QueryBackendCapability(FILE, "2.13.0+cpu")


def default(query, op_type):
    return OpScheme.from_dict(next(choices(op_configs(query, op_type)[0])))


@pytest.mark.parametrize("op_type", [*WEIGHTED, *FUNCTIONAL])
def test_default_is_static_int8_with_unsigned_asymmetric_activations(query, op_type):
    scheme = default(query, op_type)
    assert scheme.mode == "static"
    assert (scheme.activation.dtype.name, scheme.activation.symmetric) == ("uint8", False)
    assert (scheme.weight is None) == (op_type in FUNCTIONAL)
    if scheme.weight is not None:
        assert (scheme.weight.dtype.name, scheme.weight.symmetric) == ("int8", True)


@pytest.mark.parametrize("op_type", RECURRENT)
def test_recurrent_ops_are_dynamic_only(query, op_type):
    modes = [c["activation"]["quant_mode"] for c in op_configs(query, op_type) if not is_float_config(c)]
    assert modes == ["dynamic"]


def test_embedding_has_its_table_quantized_in_both_modes(query):
    configs = [c for c in op_configs(query, "Embedding") if not is_float_config(c)]
    both = [{"dtype": ["fp32"], "quant_mode": mode} for mode in ("static", "dynamic")]
    for dtype, scheme in (("uint8", "asym"), ("fp8_e4m3", "sym"), ("fp8_e5m2", "sym")):
        found = [c for c in configs if c["weight"]["dtype"] == [dtype]]
        assert [c["activation"] for c in found] == both
        assert all(c["weight"]["scheme"] == [scheme] for c in found)


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("op_type", ["Linear", "Conv1d", "Conv2d", "Conv3d"])
def test_low_bits_are_admitted_for_linear_and_convolutions(query, op_type, bits):
    static = query.get_quantization_capability()[f"int{bits}"]["static"][op_type]
    assert static["weight"]["dtype"] == [f"int{bits}"]
    assert static["activation"]["dtype"][0] == f"uint{bits}"
    assert {"kl", "minmax"} <= set(static["activation"]["algorithm"])
    assert set(static["activation"]["scheme"]) == {"sym", "asym"}


@pytest.mark.parametrize(
    "precision", ["int2", "int3", "int4", "int5", "int6", "int7", "int8", "nf4", "fp4_e2m1", "mxfp4", "mxfp8_e4m3"]
)
def test_linear_has_weight_only_options(query, precision):
    assert "Linear" in query.get_quantization_capability()[precision]["weight_only"]


def test_every_op_type_can_stay_in_fp32_and_the_listed_ones_in_bf16(query):
    def floats(op_type):
        return [c["activation"]["dtype"] for c in op_configs(query, op_type) if is_float_config(c)]

    assert floats("Conv2d") == ["bf16", "fp16", "fp32"]
    assert floats("LSTM") == floats("Softmax") == ["fp32"]


def test_old_releases_have_no_fp16():
    old = QueryBackendCapability(FILE, "2.1")
    assert old.get_version() == "default"
    assert "fp16" not in old.get_precisions()
    assert old.get_quantization_capability() == QueryBackendCapability(FILE, "2.6").get_quantization_capability()


def test_every_choice_is_a_scheme_and_every_weight_scheme_quantizes(query):
    weights = {}
    for op_type in query.get_op_types_by_precision("int8"):
        for scheme in op_options(op_configs(query, op_type)):
            weights[scheme.weight] = op_type
    x = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    for scheme in filter(None, weights):
        error = sqnr_db(x, quantize(x, scheme).dequantize())
        # A uniform grid gains six decibels a bit; half of that, less what one scale for all costs at the lowest bits.
        assert error > 3 * (scheme.dtype.bits - 2), f"{weights[scheme]}: {scheme}: {error:.1f} dB"


def test_printed_block_can_be_pasted_into_the_file(tmp_path, int4_block):
    block = int4_block.replace("\n    ", "\n  ")
    text = FILE.read_text().replace("  fp32: ['*'] # `*` means all op types.\n", f"  fp32: ['*']\n{block}", 1)
    assert "'dtype': ['uint4']" in text
    pasted = tmp_path / "pytorch_cpu.yaml"
    pasted.write_text(text)
    query = QueryBackendCapability(pasted, "2.13.0")
    assert query.get_version() == "2.6"
    assert query.get_quantization_capability()["int4"]["Conv2d"]["activation"]["scheme"] == ["sym"]


def test_plain_yaml_reads_it_too():
    assert [entry["version"]["name"] for entry in yaml.safe_load(FILE.read_text())] == ["default", "2.6"]
