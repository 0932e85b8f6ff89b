"""What a config says of its data, as calls of the model."""

from __future__ import annotations

import pytest
import torch

from neural_compressor.errors import CalibrationError, ConfigError

pytest.importorskip("transformers", reason="the transformers extra is not installed")

from neural_compressor.torch.quantization.texts import calls_from


def letters(text: str) -> dict[str, list[int]]:
    return {"input_ids": [ord(letter) - 97 for letter in text]}


def samples(tmp_path, **fields) -> list[torch.Tensor]:
    return [args[0] for args, _ in calls_from(tokenizer=letters, folder=tmp_path, **fields)]


def test_texts_are_strung_together_and_cut(tmp_path) -> None:
    found = samples(tmp_path, dataset=["abcde", "fgh", "xyz"], nsamples=3, seqlen=2, batch_size=2)
    assert [batch.tolist() for batch in found] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_a_file_is_one_text(tmp_path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh")
    found = samples(tmp_path, dataset=str(tmp_path / "text.txt"), seqlen=3)
    assert [batch.tolist() for batch in found] == [[[0, 1, 2], [3, 4, 5]]]


def test_a_text_that_is_too_short_is_one_sample(tmp_path) -> None:
    assert [batch.tolist() for batch in samples(tmp_path, dataset=["abc"])] == [[[0, 1, 2]]]


def test_batches_are_taken_as_they_are_up_to_the_limit(tmp_path) -> None:
    ids = torch.arange(12).reshape(3, 4)
    calls = list(calls_from([{"input_ids": ids}] * 3, None, tmp_path, nsamples=4, seqlen=2))
    assert [kwargs["input_ids"].tolist() for _, kwargs in calls] == [ids[:, :2].tolist(), ids[:1, :2].tolist()]


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("NeelNanda/pile-10k", "nothing is downloaded"),
        (3, "got a int"),
        (iter(["abc"]), "only once"),
        ({"text": "abc"}, "got a dict"),
    ],
)
def test_what_is_no_data_is_refused(tmp_path, dataset, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        samples(tmp_path, dataset=dataset)


def test_texts_need_a_tokenizer_and_tokens(tmp_path) -> None:
    with pytest.raises(ConfigError, match="pass tokenizer="):
        list(calls_from(["abc"], None, tmp_path))
    with pytest.raises(CalibrationError, match="no tokens"):
        samples(tmp_path, dataset=["", ""])
