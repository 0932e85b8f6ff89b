"""Entries of a framework YAML that are for some backends or formats only."""

import pytest

from neural_compressor.adaptor import QueryBackendCapability
from neural_compressor.errors import ConfigError

YAML = """
- version: {name: default}
  backends: [alpha]
  formats: [one]
  recipes: {pairs: true}
  bf16: [AlphaOne]
- version: {name: default}
  backends: [alpha]
  formats: [two, three]
  bf16: [AlphaTwo]
- version: {name: '2.0'}
  backends: beta
  bf16: [Beta]
- version: {name: default}
  backends: beta
  bf16: [OldBeta]
"""


def query(tmp_path, text=YAML, **wanted):
    path = tmp_path / "framework.yaml"
    path.write_text(text)
    return QueryBackendCapability(path, wanted.pop("version", "3.1"), **wanted)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"backend": "alpha"}, "AlphaOne"),
        ({"backend": "alpha", "quant_format": "three"}, "AlphaTwo"),
        ({"backend": "beta"}, "Beta"),
        ({"backend": "beta", "quant_format": "anything"}, "Beta"),
        ({"backend": "beta", "version": "1.5"}, "OldBeta"),
    ],
)
def test_backend_and_format_choose_the_entry_before_the_version_does(tmp_path, wanted, found):
    assert query(tmp_path, **wanted).get_op_types_by_precision("bf16") == [found]


@pytest.mark.parametrize("wanted", [{"backend": "gamma"}, {"backend": "alpha", "quant_format": "four"}])
def test_what_no_entry_is_for_is_an_error_that_lists_what_there_is(tmp_path, wanted):
    with pytest.raises(ConfigError, match=r"alpha: two, three.*beta: any format"):
        query(tmp_path, **wanted)


def test_a_file_without_backends_serves_all(tmp_path):
    text = "- version: {name: default}\n  bf16: [Plain]\n"
    assert query(tmp_path, text, backend="whatever").get_op_types_by_precision("bf16") == ["Plain"]


def test_recipes_of_an_overlay_are_laid_over(tmp_path):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("recipes: {pairs: false, own: 3}\nfp16: [More]\n")
    found = query(tmp_path, backend="alpha", overlay=overlay)
    assert dict(found.entry.recipes) == {"pairs": False, "own": 3}
    assert found.entry.backends == ("alpha",)
    assert found.get_op_types_by_precision("fp16") == ["More"]


def test_weight_only_options_may_name_weight_only_algorithms_and_others_may_not(tmp_path):
    weight = "{weight: {dtype: [int4], algorithm: [gptq, minmax]}}"
    good = query(tmp_path, f"int4: {{weight_only: {{Linear: {weight}}}}}")
    assert good.get_quantization_capability()["int4"]["Linear"]["weight"]["algorithm"] == ["gptq", "minmax"]
    with pytest.raises(ConfigError, match="unknown algorithm 'gptq'"):
        query(tmp_path, f"int4: {{static: {{Linear: {weight}}}}}")
