"""Models larger than memory: weights come from the checkpoint block by block."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.torch import load_empty_model
from neural_compressor.torch.quantization import GPTQConfig, HQQConfig, RTNConfig, quantize

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "float")
    return tmp_path / "float"


@pytest.mark.parametrize(
    "make",
    [
        lambda path: RTNConfig(bits=4, group_size=32, model_path=path, use_layer_wise=True),
        lambda path: GPTQConfig(bits=4, group_size=32, model_path=path, use_layer_wise=True),
        lambda path: GPTQConfig(bits=4, group_size=32, model_path=path, use_layer_wise=True, correct_upstream=True),
    ],
    ids=["rtn", "gptq", "gptq-upstream"],
)
def test_the_same_model_comes_out(folder, make):
    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    config = make(str(folder))
    streamed = quantize(load_empty_model(folder), config, run_fn=lambda m: m(ids))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole = quantize(loaded, config, run_fn=lambda m: m(ids))
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, whole(ids).logits)


def test_an_empty_model_without_a_path_is_refused(folder):
    with pytest.raises(ConfigError, match="model_path"):
        quantize(load_empty_model(folder), HQQConfig())


def test_a_checkpoint_of_another_model_is_refused(folder, tmp_path):
    settings = json.loads((folder / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**settings, "intermediate_size": 128}))
    with pytest.raises(FormatError, match="shape"):
        quantize(load_empty_model(other), RTNConfig(model_path=str(folder)))


SCRIPT = """
import sys, torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from neural_compressor.torch import load_empty_model
from neural_compressor.torch.quantization import GPTQConfig, RTNConfig, quantize

def peak():
    # ru_maxrss would also remember the process this one was started from
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024

folder, method = sys.argv[1:]
torch.set_num_threads(2)
config = (RTNConfig if method == "rtn" else GPTQConfig)(bits=4, group_size=64, model_path=folder, use_layer_wise=True)
model = load_empty_model(folder)
before = peak()
ids = torch.randint(0, 128, (1, 256))
model = quantize(model, config, run_fn=lambda m: m(ids))
print(peak() - before)
"""


def write_checkpoint(folder, depth):
    """A random Llama with a shard for each block; returns the MiB of one block."""
    from safetensors.torch import save_file

    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=1024, intermediate_size=3072, num_hidden_layers=depth, num_attention_heads=8
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    shapes = {n: p.shape for n, p in load_empty_model(folder).named_parameters()}
    generator, index = torch.Generator().manual_seed(0), {}
    for shard in range(depth):
        names = [n for n in shapes if n.startswith(f"model.layers.{shard}.")]
        names += [] if shard else [n for n in shapes if not n.startswith("model.layers.")]
        tensors = {n: torch.randn(shapes[n], generator=generator) * 0.02 for n in names}
        save_file(tensors, folder / f"model-{shard:05}.safetensors", metadata={"format": "pt"})
        index |= dict.fromkeys(names, f"model-{shard:05}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(shapes[n].numel() * 4 for n in shapes if n.startswith("model.layers.0.")) / 2**20


@pytest.mark.slow
def test_more_blocks_cost_only_their_quantized_weights(tmp_path):
    """What rounding needs for one layer is there once; from then on memory grows by packed weights alone."""
    growth = {}
    for depth in (6, 18):
        folder = tmp_path / str(depth)
        folder.mkdir()
        block = write_checkpoint(folder, depth)
        (tmp_path / "job.py").write_text(textwrap.dedent(SCRIPT))
        command = [sys.executable, str(tmp_path / "job.py"), str(folder), "rtn"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        growth[depth] = float(done.stdout.strip().splitlines()[-1])
    packed = 12 * block * (4 + 32 / 64) / 32
    assert growth[18] - growth[6] < packed + 1.5 * block, (growth, block, packed)
