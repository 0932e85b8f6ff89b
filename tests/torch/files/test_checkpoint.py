"""Saving and loading: bit for bit, atomically, and never from a damaged file."""

import copy
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from neural_compressor.errors import FormatError, WorkspaceError
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.files import checkpoint
from neural_compressor.torch.files.checkpoint import WEIGHTS, load_model, save_model
from neural_compressor.torch.modules.kernels import table
from neural_compressor.torch.modules.kernels.integer import INTEGER_KERNELS
from neural_compressor.torch.quantization import RTNConfig, load, quantize

STATIC = {
    "weight": {"dtype": "int8", "granularity": "per_channel"},
    "activation": {"dtype": "uint8", "scheme": "asym", "quant_mode": "static"},
}
MIXED = {
    ("conv1", "Conv2d"): STATIC,
    ("conv2", "Conv2d"): {"weight": {"dtype": "bf16"}, "activation": {"dtype": "bf16"}},
    ("fc", "Linear"): {"weight": {"dtype": "nf4", "granularity": "per_group", "group_size": 8}},
}


@pytest.fixture
def saved(convnet, images, tmp_path):
    adaptor = PyTorchAdaptor({"dataloader": images})
    new = adaptor.quantize({"op": MIXED}, convnet, images)
    adaptor.save(new, tmp_path / "model")
    return adaptor, new, tmp_path / "model"


def test_round_trip_is_bit_exact(saved, convnet, images):
    adaptor, new, path = saved
    again = adaptor.load(path, convnet)
    x = next(iter(images))[0]
    assert torch.equal(new(x), again(x))
    assert new.state_dict().keys() == again.state_dict().keys()


def test_only_the_architecture_of_the_given_model_counts(saved, images):
    adaptor, new, path = saved
    torch.manual_seed(99)
    other = type(new)()
    x = next(iter(images))[0]
    assert torch.equal(new(x), adaptor.load(path, other)(x))


def test_saving_again_replaces(saved, convnet, images):
    adaptor, _, path = saved
    only_fc = adaptor.quantize({"op": {("fc", "Linear"): STATIC}}, convnet, images)
    adaptor.save(only_fc, path)
    x = next(iter(images))[0]
    assert torch.equal(only_fc(x), adaptor.load(path, convnet)(x))
    assert sorted(p.name for p in path.parent.iterdir()) == ["model"], "no temporary folder is left behind"


def test_the_file_is_smaller_than_the_float_one(saved, convnet):
    _, _, path = saved
    floats = sum(t.nbytes for t in convnet.state_dict().values())
    assert (path / "model.safetensors").stat().st_size < 0.75 * floats + 3000  # the header of a file is not free


def test_tied_weights_are_stored_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc, self.out = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids):
            return self.out(self.fc(self.embed(ids)))

    model, ids = Tied().eval(), torch.arange(6)
    adaptor = PyTorchAdaptor()
    new = adaptor.quantize({"op": {("fc", "Linear"): STATIC}}, model, [ids])
    adaptor.save(new, tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert ("embed.weight" in stored) != ("out.weight" in stored)
    assert torch.equal(adaptor.load(tmp_path / "m", model)(ids), new(ids))


def test_folding_unties_weights_for_good(tmp_path):
    torch.manual_seed(0)
    a, b = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
    b.weight = a.weight
    model = nn.Sequential(a, nn.BatchNorm2d(2), b, nn.Flatten(), nn.Linear(8, 4)).eval()
    model[1].running_var.fill_(4.0)
    x = torch.randn(4, 2, 2, 2)
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    new = adaptor.quantize({"op": {("4", "Linear"): STATIC}}, model, [x])
    adaptor.save(new, tmp_path / "m")
    assert torch.equal(adaptor.load(tmp_path / "m", model)(x), new(x))


def truncate(path):
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def flip_a_bit(path):
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)


def drop_weights(path):
    (path / "model.safetensors").unlink()


def drop_config(path):
    (path / "qconfig.json").unlink()


def garble_config(path):
    (path / "qconfig.json").write_text("{")


def other_format(path):
    (path / "qconfig.json").write_text(json.dumps({"format": "other"}))


def newer_version(path):
    config = json.loads((path / "qconfig.json").read_text())
    (path / "qconfig.json").write_text(json.dumps({**config, "version": 99}))


@pytest.mark.parametrize(
    "harm", [truncate, flip_a_bit, drop_weights, drop_config, garble_config, other_format, newer_version]
)
def test_a_damaged_model_is_refused(saved, convnet, harm):
    adaptor, _, path = saved
    harm(path)
    with pytest.raises(FormatError, match="model"):
        adaptor.load(path, convnet)


def test_another_architecture_is_refused(saved, mlp):
    adaptor, _, path = saved
    with pytest.raises(FormatError, match="does not fit a model of type Sequential"):
        adaptor.load(path, mlp)


def test_a_float_model_cannot_be_saved(mlp, tmp_path):
    with pytest.raises(FormatError, match="not quantized"):
        PyTorchAdaptor().save(mlp, tmp_path / "x")


def test_a_folder_with_other_things_is_not_overwritten(saved, tmp_path):
    adaptor, new, _ = saved
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("...")
    with pytest.raises(WorkspaceError, match="holds no quantized model"):
        adaptor.save(new, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_an_unwritable_place_is_a_clear_error(saved, tmp_path):
    adaptor, new, _ = saved
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        adaptor.save(new, tmp_path / "file" / "model")


def test_a_disk_that_is_full_says_how_much_is_needed_and_leaves_the_old_model(tiny_disk):
    """The weights are written by a library that has errors of its own."""
    model = nn.Sequential(nn.Linear(8, 4)).eval()
    small = PyTorchAdaptor().quantize({"op": {("0", "Linear"): STATIC}}, model, [torch.randn(4, 8)])
    save_model(small, tiny_disk / "m")
    before = {path.name: path.read_bytes() for path in (tiny_disk / "m").iterdir()}
    wide = nn.Sequential(nn.Linear(400, 400)).eval()
    large = PyTorchAdaptor().quantize({"op": {("0", "Linear"): STATIC}}, wide, [torch.randn(4, 400)])
    with pytest.raises(
        WorkspaceError, match=r"tiny/m cannot be written: No space left.*where 16\d,\d+ bytes.*has been changed"
    ) as caught:
        save_model(large, tiny_disk / "m")
    assert caught.value.__suppress_context__
    assert {path.name: path.read_bytes() for path in (tiny_disk / "m").iterdir()} == before
    assert [path.name for path in tiny_disk.iterdir()] == ["m"]


@pytest.mark.parametrize("step", ["weights", "config", "place"])
def test_a_disk_that_is_full_at_any_step(saved, tmp_path, monkeypatch, step):
    adaptor, new, _ = saved
    adaptor.save(new, tmp_path / "m")
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}

    def full(*_, **__):
        if step == "weights":
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = {"weights": (checkpoint, "save_file"), "config": (Path, "write_text"), "place": (os, "chmod")}[step]
    with monkeypatch.context() as patch:
        patch.setattr(*place, full)
        with pytest.raises(WorkspaceError, match=r"m cannot be written: No space left on device, where [\d,]+ bytes"):
            adaptor.save(new, tmp_path / "m")
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before


def test_loading_warns_of_int8_ops_that_this_cpu_cannot_run(tmp_path, monkeypatch, caplog):
    model, x = nn.Sequential(nn.Linear(8, 4)).eval(), torch.randn(4, 8)
    save_model(PyTorchAdaptor().quantize({"op": {("0", "Linear"): STATIC}}, model, [x]), tmp_path / "m")
    saturating = [replace(k, exact=lambda kind, act, codes: codes != "all") for k in INTEGER_KERNELS]
    monkeypatch.setattr(table, "KERNELS", saturating)
    assert load_model(tmp_path / "m", model)[0].simulated
    assert "1 of 1 int8 ops are simulated here" in caplog.text
    assert "16 bits" in caplog.text


def test_a_link_to_a_folder_stays_a_link(saved, convnet, images, tmp_path):
    adaptor, _, path = saved
    only_fc = adaptor.quantize({"op": {("fc", "Linear"): STATIC}}, convnet, images)
    link = tmp_path / "link"
    link.symlink_to("model")
    adaptor.save(only_fc, link)
    x = next(iter(images))[0]
    assert link.is_symlink()
    assert torch.equal(only_fc(x), load_model(path, convnet)(x))


def test_files_beside_a_saved_model_stay_whatever_they_are_called(saved):
    adaptor, new, folder = saved
    names = ("config.json", "quantize_config.json", "model.safetensors.index.json", "notes.txt")
    for name in names:
        (folder / name).write_text("mine")
    adaptor.save(new, folder)
    assert [(folder / name).read_text() for name in names] == ["mine"] * 4


class Tied(nn.Module):
    """Two layers with one weight, and another that happens to have its shape."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def test_the_codes_of_tied_weights_are_stored_once(tmp_path):
    model, x = Tied(), torch.randn(3, 64)
    new = quantize(copy.deepcopy(model), RTNConfig(group_size=32), quiet=True)
    new.save(tmp_path / "tied")
    with safe_open(tmp_path / "tied" / WEIGHTS, "pt") as file:
        stored = {name for name in file.keys() if name.endswith("weight_packed")}  # noqa: SIM118
    assert stored == {"a.weight_packed", "c.weight_packed"}
    again = load(tmp_path / "tied", original_model=model)
    assert torch.equal(again(x), new(x))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in new.state_dict().items())
