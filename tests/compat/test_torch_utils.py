"""Names of ``neural_compressor.torch.utils`` and ``.algorithms``."""

import copy

import pytest
import torch
from packaging.version import Version
from torch import nn

from neural_compressor.adaptor.torch_utils import auto_round, layer_wise_quant
from neural_compressor.errors import ConfigError
from neural_compressor.torch import load_empty_model, utils
from neural_compressor.torch.algorithms import layer_wise
from neural_compressor.torch.algorithms.weight_only.autoround import get_dataloader
from neural_compressor.torch.algorithms.weight_only.modules import INCWeightOnlyLinear
from neural_compressor.torch.quantization import (
    GPTQConfig,
    HybridGPTQConfig,
    RTNConfig,
    convert,
    prepare,
    quantize,
)
from neural_compressor.torch.utils.block_wise import block_wise_calibration
from neural_compressor.torch.utils.llm_utility import (
    get_default_llm_dataloader,
    initialize_model_and_tokenizer,
    llm_benchmark,
)
from neural_compressor.transformers.quantization.utils import convert_dtype_str2torch


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()


def letters(text):
    """A tokenizer that knows letters."""
    return {"input_ids": [ord(letter) for letter in text]}


def test_models_and_batches():
    model, x = net(), torch.randn(2, 32)
    for batch in (x, (x,), {"input": x}):
        assert torch.equal(utils.forward_wrapper(model, batch), model(x))
    assert utils.get_model_info(model, [nn.Linear]) == [("0", "Linear"), ("2", "Linear")]
    moved = utils.move_input_device(({"a": [x]}, 3), "meta")
    assert moved[0]["a"][0].device.type == "meta"
    assert moved[1] == 3
    assert utils.get_used_cpu_mem_MB() > 10
    assert utils.get_torch_version() >= Version("2.6")


def test_the_accelerator_is_found_when_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("INC_TARGET_DEVICE", "cpu")
    assert utils.accelerator.current_device_name() == "cpu"


def test_an_algorithm_of_ones_own_is_registered_elsewhere():
    with pytest.raises(ImportError, match="register_algorithm, see docs/algorithm_options"):
        exec("from neural_compressor.torch.utils import register_algo", {})


@pytest.mark.skipif(utils.is_hpu_available(), reason="there is an HPU here")
def test_an_hpu_that_is_not_there():
    with pytest.raises(ConfigError, match="no HPU"):
        utils.get_used_hpu_mem_MB()


@pytest.mark.parametrize("name", ["BNB_NF4", "GGML_TYPE_Q4_K"])
def test_double_quant(name):
    model = convert(net(), RTNConfig(**utils.get_double_quant_config_dict(name)), quiet=True)
    assert isinstance(model[0], INCWeightOnlyLinear)
    assert model[0].scheme.weight.scales is not None


def test_calibration_of_a_prepared_model():
    model = prepare(net(), GPTQConfig())
    block_wise_calibration(model, [torch.randn(4, 32) for _ in range(3)], num_samples=8)
    assert isinstance(convert(model, quiet=True)[2], INCWeightOnlyLinear)


def test_calibration_on_one_batch():
    model = prepare(net(), GPTQConfig())
    block_wise_calibration(model, data=torch.randn(4, 32), inference_dtype=torch.float32)
    assert isinstance(convert(model, quiet=True)[2], INCWeightOnlyLinear)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give dataloader, or data"),
        ({"dataloader": [], "data": torch.ones(1, 32)}, "give dataloader, or data"),
        (
            {"data": torch.ones(1, 32), "inference_dtype": torch.bfloat16},
            r"computes in torch.float32: .*\.to\(torch.bfloat16\)",
        ),
    ],
)
def test_calls_of_calibration_that_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        block_wise_calibration(prepare(net(), GPTQConfig()), **given)


def test_batches_of_local_texts(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("abcdefghij" * 4)
    batches = get_dataloader(letters, seqlen=10, dataset_name=file, bs=1, nsamples=3)
    assert [batch["input_ids"].shape for batch in batches] == [(1, 10)] * 3
    assert batches[0]["input_ids"][0].tolist() == [ord(letter) for letter in "abcdefghij"]
    assert all(batch["attention_mask"].tolist() == [[1] * 10] for batch in batches)
    texts = ["a" * 4, "b" * 4, "c" * 4, "d" * 4]
    orders = [
        [
            chr(batch["input_ids"][0, 0])
            for batch in get_default_llm_dataloader(letters, texts, bs=1, nsamples=4, seq_len=4, seed=seed)
        ]
        for seed in range(5)
    ]
    assert all(sorted(order) == list("abcd") for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    by_2x = auto_round.get_dataloader(letters, 10, dataset_name=file, bs=1, n_samples=3)
    assert all(torch.equal(one["input_ids"], other["input_ids"]) for one, other in zip(by_2x, batches, strict=True))
    assert layer_wise_quant.load_empty_model is load_empty_model


def test_nothing_is_downloaded():
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        get_dataloader(letters, dataset_name="NeelNanda/pile-10k")
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        initialize_model_and_tokenizer("facebook/opt-125m")


def tiny_llama():
    transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2)).eval()


def test_a_loader_without_a_name_says_what_to_give():
    with pytest.raises(ConfigError, match="expected a text file, a list of texts or batches"):
        get_default_llm_dataloader(lambda text: {"input_ids": [1]})


def test_a_quantized_model_of_a_folder_and_its_tokenizer(tmp_path):
    from tokenizers import Tokenizer, models

    model = quantize(tiny_llama(), RTNConfig(group_size=32), quiet=True)
    model.save(tmp_path, format="huggingface")
    transformers = pytest.importorskip("transformers")
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    words.save_pretrained(tmp_path)
    read, tokenizer = initialize_model_and_tokenizer(tmp_path, use_load=True, device="cpu")
    ids = torch.tensor([tokenizer("a a")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(read(ids).logits, model(ids).logits)


def test_throughput_of_a_language_model(capsys):
    calls = []
    model = tiny_llama()
    model.register_forward_hook(lambda module, args, output: calls.append(args[0].shape))
    assert llm_benchmark(model, batch_size=2, input_length=5, warmup_iters=1, total_iters=3) > 0
    assert calls == [(2, 5)] * 4
    assert "samples/s" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="total_iters is 0"):
        llm_benchmark(model, total_iters=0)


def test_what_is_around_the_blocks_of_an_empty_model(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    model = layer_wise.load_empty_model(tmp_path)
    layer_wise.load_first_layer_only(model, tmp_path)
    empty = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    assert empty
    assert all(".layers." in name for name in empty)
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        layer_wise.load_first_layer_only(model, "facebook/opt-125m")


def test_names_of_types():
    assert convert_dtype_str2torch("torch.bfloat16") is convert_dtype_str2torch("bf16") is torch.bfloat16
    assert convert_dtype_str2torch(torch.int8) is torch.int8
    assert convert_dtype_str2torch("auto") is torch.float32
    assert convert_dtype_str2torch("fp8_e5m2") is torch.float8_e5m2
    with pytest.raises(ConfigError, match="no data type 'nf4'"):
        convert_dtype_str2torch("nf4")


def test_few_bits_beside_fp8_inputs():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    x = torch.randn(64, 64)
    expected = net(x)

    def found(config):
        model = prepare(copy.deepcopy(net), config)
        model(x)
        return convert(model, quiet=True)

    hybrid, alone = found(HybridGPTQConfig(fp8_config="E4M3")), found(GPTQConfig(use_full_range=False))
    assert str(hybrid[0].scheme.activation.dtype.name) == "fp8_e4m3"
    # The weights of the first layer, which sees the same inputs, are those of GPTQ; fp8 inputs add little to the error.
    assert torch.equal(hybrid[0].dequantized_weight(), alone[0].dequantized_weight())
    assert (hybrid(x) - expected).norm() < 1.5 * (alone(x) - expected).norm()
    with pytest.raises(ConfigError, match="use_double_quant"):
        HybridGPTQConfig(use_double_quant=True)
