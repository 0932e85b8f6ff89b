"""Weights of a block that come and go: for a run they are there in half the size."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import FormatError
from neural_compressor.torch.files.streaming import BlockWeights, WeightSource, empty_weight


@pytest.fixture
def folder(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file({name: p.detach() for name, p in model_of("cpu").named_parameters()}, tmp_path / "model.safetensors")
    return tmp_path


def model_of(device):
    with torch.device(device):
        blocks = [nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 4)) for _ in range(2)]
        blocks[0][2].to(torch.float16)
        return nn.Sequential(*blocks)


def dtypes(block):
    return [None if p.is_meta else p.dtype for name, p in block.named_parameters() if p.dim() == 2]


def test_for_a_run_weights_are_read_as_bfloat16_and_to_be_quantized_as_they_are(folder):
    model = model_of("meta")
    weights = BlockWeights(model, WeightSource(folder), "1", ["1.0", "1.2"], amp=True)
    weights.read()
    assert dtypes(model[1]) == [torch.bfloat16, torch.bfloat16]
    assert model[1][0].bias.dtype == model[1][1].weight.dtype == torch.float32, "only products are made in bfloat16"
    assert dtypes(model[0]) == [None, None]
    weights.keep(["1.2"])
    assert dtypes(model[1]) == [None, torch.float32]
    weights.keep()
    assert dtypes(model[1]) == [None, None]


def test_what_is_there_is_not_read_again(folder):
    model, source = model_of("meta"), WeightSource(folder)
    source.fill(model, "1.")
    held, weights = model[1][0].weight, BlockWeights(model, source, "1", ["1.0", "1.2"], amp=True)
    weights.read()
    assert dtypes(model[1]) == [torch.float32, torch.float32]
    weights.keep(["1.0"])
    assert model[1][0].weight is held


@pytest.mark.parametrize(("amp", "expected"), [(False, torch.float32), (True, torch.bfloat16)])
def test_a_type_of_its_own_is_kept(folder, amp, expected):
    model = model_of("meta")
    weights = BlockWeights(model, WeightSource(folder), "0", ["0.0", "0.2"], amp)
    for _ in range(2):
        weights.read()
        assert dtypes(model[0]) == [expected, torch.float16]
        weights.keep()
    empty = [model[0][i].weight.dtype for i in (0, 2)]
    assert empty == [torch.float32, torch.float16]


def test_an_empty_weight_has_a_shape_and_a_type():
    layer = nn.Linear(4, 6)
    empty_weight(layer)
    assert layer.weight.is_meta
    assert (layer.weight.shape, layer.weight.dtype) == ((6, 4), torch.float32)
    assert not layer.bias.is_meta


def test_one_layer_can_be_wanted_as_it_is_stored(folder):
    model = model_of("meta")
    weights = BlockWeights(model, WeightSource(folder), "1", ["1.0", "1.2"], amp=True)
    weights.read()
    weights.widen("1.2")
    assert dtypes(model[1]) == [torch.bfloat16, torch.float32]


def test_numbers_that_are_none_are_named_with_their_file(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["1.1.weight"][2] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    WeightSource(folder).fill(model_of("meta"), "0.")
    with pytest.raises(FormatError, match=r"model\.safetensors: tensor '1\.1\.weight' holds NaN or Inf"):
        WeightSource(folder).fill(model_of("meta"), "1.")
