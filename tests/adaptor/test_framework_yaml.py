"""What is wrong with a framework YAML is said with file, entry, field, and what is admitted."""

import pytest

from neural_compressor.adaptor.framework_yaml import read_entries
from neural_compressor.errors import ConfigError

OP = (
    "- version: {{name: default}}\n  int8: {{static: {{Conv2d: {{weight: {weight}, activation: {{dtype: uint8}}}}}}}}\n"
)
HERE = "entry 1 (version default): int8.static.Conv2d"


def op(weight):
    return OP.format(weight=weight)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        pytest.param(op("{dtype: int88}"), [f"{HERE}.weight.dtype", "'int88'", "did you mean", "int8"], id="dtype"),
        pytest.param(op("{dtype: 8}"), [f"{HERE}.weight.dtype", "8", "type str"], id="dtype-type"),
        pytest.param(op("{dtype: int8, scheme: [sim]}"), [f"{HERE}.weight.scheme", "'sim'", "sym"], id="scheme"),
        pytest.param(
            op("{dtype: int8, granularity: per_row}"),
            [f"{HERE}.weight.granularity", "'per_row'", "per_tensor", "per_channel", "per_group"],
            id="granularity",
        ),
        pytest.param(
            op("{dtype: int8, algorithm: [minmax, max]}"),
            [f"{HERE}.weight.algorithm", "'max'", "minmax", "kl", "percentile", "mse", "moving_average"],
            id="algorithm",
        ),
        pytest.param(op("{dtype: int8, schema: sym}"), [f"{HERE}.weight.schema", "scheme"], id="field"),
        pytest.param(op("{dtype: []}"), [f"{HERE}.weight.dtype", "empty"], id="no-option"),
        pytest.param(op("{scheme: sym}"), [f"{HERE}.weight", "dtype"], id="no-dtype"),
        pytest.param(op("[int8]"), [f"{HERE}.weight", "mapping"], id="no-mapping"),
        pytest.param(op("{dtype: nf4, scheme: asym}"), [f"{HERE}.weight.scheme", "nf4", "'sym'"], id="asym-codebook"),
        pytest.param(
            op("{dtype: int8, granularity: per_group}"), [f"{HERE}.weight.group_size", "missing"], id="no-group-size"
        ),
        pytest.param(
            op("{dtype: int8, granularity: per_group, group_size: [0]}"),
            [f"{HERE}.weight.group_size", "-1"],
            id="group-0",
        ),
        pytest.param(op("{dtype: int8, bits: 4}"), [f"{HERE}.weight.bits", "'int' or 'uint'"], id="bits"),
        pytest.param(op("{dtype: int, bits: 99}"), [f"{HERE}.weight.dtype", "'int99'"], id="99-bits"),
        pytest.param(
            op("{dtype: int8, quant_mode: dynamic}"), [f"{HERE}.weight.quant_mode", "'static'"], id="other-mode"
        ),
        pytest.param(
            "- version: {name: default}\n  int8: {sttic: {Conv2d: {}}}\n", ["int8.sttic", "static, dynamic"], id="mode"
        ),
        pytest.param("- version: {name: default}\n  int8: {static: [a]}\n", ["int8.static", "list"], id="modes"),
        pytest.param("- version: {name: default}\n  int8: {static: {A: {out: 1}}}\n", ["A.out", "weight"], id="tensor"),
        pytest.param("- version: {name: default}\n  banana: ['*']\n", ["'banana'", "precision"], id="precision"),
        pytest.param("- version: {name: default}\n  bf16: [1]\n", ["bf16", "[1]", "list of names"], id="op-types"),
        pytest.param("- version: {name: default}\n  precisions: {nam: a}\n", ["precisions.nam", "names"], id="section"),
        pytest.param("- version: {name: default}\n  precisions: {names: a}\n", ["precisions.names", "'a'"], id="names"),
        pytest.param(
            "- version: {name: 2.10}\n  fp32: ['*']\n", ["version.name", "2.1", "quoted"], id="number-version"
        ),
        pytest.param("- fp32: ['*']\n", ["entry 1", "version"], id="no-version"),
        pytest.param("- version: {name: default}\n- [1]\n", ["entry 2", "list", "mapping"], id="entry"),
        pytest.param(
            "- version: {name: default}\n  bf16: [A]\n  ops: {bf16: [B]}\n",
            ["bf16", "'ops'", "once"],
            id="both-spellings",
        ),
        pytest.param("just a word", ["str", "list of entries"], id="text"),
        pytest.param("", ["nothing", "list of entries"], id="empty"),
        pytest.param("- version: default\n  fp32: ]\n", ["not valid YAML", "line 2"], id="syntax"),
        pytest.param("- !!python/object/apply:os.getcwd []", ["not valid YAML", "python/object"], id="hostile"),
        pytest.param("- &a [*a]", ["entry 1", "list"], id="recursive"),
        pytest.param(
            "- version: {name: default}\n  bf16: [A]\n  bf16: [B]\n", ["'bf16'", "twice", "line 3"], id="repeated-key"
        ),
        pytest.param(
            "- &base {version: {name: '1'}, bf16: [A], bf16: [B]}\n- {<<: *base, version: {name: '2'}}\n",
            ["'bf16'", "twice", "line 1"],
            id="repeated-key-taken-over",
        ),
    ],
)
def test_error_says_where_what_and_what_would_be_right(write_yaml, text, fragments):
    path = write_yaml(text)
    with pytest.raises(ConfigError) as caught:
        read_entries(path)
    for fragment in [str(path), *fragments]:
        assert fragment in str(caught.value)


def test_a_key_taken_over_may_be_written_anew(write_yaml):
    text = "- &base {version: {name: '1'}, bf16: [A]}\n- &next {<<: *base, bf16: [B]}\n- {<<: *next, bf16: [C]}\n"
    assert [entry.op_types["bf16"] for entry in read_entries(write_yaml(text))] == [("A",), ("B",), ("C",)]


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist"):
        read_entries(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_entries(tmp_path)


def test_binary_file(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match=r"model\.bin cannot be read"):
        read_entries(tmp_path / "model.bin")


def test_missing_fields_have_the_defaults_of_a_scheme(write_yaml):
    (entry,) = read_entries(write_yaml(op("{dtype: int8}")))
    weight = entry.capabilities["int8"]["static"]["Conv2d"]["weight"]
    assert weight == {"dtype": ["int8"], "scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}


def test_aliases_of_data_types_become_their_names(write_yaml):
    (entry,) = read_entries(
        write_yaml("- version: {name: default}\n  mxfp8: {weight_only: {L: {weight: {dtype: mxfp8}}}}\n")
    )
    assert entry.capabilities["mxfp8_e4m3"]["weight_only"]["L"]["weight"]["dtype"] == ["mxfp8_e4m3"]


def test_explicit_key_wins_over_a_merged_one_without_being_a_repetition(write_yaml):
    text = "- &a\n  version: {name: default}\n  bf16: [A]\n- <<: *a\n  version: {name: '1'}\n  bf16: [B]\n"
    assert [entry.op_types["bf16"] for entry in read_entries(write_yaml(text))] == [("A",), ("B",)]
