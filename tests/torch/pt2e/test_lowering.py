"""Compiled: what Inductor lowers to int8 kernels, and what it does not."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.export import compile as compile_graph
from neural_compressor.torch.export import export
from neural_compressor.torch.pt2e.lowering import lowering_records
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, load, quantize


class Residual(nn.Module):
    """Adds its input to what a layer gives, and a parameter and a value of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.shift = nn.Parameter(torch.randn(1, 4, 64))

    def forward(self, x):
        h = torch.tanh(self.first(x) + self.shift)
        h = h + self.second(h)
        return nn.functional.dropout(x, 0.5, self.training) + self.third(h)


def quantized(model, x, config=None):
    return quantize(export(model, x), config or StaticQuantConfig(), run_fn=lambda m: m(x), quiet=True)


def test_layers_that_stayed_in_float_are_listed(mlp):
    model = quantized(mlp, torch.randn(2, 16))
    records = {record.name: record for record in lowering_records(model, ["2"], 2)}
    assert {name for name, record in records.items() if record.mode == "float"} == {"2"}
    assert "did not lower" in records["2"].reason
    assert all(record.mode == "float" for record in lowering_records(model, [], 0))


def test_only_sums_with_what_is_given_are_kept_apart():
    model, x = Residual().eval(), torch.randn(1, 4, 64)
    graph = quantized(model, x)
    places = [
        user for node in graph.graph.nodes if node.target is torch.ops.aten.maximum.default for user in node.users
    ]
    others = [
        str(place.args[1 - [str(a.target) for a in place.args].index("aten.maximum.default")]) for place in places
    ]
    assert others == ["shift", "dropout"]
    expected = model(x)
    assert (graph(x) - expected).norm() < 0.02 * expected.norm()


def test_only_quantized_graphs_are_compiled(mlp):
    x = torch.randn(2, 16)
    with pytest.raises(ConfigError, match="no exported graph"):
        compile_graph(mlp, x)
    with pytest.raises(ConfigError, match="not quantized"):
        compile_graph(export(mlp, x), x)


@pytest.mark.slow
class TestCompiled:
    def test_the_steps_as_printed(self, cnn, monkeypatch):
        """With gradients on, as nobody turns them off in the published example."""
        from torch._dynamo.utils import counters
        from torch._inductor import config

        x = torch.randn(4, 3, 8, 8)
        q_model = quantized(cnn, x)
        monkeypatch.setattr(config, "freezing", True)
        counters.clear()
        torch._dynamo.reset()
        opt_model = torch.compile(q_model)
        # A value between two codes may be rounded either way.
        torch.testing.assert_close(opt_model(x), q_model(x), rtol=0, atol=0.02)
        assert counters["inductor"]["qconv_weight_prepack_matcher_count"] == 2
        assert counters["inductor"]["qlinear_weight_prepack_matcher_count"] == 1

    @pytest.mark.parametrize("config", [StaticQuantConfig(), DynamicQuantConfig()])
    def test_all_layers_of_a_decoder_are_lowered(self, llama, config, tmp_path):
        ids = torch.randint(0, 64, (2, 6))
        quantized(llama, ids, config).save(tmp_path / "saved")
        model = load(tmp_path / "saved")
        opt_model = compile_graph(model, ids, quiet=True)
        assert {r.name for r in opt_model.lowering if r.mode != "float"} == {
            name for name, _ in model.quantization.plan
        }
        torch.testing.assert_close(opt_model(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-4)
        assert opt_model(torch.randint(0, 64, (3, 8))).logits.shape == (3, 8, 64)

    def test_a_package(self, mlp, tmp_path):
        x = torch.randn(4, 16)
        model = quantized(mlp, x)
        model.save(tmp_path / "packed", format="aoti")
        run = load(tmp_path / "packed", format="aoti")
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        assert run(torch.randn(9, 16)).shape == (9, 4)
        turned = torch.randn(16, 9).t()  # the code reads memory in the order of the export
        torch.testing.assert_close(run(turned), model(turned), rtol=1e-4, atol=1e-5)
        with pytest.raises(ConfigError, match="15 in dimension 1, which stayed 16"):
            run(torch.randn(2, 15))
        with pytest.raises(ConfigError, match=r"torch.int64; the package was compiled for torch.float32"):
            run(torch.ones(2, 16, dtype=torch.int64))

    def test_eager_kernels_of_what_cannot_be_exported_compile_too(self, branching):
        x = torch.ones(2, 4)
        model = quantize(export(branching, x), StaticQuantConfig(), run_fn=lambda m: m(x), quiet=True)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(model)(x), model(x))
        assert isinstance(model, nn.Module)

    def test_a_graph_that_counts_begins_where_it_was_compiled(self):
        class Counting(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(64, 64)
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls += 1
                return self.fc(x) * self.calls

        x = torch.randn(4, 64)
        q_model = quantized(Counting().eval(), x, DynamicQuantConfig())
        torch._dynamo.reset()
        opt_model = compile_graph(q_model, x, quiet=True)
        for _ in range(2):
            torch.testing.assert_close(opt_model(x), q_model(x), rtol=0, atol=0.05)

    def test_inputs_and_parameters_are_not_written_into(self):
        model, x = Residual().eval(), torch.randn(1, 4, 64)
        q_model = quantized(model, x, DynamicQuantConfig())
        given, expected = x.clone(), q_model(x)
        torch._dynamo.reset()
        opt_model = compile_graph(q_model, x, quiet=True)
        for _ in range(2):
            torch.testing.assert_close(opt_model(x), expected, rtol=0, atol=0.05)
        assert torch.equal(x, given)
