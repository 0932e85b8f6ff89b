"""Language models evaluated by the package lm-eval, on tasks in local files."""

import json
import sys
import types

import pytest
import torch

from neural_compressor.errors import ConfigError, EvaluationError, MissingDependencyError
from neural_compressor.evaluation.lm_eval import LMEvalParser, evaluate
from neural_compressor.evaluation.lm_eval.evaluate import _model

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")

QUESTIONS = [
    {"question": "a b c", "choices": ["d", "e", "f"], "answer": 0},
    {"question": "c c", "choices": ["a", "b", "g"], "answer": 2},
    {"question": "g f e d", "choices": ["c", "h", "a"], "answer": 1},
    {"question": "h", "choices": ["b", "a", "c"], "answer": 0},
]
TASK = """
task: letters
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {letter: number for number, letter in enumerate("abcdefgh", 2)} | {"<pad>": 0, "<eos>": 1}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def model():
    torch.manual_seed(3)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def task(tmp_path):
    (tmp_path / "tasks").mkdir()
    data = tmp_path / "questions.json"
    data.write_text("\n".join(json.dumps(each) for each in QUESTIONS))
    file = tmp_path / "tasks" / "letters.yaml"
    file.write_text(TASK.format(data=data))
    return file


def share_of_right_answers(net, encode):
    right = 0
    for each in QUESTIONS:
        with torch.no_grad():
            logits = net(torch.tensor([encode(each["question"])])).logits[0, -1]
        scores = [logits[encode(choice)[0]] for choice in each["choices"]]
        right += int(torch.stack(scores).argmax()) == each["answer"]
    return right / len(QUESTIONS)


def test_a_model_in_memory(task, tmp_path, capsys, monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    net, letters = model(), tokenizer()
    by_name = LMEvalParser(
        tasks="letters", include_path=str(task.parent), user_model=net, tokenizer=letters, output_path=tmp_path / "out"
    )
    found = evaluate(by_name)["results"]["letters"]["acc,none"]
    assert found == share_of_right_answers(net, letters.encode)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["results"]["letters"]["acc,none"] == found
    assert "letters" in capsys.readouterr().out
    by_file = LMEvalParser(tasks=[str(task)], user_model=net, tokenizer=letters, batch_size=2, limit=3)
    assert evaluate(by_file)["n-samples"]["letters"]["effective"] == 3


def test_folders_of_float_and_quantized_models(task, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from neural_compressor.torch.quantization import RTNConfig, quantize

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    letters, net = tokenizer(), model()
    net.save_pretrained(tmp_path / "float")
    letters.save_pretrained(tmp_path / "float")
    args = LMEvalParser(tasks=str(task), model_args=f"pretrained={tmp_path / 'float'},dtype=float32", device="cpu")
    assert evaluate(args)["results"]["letters"]["acc,none"] == share_of_right_answers(net, letters.encode)
    quantized = quantize(net, RTNConfig(bits=2, group_size=32), quiet=True)
    quantized.save(tmp_path / "int2", format="huggingface")
    letters.save_pretrained(tmp_path / "int2")
    args = LMEvalParser(tasks=str(task), model_args={"pretrained": str(tmp_path / "int2")})
    assert evaluate(args)["results"]["letters"]["acc,none"] == share_of_right_answers(quantized, letters.encode)


def test_what_a_loaded_model_is_evaluated_with(monkeypatch):
    given = {}
    module = types.SimpleNamespace(HFLM=lambda **options: given.update(options))
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", module)
    fields = {"batch_size": "auto", "max_batch_size": 3, "add_bos_token": True}
    args = LMEvalParser(tasks="a", user_model=object(), tokenizer=object(), **fields)
    _model(args)
    assert given["add_bos_token"] is True
    assert (given["batch_size"], given["max_batch_size"], given["trust_remote_code"]) == ("auto", 3, False)


def test_values_in_model_args():
    read = LMEvalParser(
        tasks="a", model_args="pretrained=12,add_bos_token=False,max_length=16,dtype=float32"
    ).model_args
    assert read == {"pretrained": "12", "add_bos_token": False, "max_length": 16, "dtype": "float32"}


def test_a_quantized_folder_is_loaded_as_it_was_saved(tmp_path):
    from neural_compressor.torch.quantization import RTNConfig, quantize

    quantize(model(), RTNConfig(group_size=32), quiet=True).save(tmp_path / "int4", format="huggingface")
    args = LMEvalParser(tasks="a", model_args=f"pretrained={tmp_path / 'int4'},dtype=bfloat16")
    with pytest.raises(ConfigError, match="dtype would have no effect"):
        evaluate(args)


@pytest.mark.slow
def test_a_task_that_is_not_there():
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    with pytest.raises(EvaluationError, match="does not evaluate no_such_task"):
        evaluate(LMEvalParser(tasks="no_such_task", user_model=model(), tokenizer=tokenizer()))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingDependencyError, match=r"open-neural-compressor\[lm-eval\]"):
        evaluate(LMEvalParser(tasks="piqa", user_model=object(), tokenizer=object()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "tasks"),
        ({"tasks": ""}, "tasks"),
        ({"tasks": "a", "batch_size": "many"}, "batch_size"),
        ({"tasks": "a", "limit": -1}, "limit"),
        ({"tasks": "a", "seed": [1, 2]}, "seed"),
        ({"tasks": "a", "include_path": "nowhere"}, "no folder 'nowhere'"),
        ({"tasks": "a", "model_args": "folder"}, "name=value"),
        ({"tasks": "a", "wandb_args": "x"}, "wandb_args"),
        ({"tasks": "a", "cache_requests": "yes"}, "cache_requests"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LMEvalParser(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_args": "pretrained=facebook/opt-125m"}, "nothing is downloaded"),
        ({}, "nothing is downloaded"),
        ({"user_model": object()}, "give tokenizer too"),
        ({"user_model": object(), "tokenizer": object(), "model_args": "dtype=float32"}, "would not be read"),
        ({"add_bos_token": True, "model_args": "add_bos_token=False"}, "add_bos_token is given twice"),
    ],
)
def test_models_that_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(LMEvalParser(tasks="piqa", **arguments))


def test_seeds():
    assert LMEvalParser(tasks="a", seed=5).seed == [5, 5, 5, 5]
    assert LMEvalParser(tasks="a", seed="0,1,None").seed == [0, 1, None, 1]
    assert LMEvalParser(tasks="a").seed == [0, 1234, 1234, 1234]
