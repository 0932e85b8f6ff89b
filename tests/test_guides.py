"""The examples of the guides run as printed, and what they link to is there. (``docs/onnx.md`` has a test of its own.)"""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.torch.modules.kernels import table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(name, language="python"):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Language(nn.Module):
    """Layers with the names that the guide speaks of."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.embed = nn.Linear(128, 128)
        self.model.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for layer in self.model.layers:
            layer.mlp = nn.ModuleDict({"up_proj": nn.Linear(128, 128), "down_proj": nn.Linear(128, 128)})
        self.lm_head = nn.Linear(128, 10)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.model.layers:
            x = x + layer.mlp["down_proj"](layer.mlp["up_proj"](x).relu())
        return self.lm_head(x)


def test_weight_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    calibration = [torch.randn(4, 128) for _ in range(2)]
    names = {"calibration": calibration, "eval_fn": lambda model: float(model(calibration[0]).isfinite().all())}
    examples = blocks("weight_only.md")
    assert len(examples) == 4
    for number, code in enumerate(examples):
        names["model"] = Language().eval()
        exec(compile(code, f"docs/weight_only.md, example {number}", "exec"), names)
    assert "promise met" in names["q_model"].tuning.verdict
    names["config"].expand()


def test_fp8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "KERNELS", list(table.KERNELS))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    names = {"float_model": lambda: copy.deepcopy(net), "run": lambda model: model(torch.randn(8, 16))}
    examples = blocks("fp8.md")
    assert len(examples) == 5
    for number, code in enumerate(examples):
        exec(compile(code, f"docs/fp8.md, example {number}", "exec"), names)
        if number == 0:
            assert names["output"].shape == (1, 10)
            assert type(names["model"][0]).__name__ == "QuantConv2d"
    assert type(names["model"][2]).__name__ == "QuantLinear"
    assert table.KERNELS[0].name == "my hpu fp8"


def test_mx():
    torch.manual_seed(0)
    names = {"calibration": [torch.randn(4, 128) for _ in range(2)], "model": Language().eval()}
    (code,) = blocks("mx.md")
    exec(compile(code, "docs/mx.md", "exec"), names)
    layers = names["q_model"]
    assert layers.embed.scheme.activation.dtype.name == "nvfp4"
    assert layers.lm_head.scheme.weight.dtype.name == "mxfp8_e4m3"


@pytest.mark.slow
def test_pt2e(tmp_path, monkeypatch):
    """Compiles, and so takes its time."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4)).eval()
    calibration = [torch.randn(2, 4, 8, 8) for _ in range(2)]
    names = {"model": model, "example_inputs": calibration[0], "calibration": calibration}
    for code in blocks("pt2e.md"):
        exec(compile(code, "docs/pt2e.md", "exec"), names)
        torch.testing.assert_close(names["opt_model"](calibration[1]), model(calibration[1]), rtol=0, atol=0.1)
    assert all(op.mode == "static" for op in names["opt_model"].lowering)


def test_pytorch_int8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4)).eval()
    loader = [(torch.randn(2, 4, 8, 8), torch.zeros(2))]
    names = {"loader": loader}
    for number, code in enumerate(blocks("pytorch_int8.md")):
        names["model"] = copy.deepcopy(model)
        exec(compile(code, "docs/pytorch_int8.md", "exec"), names)
        if number == 1:
            assert [type(names["model"][place]).__name__ for place in (0, 4)] == ["QuantConv2d", "WeightOnlyLinear"]
    assert torch.isfinite(names["q_model"](loader[0][0])).all()
    assert [step.name for step in names["smoothed"].quantization.plan.passes][-2:] == ["smooth", "correct_biases"]

    (yaml,) = blocks("pytorch_int8.md", "yaml")
    Path("everywhere.yaml").write_text(yaml)
    conf = PostTrainingQuantConfig(framework_yaml="everywhere.yaml")
    safe = quantization.fit(model[:3], conf, calib_dataloader=loader, quiet=True)
    schemes = [scheme.weight for scheme in safe.model.quantization.plan.values() if scheme.weight is not None]
    assert schemes
    assert all(scheme.pair_safe for scheme in schemes)


def test_checkpoints(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
    monkeypatch.chdir(tmp_path)
    sizes = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    names = {"model": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()}
    (code,) = blocks("checkpoints.md")
    exec(compile(code, "docs/checkpoints.md", "exec"), names)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(names["same"](ids).logits, names["q_model"](ids).logits)


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        path, _, part = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if part:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert part in map(anchor, headings), link


def test_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    batch, labels = torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    names = {"batch": batch, "loader": [(batch, labels)], "train": lambda model: model(batch).mean().backward()}
    for code in blocks("training.md"):
        names["model"] = copy.deepcopy(net)
        exec(compile(code, "docs/training.md", "exec"), names)
    for model in (names["q_model"], names["manager"].model):
        assert [type(model[place]).__name__ for place in (0, 4)] == ["QuantConv2d", "QuantLinear"]


def test_mixed_precision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"model": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), "evaluate": lambda model: 1.0}
    for code in blocks("mixed_precision.md"):
        exec(compile(code, "docs/mixed_precision.md", "exec"), names)
    assert type(names["converted"].model[0]).__name__ == "HalfModule"
    assert names["conf"].precisions == ("bf16", "fp16")
