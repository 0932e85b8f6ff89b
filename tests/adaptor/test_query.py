"""The framework YAML as an adaptor asks it: versions, spellings, wildcards, anchors, overlays."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from neural_compressor.adaptor import QueryBackendCapability
from neural_compressor.adaptor.query import best_name
from neural_compressor.errors import ConfigError

VERSIONS = """
- version: {name: 'default'}
  bf16: ['Default']
- version: {name: '1.9'}
  bf16: ['Nine']
- version: {name: ['1.10', '1.12.1']}
  bf16: ['Ten']
"""

DIRECT = """
- version: {name: default}
  fp32: ['*']
  bf16: [Linear]
  int8: &int8
    'static': {
      'Conv2d': &conv {
        'weight': &weight {
          'dtype': ['int8'], 'scheme': ['sym'], 'granularity': ['per_channel'], 'algorithm': ['minmax']},
        'activation': {'dtype': ['uint8'], 'scheme': ['asym'], 'granularity': ['per_tensor'], 'algorithm': ['kl']}},
      'Conv1d': *conv}
    'dynamic':
      Linear:
        weight: *weight
        activation: {<<: *weight, granularity: per_tensor, dtype: uint8}
  patterns:
    int8: ['Conv2d + ReLU', [Linear, ReLU]]
"""

SECTIONS = """
- version: {name: default}
  precisions:
    names: int8, bf16, fp32
    valid_mixed_precisions: ['int8+bf16']
  ops:
    fp32: ['*']
    bf16: [Linear]
  capabilities:
    int8:
      static:
        Conv2d: &conv
          weight: &weight {dtype: int8, scheme: sym, granularity: per_channel, algorithm: minmax}
          activation: {dtype: uint8, scheme: asym, granularity: per_tensor, algorithm: kl}
        Conv1d: *conv
      dynamic:
        Linear:
          weight: *weight
          activation: {dtype: uint8, scheme: sym, granularity: per_tensor, algorithm: minmax}
  patterns:
    int8: ['Conv2d + ReLU', 'Linear + ReLU']
"""


@pytest.mark.parametrize(
    ("installed", "used", "op_type"),
    [
        ("1.8.2", "default", "Default"),
        ("1.9", "1.9", "Nine"),
        ("1.9.1+cpu", "1.9", "Nine"),
        ("1.10.0", "1.10", "Ten"),
        ("1.12", "1.10", "Ten"),
        ("1.12.1rc1", "1.12.1", "Ten"),
        ("2.0", "1.12.1", "Ten"),
    ],
)
def test_highest_version_not_above_the_installed_one(write_yaml, installed, used, op_type):
    query = QueryBackendCapability(write_yaml(VERSIONS), installed)
    assert query.get_version() == used
    assert query.get_op_types_by_precision("bf16") == [op_type]


release = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(st.lists(release, max_size=6), release)
def test_best_name_orders_versions_as_packaging_does(names, installed):
    fitting = [Version(name) for name in names if Version(name) <= Version(installed)]
    found = best_name(names, installed)
    assert (None if found is None else Version(found)) == max(fitting, default=None)


def test_no_entry_for_the_version_names_those_there_are(write_yaml):
    path = write_yaml("- version: {name: ['3.1', '3.2']}\n  fp32: ['*']\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path} has no entry for version 2.9") + ".*3.1, 3.2"):
        QueryBackendCapability(path, "2.9")


def test_both_spellings_mean_the_same(write_yaml):
    direct = QueryBackendCapability(write_yaml(DIRECT, "direct.yaml"), "1.0")
    sections = QueryBackendCapability(write_yaml(SECTIONS, "sections.yaml"), "1.0")
    assert direct.get_quantization_capability() == sections.get_quantization_capability()
    assert direct.get_op_types() == sections.get_op_types()
    assert (
        direct.get_fuse_patterns() == sections.get_fuse_patterns() == {"int8": [("Conv2d", "ReLU"), ("Linear", "ReLU")]}
    )
    assert set(direct.get_precisions()) == set(sections.get_precisions()) == {"int8", "bf16", "fp32"}
    assert (direct.get_valid_mixed_precisions(), sections.get_valid_mixed_precisions()) == ([], ["int8+bf16"])


def test_capability_by_mode_and_by_op_type(write_yaml):
    capability = QueryBackendCapability(write_yaml(DIRECT), "1.0").get_quantization_capability()
    expected = {
        "weight": {"dtype": ["int8"], "scheme": ["sym"], "granularity": ["per_channel"], "algorithm": ["minmax"]},
        "activation": {
            "dtype": ["uint8"],
            "scheme": ["asym"],
            "granularity": ["per_tensor"],
            "algorithm": ["kl"],
            "quant_mode": "static",
        },
    }
    assert capability["int8"]["static"]["Conv1d"] == capability["int8"]["Conv1d"] == expected
    assert capability["int8"]["Linear"]["activation"]["quant_mode"] == "dynamic"
    with pytest.raises(KeyError):
        capability["int8"]["Softmax"]


def test_capability_belongs_to_the_caller(write_yaml):
    query = QueryBackendCapability(write_yaml(DIRECT), "1.0")
    query.get_quantization_capability()["int8"]["Conv2d"]["weight"]["dtype"].append("changed")
    assert query.get_quantization_capability()["int8"]["Conv2d"]["weight"]["dtype"] == ["int8"]
    assert query.get_quantization_capability()["int8"]["Conv1d"]["weight"]["dtype"] == ["int8"]


def test_wildcard_stands_for_every_op_type(write_yaml):
    query = QueryBackendCapability(write_yaml(DIRECT), "1.0")
    assert query.runs_in("Softmax", "fp32")
    assert not query.runs_in("Softmax", "bf16")
    assert query.runs_in("Linear", "bf16")


def test_op_types_directly_under_a_precision_are_static_and_weight_only_integer_is_weight_only(write_yaml):
    path = write_yaml(
        """
        - version: {name: default}
          int8:
            Conv2D: {weight: {dtype: int8}, activation: {dtype: int8}}
          weight_only_integer:
            Linear: {weight: {dtype: [int], bits: [4, 8], granularity: per_group, group_size: [32, -1]}}
        """
    )
    capability = QueryBackendCapability(path, "1.0").get_quantization_capability()
    assert capability["int8"]["Conv2D"]["activation"]["quant_mode"] == "static"
    linear = capability["weight_only_integer"]["weight_only"]["Linear"]
    assert linear["weight"]["dtype"] == ["int4", "int8"]
    assert linear["activation"] == {"dtype": ["fp32"], "quant_mode": "weight_only"}


@pytest.mark.parametrize("as_entry", [False, True])
def test_overlay_adds_the_printed_block_and_keeps_the_rest(write_yaml, int4_block, as_entry):
    overlay = int4_block
    if as_entry:
        overlay = "- version: {name: 'default'}\n" + int4_block.replace("\n    ", "\n  ")
    base = QueryBackendCapability(write_yaml(DIRECT), "1.0")
    query = QueryBackendCapability(write_yaml(DIRECT), "1.0", overlay=write_yaml(overlay, "mine.yaml"))
    conv = query.get_quantization_capability()["int4"]["static"]["Conv2d"]
    assert (conv["weight"]["dtype"], conv["activation"]["dtype"]) == (["int4"], ["uint4"])
    assert query.get_quantization_capability()["int8"] == base.get_quantization_capability()["int8"]
    assert query.get_op_types_by_precision("fp32") == ["*"]


def test_overlay_replaces_one_op_type_of_one_mode(write_yaml):
    overlay = write_yaml(
        """
        int8: {static: {Conv2d: {weight: {dtype: int8}, activation: {dtype: int8}}}}
        bf16: [Conv2d]
        """,
        "mine.yaml",
    )
    capability = QueryBackendCapability(write_yaml(DIRECT), "1.0", overlay=overlay)
    int8 = capability.get_quantization_capability()["int8"]
    assert int8["static"]["Conv2d"]["activation"]["dtype"] == ["int8"]
    assert int8["static"]["Conv1d"]["activation"]["dtype"] == ["uint8"]
    assert list(int8["dynamic"]) == ["Linear"]
    assert capability.get_op_types_by_precision("bf16") == ["Conv2d"]


def test_overlay_extends_the_listed_op_types_of_a_precision(write_yaml):
    base = SECTIONS.replace("    bf16: [Linear]\n", "    bf16: [Linear]\n    int8: [Conv1d, Conv2d, Linear]\n")
    overlay = write_yaml("int8: {static: {Gemm: {weight: {dtype: int8}, activation: {dtype: int8}}}}", "mine.yaml")
    query = QueryBackendCapability(write_yaml(base), "1.0", overlay=overlay)
    assert query.get_op_types_by_precision("int8") == ["Conv1d", "Conv2d", "Linear", "Gemm"]


def test_overlay_is_chosen_by_version_too(write_yaml):
    overlay = write_yaml(
        "- version: {name: '1.5'}\n  bf16: [Old]\n- version: {name: '2.0'}\n  bf16: [New]\n", "mine.yaml"
    )
    query = QueryBackendCapability(write_yaml(DIRECT), "2.1", overlay=overlay)
    assert query.get_op_types_by_precision("bf16") == ["New"]


def test_subclass_says_which_file_and_version(write_yaml):
    class Query(QueryBackendCapability):
        def config_file(self):
            return Path(write_yaml(VERSIONS))

        def installed_version(self):
            return "1.9.3"

    assert Query().get_version() == "1.9"
    with pytest.raises(NotImplementedError, match="config_file"):
        QueryBackendCapability()
    with pytest.raises(NotImplementedError, match="installed_version"):
        QueryBackendCapability(write_yaml(VERSIONS))
