"""A Llama exported to GGUF, as the reader of llama.cpp and transformers see it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError, MissingDependencyError
from neural_compressor.formats import LinearWeight, export_llama_gguf
from neural_compressor.formats.gguf_file import encode_tensor
from neural_compressor.schemes import PerGroup, TensorScheme, quantize

INT4 = TensorScheme(dtype("int4"), True, PerGroup(32))


def rounded(tensors: dict[str, np.ndarray], scheme: TensorScheme = INT4) -> dict[str, Any]:
    """The tensors with the linear layers of the blocks quantized, under the names of the layers."""
    return {
        name.removesuffix(".weight") if "_proj" in name else name: LinearWeight.from_quantized(quantize(x, scheme))
        if "_proj" in name
        else x
        for name, x in tensors.items()
    }


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, llama_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> Any:
        if name == "gguf":
            raise ModuleNotFoundError("No module named 'gguf'", name="gguf")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingDependencyError, match=r"open-neural-compressor\[gguf\]"):
        export_llama_gguf(tmp_path / "m.gguf", llama_config, {})
    assert not (tmp_path / "m.gguf").exists()


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        self.gguf = pytest.importorskip("gguf", reason="the writer is not installed: pip install gguf")

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The metadata and the tensors (values, type name) of a file."""
        reader = self.gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {
            t.name: (self.gguf.quants.dequantize(np.asarray(t.data), t.tensor_type), t.tensor_type.name)
            for t in reader.tensors
        }
        return fields, tensors

    @pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
    def test_a_float_model_is_rounded_to_the_type_asked_for(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray], kind: str
    ) -> None:
        types = export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, float_as=kind)
        _, tensors = self.read(tmp_path / "m.gguf")
        assert types == {name: stored for name, (_, stored) in tensors.items()}
        assert types["blk.1.ffn_down.weight"] == kind
        assert types["blk.1.ffn_norm.weight"] == "F32"
        assert len(types) == len(llama_tensors)
        float_weight = llama_tensors["model.layers.1.mlp.down_proj.weight"]
        # The largest value of a block over half the number of steps to either side of zero.
        step = {"F32": 0.0, "F16": 2.0**-11, "Q8_0": 1 / 127, "Q4_0": 1 / 8, "Q4_1": 2 / 15}[kind]
        blocks = np.abs(float_weight).reshape(64, 3, 32).max(-1)
        bound = np.repeat(blocks, 32, axis=1) * step
        assert np.all(np.abs(tensors["blk.1.ffn_down.weight"][0] - float_weight) <= bound * 1.01)
        assert np.array_equal(
            tensors["blk.1.ffn_norm.weight"][0], llama_tensors["model.layers.1.post_attention_layernorm.weight"]
        )

    @pytest.mark.parametrize(
        ("name", "symmetric", "kind"), [("int4", True, "Q4_0"), ("int8", True, "Q8_0"), ("int4", False, "Q4_1")]
    )
    def test_codes_are_taken_as_they_are(
        self,
        tmp_path: Path,
        llama_config: dict[str, Any],
        llama_tensors: dict[str, np.ndarray],
        name: str,
        symmetric: bool,
        kind: str,
    ) -> None:
        scheme = TensorScheme(dtype(name), symmetric, PerGroup(32))
        layers = rounded(llama_tensors, scheme)
        export_llama_gguf(tmp_path / "m.gguf", llama_config, layers)
        _, tensors = self.read(tmp_path / "m.gguf")
        for ours, theirs in (
            ("mlp.down_proj", "ffn_down"),
            ("self_attn.v_proj", "attn_v"),
            ("mlp.gate_proj", "ffn_gate"),
        ):
            values, stored = tensors[f"blk.0.{theirs}.weight"]
            weight = layers[f"model.layers.0.{ours}"]
            assert stored == kind
            steps = values / np.take(weight.scale.astype(np.float16).astype(np.float32), weight.column_groups, axis=1)
            zeros = np.take(weight.zero_points, weight.column_groups, axis=1)
            assert np.array_equal(np.round(steps), weight.codes.astype(int) - zeros)
            assert np.allclose(steps, np.round(steps), atol=0.01)

    def test_query_and_key_rows_alternate_between_the_halves_of_a_head(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, float_as="F32")
        _, tensors = self.read(tmp_path / "m.gguf")
        for ours, theirs, heads in (("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)):
            weight = llama_tensors[f"model.layers.0.self_attn.{ours}.weight"]
            found = tensors[f"blk.0.{theirs}.weight"][0]
            for head in range(heads):
                for pair in range(8):
                    for half in range(2):
                        assert np.array_equal(found[head * 16 + 2 * pair + half], weight[head * 16 + half * 8 + pair])

    def test_the_metadata_is_that_of_the_model(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        export_llama_gguf(tmp_path / "m.gguf", llama_config, rounded(llama_tensors), name="tiny")
        fields, _ = self.read(tmp_path / "m.gguf")
        expected = {
            "general.architecture": "llama",
            "general.name": "tiny",
            "general.file_type": 2,
            "llama.block_count": 2,
            "llama.context_length": 128,
            "llama.embedding_length": 64,
            "llama.feed_forward_length": 96,
            "llama.attention.head_count": 4,
            "llama.attention.head_count_kv": 2,
            "llama.rope.dimension_count": 16,
            "llama.rope.freq_base": 5000.0,
            "llama.vocab_size": 40,
            "tokenizer.ggml.model": "none",
        }
        assert {key: fields[key] for key in expected} == expected
        assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)

    def test_biases_follow_their_weights(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        layers = rounded(llama_tensors)
        bias = np.arange(64, dtype=np.float32)
        q = layers["model.layers.0.self_attn.q_proj"]
        layers["model.layers.0.self_attn.q_proj"] = LinearWeight(q.codes, q.scale, None, 4, 32, None, bias)
        layers["model.layers.0.self_attn.v_proj.bias"] = bias[:32]
        types = export_llama_gguf(tmp_path / "m.gguf", llama_config, layers)
        _, tensors = self.read(tmp_path / "m.gguf")
        assert types["blk.0.attn_q.bias"] == "F32"
        assert tensors["blk.0.attn_q.bias"][0][:4].tolist() == [0, 8, 1, 9]
        assert np.array_equal(tensors["blk.0.attn_v.bias"][0], bias[:32])

    def test_rotary_factors_of_llama_3_are_those_of_transformers(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        transformers = pytest.importorskip("transformers", reason="not installed: pip install transformers")
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        scaling = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        settings = {**llama_config, "rope_scaling": scaling}
        export_llama_gguf(tmp_path / "m.gguf", settings, llama_tensors)
        _, tensors = self.read(tmp_path / "m.gguf")
        known = transformers.LlamaConfig(**{**llama_config, "rope_parameters": {**scaling, "rope_theta": 5000.0}})
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](known, "cpu")
        plain = 5000.0 ** -(np.arange(0, 16, 2) / 16)
        assert np.allclose(plain / tensors["rope_freqs.weight"][0], frequencies.numpy(), rtol=1e-5)

    def test_linear_scaling_is_said(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        settings = {**llama_config, "rope_scaling": {"type": "linear", "factor": 2.0}}
        export_llama_gguf(tmp_path / "m.gguf", settings, llama_tensors)
        fields, _ = self.read(tmp_path / "m.gguf")
        assert (fields["llama.rope.scaling.type"], fields["llama.rope.scaling.factor"]) == ("linear", 2.0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"model_type": "gemma"}, "not 'gemma'"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' is not exported"),
            ({"num_attention_heads": 3}, "3 heads cannot share"),
        ],
    )
    def test_other_models_are_refused(
        self,
        tmp_path: Path,
        llama_config: dict[str, Any],
        llama_tensors: dict[str, np.ndarray],
        change: dict,
        message: str,
    ) -> None:
        with pytest.raises(FormatError, match=message):
            export_llama_gguf(tmp_path / "m.gguf", {**llama_config, **change}, llama_tensors)
        assert list(tmp_path.glob("*.gguf")) == []
        assert list(tmp_path.glob(".m.gguf*")) == []

    def test_a_tensor_without_a_place_is_named(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        odd = {**llama_tensors, "model.layers.0.mlp.experts.gate_up_proj": np.zeros((2, 4), np.float32)}
        with pytest.raises(FormatError, match=r"model.layers.0.mlp.experts.gate_up_proj"):
            export_llama_gguf(tmp_path / "m.gguf", llama_config, odd)
        with pytest.raises(FormatError, match="hidden_size"):
            export_llama_gguf(tmp_path / "m.gguf", {"model_type": "llama"}, llama_tensors)

    def test_numbers_that_are_none_are_refused(self) -> None:
        with pytest.raises(FormatError, match="tensor 'fc' holds NaN"):
            encode_tensor(np.float32([[np.nan]]), "F16", "fc")
        with pytest.raises(FormatError, match="not 'Q3_K'"):
            encode_tensor(np.float32([[1.0]]), "Q3_K", "fc")

    def test_rows_that_are_no_whole_blocks_stay_float16(self) -> None:
        assert encode_tensor(np.ones((2, 40), np.float32), "Q4_0")[1] == "F16"

    def test_transformers_computes_the_same_logits(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        transformers = pytest.importorskip("transformers", reason="not installed: pip install transformers")
        pytest.importorskip("accelerate", reason="transformers reads GGUF through it: pip install accelerate")
        import torch

        scheme = TensorScheme(dtype("int8"), True, PerGroup(32))
        layers = {
            name: LinearWeight(w.codes, w.scale.astype(np.float16), None, 8, 32) if isinstance(w, LinearWeight) else w
            for name, w in rounded(llama_tensors, scheme).items()
        }
        export_llama_gguf(tmp_path / "m.gguf", llama_config, layers, float_as="F32")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
        ours = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config))
        state = {
            f"{n}.weight" if isinstance(w, LinearWeight) else n: w.dequantize() if isinstance(w, LinearWeight) else w
            for n, w in layers.items()
        }
        ours.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        tokens = torch.arange(40)[None]
        with torch.no_grad():
            assert torch.allclose(loaded(tokens).logits, ours(tokens).logits, rtol=1e-5, atol=1e-6)

    # -- the vocabulary -----------------------------------------------------------------------------------------------

    def vocabulary(self, folder: Path, **change: Any) -> Path:
        """A byte-level tokenizer of 30 tokens, one of them special."""
        vocab = {"<|end|>": 0, **{chr(97 + i): i + 1 for i in range(26)}, "ab": 27, "abc": 28}
        content = {
            "added_tokens": [
                {"id": 0, "content": "<|end|>", "special": True},
                {"id": 29, "content": "<extra>", "special": False},
            ],
            "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "byte_fallback": False, "vocab": vocab, "merges": [["a", "b"], "ab c"]},
        }
        for key, value in change.items():
            content[key] = {**content[key], **value} if key == "model" else value
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|end|>", "chat_template": "{{ x }}"}))
        return folder

    def test_tokens_types_and_merges_are_stored(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        folder = self.vocabulary(tmp_path / "tok", model={"merges": [["a", "b"], ["ab", "c"]]})
        export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder)
        fields, _ = self.read(tmp_path / "m.gguf")
        types = self.gguf.TokenType
        assert fields["tokenizer.ggml.model"] == "gpt2"
        assert fields["tokenizer.ggml.pre"] == "gpt-2"
        tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        assert tokens[:3] == ["<|end|>", "a", "b"]
        assert tokens[28:31] == ["abc", "<extra>", "[PAD30]"]
        assert len(tokens) == 40
        assert [kinds[0], kinds[1], kinds[29], kinds[30]] == [
            types.CONTROL,
            types.NORMAL,
            types.USER_DEFINED,
            types.UNUSED,
        ]
        assert fields["tokenizer.ggml.merges"] == ["a b", "ab c"]
        assert fields["tokenizer.ggml.bos_token_id"] == 0
        assert fields["tokenizer.chat_template"] == "{{ x }}"

    def test_sentencepiece_tokens_are_scored_by_their_merges(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        vocab = {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "ab": 4, "ba": 5}
        folder = self.vocabulary(
            tmp_path / "tok",
            model={"byte_fallback": True, "vocab": vocab, "merges": ["b a", "a b"]},
            added_tokens=[{"id": 0, "content": "<unk>", "special": True}],
        )
        export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder)
        fields, _ = self.read(tmp_path / "m.gguf")
        assert fields["tokenizer.ggml.model"] == "llama"
        assert fields["tokenizer.ggml.token_type"][1] == self.gguf.TokenType.BYTE
        scores = fields["tokenizer.ggml.scores"]
        assert scores[5] > scores[4]

    @pytest.mark.parametrize(
        ("rule", "name"),
        [
            ({"type": "ByteLevel", "use_regex": True}, "gpt-2"),
            (
                {
                    "type": "Sequence",
                    "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}],
                },
                "smollm",
            ),
            (
                {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}{1,3}"}},
                        {"type": "ByteLevel", "use_regex": False},
                    ],
                },
                "llama-bpe",
            ),
        ],
    )
    def test_ways_to_split_text_that_llama_cpp_names(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray], rule: Any, name: str
    ) -> None:
        folder = self.vocabulary(tmp_path / "tok", pre_tokenizer=rule, model={"merges": []})
        export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder)
        assert self.read(tmp_path / "m.gguf")[0]["tokenizer.ggml.pre"] == name

    def test_another_way_must_be_named(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        folder = self.vocabulary(tmp_path / "tok", pre_tokenizer={"type": "Whitespace"}, model={"merges": []})
        with pytest.raises(FormatError, match="pass pre_tokenizer="):
            export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder)
        export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder, pre_tokenizer="qwen2")
        assert self.read(tmp_path / "m.gguf")[0]["tokenizer.ggml.pre"] == "qwen2"

    def test_a_vocabulary_that_does_not_fit_is_refused(
        self, tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]
    ) -> None:
        folder = self.vocabulary(tmp_path / "tok")
        with pytest.raises(FormatError, match="the embedding has 20 rows"):
            export_llama_gguf(tmp_path / "m.gguf", {**llama_config, "vocab_size": 20}, llama_tensors, folder)
        self.vocabulary(tmp_path / "tok", model={"type": "Unigram"})
        with pytest.raises(FormatError, match="no BPE vocabulary"):
            export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder)
        (folder / "tokenizer.json").write_text("{")
        with pytest.raises(FormatError, match=r"tokenizer.json cannot be read as JSON"):
            export_llama_gguf(tmp_path / "m.gguf", llama_config, llama_tensors, folder)
