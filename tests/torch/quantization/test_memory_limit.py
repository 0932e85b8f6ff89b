"""A checkpoint larger than the memory allowed is quantized, to the same bits as without a limit."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("transformers", reason="the transformers extra is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="address space is limited and measured as Linux does"),
]

CHECKPOINT = """
import sys
from transformers import LlamaConfig, LlamaForCausalLM

for folder, hidden, blocks in ((sys.argv[1], 512, 24), (sys.argv[2], 64, 2)):
    config = LlamaConfig(
        vocab_size=64, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=blocks, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="20MB")
"""
CHILD = """
import gc, hashlib, json, os, resource, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
from neural_compressor.torch import load_empty_model
from neural_compressor.torch.quantization import GPTQConfig, RTNConfig, quantize

folder, tiny, allowance = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = torch.arange(64).reshape(1, 64)

def digest(model, method, where):
    gc.collect()  # a quantized model that nobody wants any more refers to itself
    config = method(bits=4, group_size=64, use_layer_wise=True, model_path=where)
    digest = hashlib.sha256()
    for name, tensor in sorted(quantize(model, config, run_fn=lambda m: m(ids)).state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()

def loaded(where):
    return AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()

for method in (RTNConfig, GPTQConfig):  # so that everything is imported before it is limited
    digest(load_empty_model(tiny), method, tiny), digest(loaded(tiny), method, tiny)
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + allowance, resource.RLIM_INFINITY))
found = {m.__name__: [digest(load_empty_model(folder), m, folder)] for m in (RTNConfig, GPTQConfig)}
try:
    loaded(folder)
    found["whole"] = "fits"
except (MemoryError, RuntimeError, OSError) as error:
    found["whole"] = str(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for method in (RTNConfig, GPTQConfig):
    found[method.__name__].append(digest(loaded(folder), method, folder))
print(json.dumps(found))
"""


def test_the_same_bits_come_out_under_a_limit(tmp_path):
    places = [str(tmp_path / "float"), str(tmp_path / "tiny")]
    # In address space the heaps of further threads count whole, and so do holes that large arrays leave in a heap.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    subprocess.run([sys.executable, "-c", CHECKPOINT, *places], check=True, env=env)
    size = sum(file.stat().st_size for file in (tmp_path / "float").glob("*.safetensors"))
    command = [sys.executable, "-c", CHILD, *places, str(size * 2 // 3)]
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "allocate memory" in found["whole"], "the whole model must not fit, or the limit shows nothing"
    for method in ("RTNConfig", "GPTQConfig"):
        limited, unlimited = found[method]
        assert limited == unlimited
