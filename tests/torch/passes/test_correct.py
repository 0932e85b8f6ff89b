"""Corrections on the quantized model: mean errors leave through biases, spreads of weights through scales."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor import quantization as two_x
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import OpScheme, Pass, Plan, sqnr_db
from neural_compressor.torch.executor import FOLD, USUAL_PASSES, prepare
from neural_compressor.torch.passes.correct import one_batch
from neural_compressor.torch.passes.model_pass import read_pass
from neural_compressor.torch.quantization import StaticQuantConfig, quantize

LOW_BITS = OpScheme.from_dict(
    {
        "weight": {"dtype": "int4", "granularity": "per_tensor"},
        "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
    }
)


@pytest.fixture
def net():
    """Inputs have a mean, so that errors of weights have one too."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU6(),
        nn.Conv2d(8, 4, 1),
    )
    model = nn.Sequential(*layers)
    model(torch.rand(16, 3, 12, 12) + 1)
    return model.eval()


@pytest.fixture
def batches():
    return [torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(i)) + 1 for i in range(4)]


def quantized(net, batches, *passes):
    ops = {(name, "Conv2d"): LOW_BITS for name in "035"}
    execution = prepare(copy.deepcopy(net), Plan(ops, passes=[FOLD, *passes]))
    with execution.listening(), torch.no_grad():
        for x in batches:
            execution.model(x)
    return execution.apply()


def mean_errors(net, model, batches):
    x = torch.cat(batches)
    with torch.no_grad():
        return (model(x) - net(x)).mean((0, 2, 3)), float((model(x) - net(x)).square().mean())


def test_the_mean_error_of_the_outputs_leaves(net, batches):
    plain, corrected = quantized(net, batches), quantized(net, batches, Pass("correct_biases"))
    (before, loss), (after, less) = mean_errors(net, plain, batches), mean_errors(net, corrected, batches)
    assert after.norm() < 0.5 * before.norm()
    assert less < loss
    # only biases differ; the first layer had none before it took its normalisation up
    for name in "035":
        assert torch.equal(plain.get_submodule(name).weight, corrected.get_submodule(name).weight)


def test_by_hand_for_one_layer(batches):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)).eval()
    plan = Plan({("0", "Conv2d"): LOW_BITS}, passes=[Pass("correct_biases")])
    models = []
    for passes in ((), plan.passes):
        execution = prepare(copy.deepcopy(net), Plan(plan.ops, passes=passes))
        with execution.listening(), torch.no_grad():
            for x in batches:
                execution.model(x)
        models.append(execution.apply())
    x = torch.cat(batches)
    with torch.no_grad():
        expected = -(models[0](x) - net(x)).mean((0, 2, 3))
    assert models[0][0].bias is None
    torch.testing.assert_close(models[1][0].bias, expected, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_one_batch_is_left_unless_it_is_required(net, caplog):
    sizes = [torch.rand(1, 3, size, size) for size in (12, 13, 14, 15, 16)]
    plain, other = quantized(net, sizes), quantized(net, sizes, Pass("correct_biases"))
    assert torch.equal(plain[3].bias, other[3].bias)
    assert "biases of 3 convolutions are not corrected" in caplog.text
    assert "5 calls that do not fit together" in caplog.text
    quantized(net, sizes[:1], Pass("correct_biases"))
    assert "and calibration ran 1 samples" in caplog.text
    with pytest.raises(CalibrationError, match="correcting biases takes 4 samples"):
        quantized(net, sizes, Pass("correct_biases", {"required": True}))
    with pytest.raises(ConfigError, match="no static integer convolution"):
        prepare(
            nn.Sequential(nn.Linear(4, 4)),
            Plan({("0", "Linear"): LOW_BITS}, passes=[Pass("correct_biases", {"required": True})]),
        )


def test_calls_become_one_batch():
    a, b, mask = torch.zeros(2, 3), torch.ones(3, 3), torch.eye(5)
    (joined, same), kwargs = one_batch([((a, mask), {"flag": True}), ((b, mask), {"flag": True})], 4)
    assert joined.tolist() == torch.cat([a, b[:2]]).tolist()
    assert torch.equal(same, mask)
    assert kwargs == {"flag": True}
    assert one_batch([((a,), {"flag": True}), ((b,), {"flag": False})], 8) is None
    assert one_batch([((a,), {}), ((torch.ones(2, 4),), {})], 8) is None


def test_weights_spread_as_the_float_ones(net, batches):
    plain, corrected = quantized(net, batches), quantized(net, batches, Pass("correct_weights"))
    for name in "35":
        exact, rounded = net.get_submodule(name).weight.std(), plain.get_submodule(name).weight.std()
        assert abs(corrected.get_submodule(name).weight.std() / exact - 1) < 1e-3 < abs(rounded / exact - 1)


def test_every_front_corrects_biases_of_static_convolutions(net, batches, tmp_path):
    fitted = two_x.fit(
        net, PostTrainingQuantConfig(calibration_sampling_size=[32]), calib_dataloader=[(x, 0) for x in batches],
        quiet=True, workspace=str(tmp_path),
    ).model  # fmt: skip
    config = quantize(copy.deepcopy(net), StaticQuantConfig(), lambda m: [m(x) for x in batches], quiet=True)
    for model in (fitted, config):
        assert Pass("correct_biases") in model.quantization.plan.passes
    off = PostTrainingQuantConfig(recipes={"fast_bias_correction": False}, calibration_sampling_size=[32])
    without = two_x.fit(
        net, off, calib_dataloader=[(x, 0) for x in batches], quiet=True, workspace=str(tmp_path / "b")
    ).model
    assert [step.name for step in without.quantization.plan.passes] == ["fold"]


def test_float_weights_are_kept_only_where_biases_are_corrected(net, batches):
    step = read_pass(Pass("correct_biases"))
    assert step.compares(Plan({("0", "Conv2d"): LOW_BITS}))
    assert not step.compares(Plan({("0", "Linear"): LOW_BITS}))
    kept = []

    class Looking(type(step)):
        def after(self, state):
            kept.append(state.floats)

    linear = nn.Sequential(nn.Linear(4, 4)).eval()
    for model, plan, x in (
        (net, Plan({("0", "Conv2d"): LOW_BITS}), batches[0]),
        (linear, Plan({("0", "Linear"): LOW_BITS}), torch.randn(8, 4)),
    ):
        execution = prepare(copy.deepcopy(model), plan)
        execution.passes = [Looking(step.options)]
        with execution.listening(), torch.no_grad():
            execution.model(x)
        execution.apply()
    assert kept[0] is not None
    assert kept[1] is None


def test_biases_make_up_for_weights_as_they_are_corrected(net, batches):
    names = [step.name for step in with_recipes(Plan(passes=USUAL_PASSES), {"weight_correction": True}).passes]
    assert names == ["fold", "correct_weights", "correct_biases"]
    found = quantized(net, batches, Pass("correct_weights"), Pass("correct_biases"))
    other = quantized(net, batches, Pass("correct_biases"), Pass("correct_weights"))
    assert mean_errors(net, found, batches)[0].norm() < mean_errors(net, other, batches)[0].norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_models_of_other_float_types_are_corrected_as_those_of_float32(net, batches, dtype):
    plan = [Pass("correct_biases"), Pass("correct_weights")]
    single = net.to(dtype).float()  # the same values, so that only the arithmetic differs
    expected = quantized(single, batches, *plan)
    given = quantized(copy.deepcopy(net).to(dtype), [x.to(dtype) for x in batches], *plan)
    x = batches[0]
    with torch.no_grad():
        output = given(x.to(dtype))
        assert output.dtype == dtype
        assert sqnr_db(expected(x), output.float()) > 25
    for name in "035":
        a, b = (model.get_submodule(name).bias.float() for model in (expected, given))
        torch.testing.assert_close(b, a, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_static_int8_of_models_of_other_float_types(batches, dtype, bias, tmp_path):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, bias=bias), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=bias), nn.ConvTranspose2d(8, 4, 3))
    net, x = nn.Sequential(*layers).eval().to(dtype), batches[0].to(dtype)
    asked = StaticQuantConfig(equalize=True)
    models = [quantize(copy.deepcopy(net), asked, run_fn=lambda model: model(x), quiet=True)]
    for recipe in ("weight_correction", "fast_bias_correction", "equalization"):
        conf = PostTrainingQuantConfig(approach="static", recipes={recipe: True})
        models.append(two_x.fit(net, conf, calib_dataloader=[(x, 0)], quiet=True, workspace=str(tmp_path)).model)
    with torch.no_grad():
        for model in models:
            assert model(x).dtype == dtype
            assert sqnr_db(net(x).float(), model(x).float()) > 25
