"""Products that are not written as linear layers, and are."""

import pytest
import torch
from torch import nn

from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    StaticQuantConfig,
    convert,
    load,
    prepare,
    prepare_qat,
)

pytest.importorskip("torchao")


class Products(nn.Module):
    """A stored matrix on the right, with a bias and without one, and one that two products share."""

    def __init__(self):
        super().__init__()
        self.first, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))
        self.register_buffer("second", torch.randn(6, 4))

    def forward(self, x):
        x = torch.addmm(self.bias, x, self.first) @ self.second
        return torch.relu(x) @ self.first


@pytest.fixture
def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


def test_a_graph_gives_what_the_model_gives():
    model, x = Products(), torch.randn(5, 4)
    exported = export(model, x)
    torch.testing.assert_close(exported(x), model(x))
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.aten.linear.default) == 3
    assert set(exported.state_dict()) == {"first_transposed", "bias", "second_transposed"}


@pytest.mark.parametrize("bias", [torch.ones(3, 6), 2 * torch.ones(6)], ids=["a row each", "scaled"])
def test_what_is_no_layer_stays_as_it_is(bias):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(bias)

        def forward(self, x):
            return torch.addmm(self.bias, x, self.weight, beta=1 if self.bias.dim() == 2 else 3)

    model, x = Sum(), torch.randn(3, 4)
    exported = export(model, x)
    assert torch.ops.aten.addmm.default in [node.target for node in exported.graph.nodes]
    torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("config", [StaticQuantConfig(), DynamicQuantConfig(w_granularity="per_channel")])
def test_gpt2_is_quantized_by_the_names_of_its_modules(gpt2, config, tmp_path):
    ids = torch.randint(0, 32, (2, 6))
    prepared = prepare(export(gpt2, {"input_ids": ids}), config)
    prepared(input_ids=ids)
    q_model = convert(prepared, quiet=True)
    layers = {name for name, module in gpt2.named_modules() if type(module).__name__ == "Conv1D"}
    assert len(layers) == 8
    assert {name for name, _ in q_model.quantization.plan} == layers | {"lm_head"}
    expected, found = gpt2(ids).logits, q_model(input_ids=ids).logits
    assert 0 < (found - expected).norm() < 0.03 * expected.norm()
    q_model.save(tmp_path / "gpt2")
    assert torch.equal(load(tmp_path / "gpt2")(input_ids=ids).logits, found)


def test_training_changes_the_matrix_of_the_model():
    model, x = Products(), torch.randn(5, 4)
    trained = prepare_qat(export(model, x), StaticQuantConfig())
    before = model.first.detach().clone()
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    trained(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.first, before)
