"""Layers in the forms of which there are int8 kernels: products with a matrix, inputs in order."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import FormatError
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


class Contexts(nn.Module):
    def __init__(self, enabled):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.enabled = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), enabled

    def forward(self, x):
        x = self.a(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            y = self.b(x)
            with torch.enable_grad():
                z = self.c(y.float())
        return z.float() + y.float()


def test_what_runs_without_autocast_is_part_of_the_graph(tmp_path):
    model, x = Contexts(False).eval(), torch.randn(4, 8)
    prepared = prepare(export(model, x), StaticQuantConfig().set_local("Linear", StaticQuantConfig()))
    expected = prepared(x)
    torch.testing.assert_close(expected, model(x))
    q_model = convert(prepared)
    assert [name for name, _ in q_model.quantization.plan] == ["a", "b", "c"]
    q_model.save(tmp_path)
    assert torch.equal(load(tmp_path)(x), q_model(x))


def test_layers_that_run_under_autocast_are_listed(tmp_path):
    model, x = Contexts(True).eval(), torch.randn(4, 8)
    prepared = prepare(export(model, x), StaticQuantConfig().set_local("Linear", StaticQuantConfig()))
    prepared(x)
    q_model = convert(prepared)
    assert [name for name, _ in q_model.quantization.plan] == ["a"]
    assert {name for name, _ in q_model.quantization.reasons} == {"b", "c"}
    with pytest.raises(FormatError, match=r"another one, 'submod_1'.*aoti"):
        q_model.save(tmp_path)


def test_layers_of_branches_and_loops_are_listed_and_others_quantized():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = torch.cond(x.sum() > 0, self.a, torch.neg, (x,))
            _, x = torch.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, self.b(x)), (torch.tensor(0), x))
            return self.c(x)

    model, x = Branches().eval(), torch.randn(4, 8)
    prepared = prepare(export(model, x), StaticQuantConfig().set_local("Linear", StaticQuantConfig()))
    prepared(x)
    done = convert(prepared).quantization
    assert [name for name, _ in done.plan] == ["c"]
    assert {name for name, _ in done.reasons} == {"true_graph_0.linear", "while_loop_body_graph_0.linear"}


def test_a_graph_inside_of_one_that_stays_apart_is_not_exported(caplog):
    class Nested(Contexts):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.a(x)
                with torch.autocast("cpu", enabled=False):
                    x = self.b(x.float())
            return self.c(x)

    model, x = Nested(True).eval(), torch.randn(4, 8)
    assert export(model, x) is model
    assert (
        "Nested cannot be exported: a branch, a loop, or what runs under autocast is inside of another" in caplog.text
    )


def normalised(norm):
    """``norm`` with statistics and vectors that all count."""
    for name, values in norm.state_dict().items():
        if name != "num_batches_tracked":
            values.uniform_(0.5, 2)
    return norm


class Norms(nn.Module):
    """Two convolutions, the first of which has a norm behind it."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm, self.other = normalised(nn.BatchNorm2d(4)), normalised(nn.BatchNorm2d(4))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.conv(x))))


class ReadBeside(Norms):
    """What the norm reads goes on beside it, as in DenseNet and in residual networks that activate first."""

    def forward(self, x):
        x = self.conv(x)
        return self.last(torch.relu(self.norm(x))) + x


class CalledAgain(Norms):
    """Each call of a convolution has a norm of its own, the last one none."""

    def forward(self, x):
        return self.last(self.conv(self.other(self.conv(self.norm(self.conv(x))))))


class TiedWeight(Norms):
    def __init__(self):
        super().__init__()
        self.last = nn.Conv2d(4, 4, 3)
        self.last.weight = self.conv.weight


class TiedBias(Norms):
    def __init__(self):
        super().__init__()
        self.last.bias = self.conv.bias


class ComputedWeight(Norms):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.conv)


class BatchStatistics(Norms):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)


class TransposedInGroups(Norms):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 4, 3, groups=2)


class LinearReadBeside(Norms):
    def __init__(self):
        super().__init__()
        self.conv, self.last, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), normalised(nn.BatchNorm1d(4))

    def forward(self, x):
        x = self.conv(x.mean((2, 3)))
        return self.last(torch.relu(self.norm(x))) + x


@pytest.mark.parametrize(
    "kind",
    [
        ReadBeside,
        CalledAgain,
        TiedWeight,
        TiedBias,
        ComputedWeight,
        BatchStatistics,
        TransposedInGroups,
        LinearReadBeside,
        Norms,
    ],
)
def test_norms_that_are_no_part_of_one_layer_stay(kind):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(8, 4, 6, 6)
    prepared = prepare(export(model, x), StaticQuantConfig(act_algo="minmax"))
    expected = model(x)
    torch.testing.assert_close(prepared(x), expected, rtol=1e-4, atol=1e-5)  # observers change nothing
    q_model = convert(prepared, quiet=True)
    assert (q_model(x) - expected).norm() < 0.05 * expected.norm()
    kept = [node for node in q_model.graph.nodes if "batch_norm" in str(node.target)]
    assert bool(kept) == (kind is not Norms)


class InLoop(Norms):
    """A norm behind a convolution whose weight is an argument of the graph that it is in."""

    def forward(self, x):
        def body(i, x):
            return i + 1, self.norm(self.conv(x))

        return self.last(torch.while_loop(lambda i, x: i < 2, body, (torch.tensor(0), x))[1])


def test_norms_in_loops_stay():
    torch.manual_seed(0)
    model, x = InLoop().eval(), torch.randn(8, 4, 6, 6)
    exported = export(model, x)
    expected = model(x)
    prepared = prepare(exported, StaticQuantConfig(act_algo="minmax"), inplace=False)
    torch.testing.assert_close(prepared(x), expected)
    for _ in range(2):
        q_model = convert(prepared, inplace=False, quiet=True)
        assert (q_model(x) - expected).norm() < 0.05 * expected.norm()
    torch.testing.assert_close(exported(x), expected)


class Transposed(nn.Module):
    """Two layers that read one tensor whose sequence lies in front of its batch, as attention of torch has it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.flat = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = x.transpose(0, 1)
        return self.a(y) + self.b(y), self.flat(x)


@pytest.fixture
def transposed():
    torch.manual_seed(0)
    model, x = Transposed(), torch.randn(4, 6, 8)
    exported = export(model, x)
    torch.testing.assert_close(exported(x), model(x))
    return exported


def test_layers_read_tensors_that_lie_in_order(transposed):
    layers = transposed.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    read = [node.args[0] for node in layers]
    assert all(node.meta["val"].is_contiguous() for node in read)
    assert read[0] is read[1]
    assert read[0].target is torch.ops.aten.clone.default
    assert read[2].op == "placeholder"


@pytest.mark.slow
def test_transposed_inputs_of_any_size_are_compiled(transposed):
    prepared = prepare(transposed, StaticQuantConfig())
    prepared(torch.randn(4, 6, 8))
    q_model = convert(prepared, quiet=True)
    compiled = torch.compile(q_model, dynamic=True)
    with torch._inductor.config.patch(freezing=True):
        for shape in ((4, 6, 8), (3, 5, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), q_model(x), rtol=1e-4, atol=1e-4)
