"""Loaders, data sets and transforms by the names of the 2.x API."""

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.config import options
from neural_compressor.data import (
    DATALOADERS,
    TRANSFORMS,
    CastTransform,
    CenterCropTransform,
    ComposeTransform,
    DataLoader,
    Datasets,
    DefaultDataLoader,
    NormalizeTransform,
    TransposeTransform,
)
from neural_compressor.errors import ConfigError
from neural_compressor.utils.create_obj_from_config import create_dataloader


def test_batches():
    samples = [(np.full(2, i), i) for i in range(5)]
    whole = list(DefaultDataLoader(samples, batch_size=2))
    assert [labels.tolist() for _, labels in whole] == [[0, 1], [2, 3], [4]]
    assert whole[0][0].tolist() == [[0, 0], [1, 1]]
    assert len(list(DefaultDataLoader(samples, batch_size=2, last_batch="discard"))) == 2
    shuffled = DefaultDataLoader(samples, batch_size=5, shuffle=True)
    (first,), (again,) = ([labels.tolist() for _, labels in shuffled] for _ in range(2))
    assert first == again != sorted(first) == [0, 1, 2, 3, 4]
    assert next(iter(DefaultDataLoader([{"x": 1}, {"x": 2}], 2)))["x"].tolist() == [1, 2]
    with pytest.raises(ConfigError, match="dataset is a generator"):
        DefaultDataLoader(x for x in samples)
    with pytest.raises(ConfigError, match="rollover"):
        DefaultDataLoader(samples, last_batch="keep")


def test_dummy_data_calibrates_a_model(tmp_path):
    dataset = Datasets("pytorch")["dummy"](shape=(8, 3, 6, 6), low=0.0, high=1.0)
    loader = DataLoader("pytorch", dataset, batch_size=4)
    batch, labels = next(iter(loader))
    assert (batch.shape, batch.dtype, labels.tolist()) == ((4, 3, 6, 6), torch.float32, [0] * 4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    made = quantization.fit(model, PostTrainingQuantConfig(), calib_dataloader=loader, workspace=tmp_path, quiet=True)
    assert type(made.model[0]).__name__ == "QuantConv2d"


def test_dummy_data_of_several_inputs():
    shapes = [(8, 3, 6, 6), (8, 5)]
    data = Datasets("pytorch")["dummy"](shapes, low=[0.0, 1], high=[1.0, 9], dtype=["float32", "int64"], label=False)
    (image, ids), count = data[2], len(data)
    assert (image.shape, image.dtype, ids.shape, ids.dtype, count) == ((3, 6, 6), np.float32, (5,), np.int64, 8)
    for fields in ({"low": [0.0]}, {"low": 9.0, "high": 1.0}, {"shape": [(8, 3), (7, 3)]}):
        with pytest.raises(ConfigError, match="as many of each input"):
            Datasets("pytorch")["dummy"](**{"shape": shapes, **fields})


def test_arguments_of_other_loaders():
    usual = {"sampler": None, "num_workers": 0, "pin_memory": False, "distributed": False}
    assert len(DataLoader("pytorch", [1, 2], batch_size=2, **usual)) == 1
    with pytest.raises(ConfigError, match="num_workers=2"):
        DefaultDataLoader([1, 2], num_workers=2)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("dummy", {"shape": (2, 3)}),
        ("dummy_v2", {"input_shape": (3,)}),
        ("ImageFolder", {"root": "x"}),
        ("ImagenetRaw", {"data_path": "x"}),
    ],
)
def test_filters_are_refused(name, fields):
    with pytest.raises(ConfigError, match="got a filter, and all samples are given"):
        Datasets("tensorflow")[name](**fields, filter=len)


def test_the_loader_of_a_framework():
    from neural_compressor.data.dataloaders.pytorch_dataloader import PyTorchDataLoader

    data = Datasets("pytorch")["dummy"](shape=(4, 3), filter=None)
    inputs, labels = next(iter(PyTorchDataLoader(data, batch_size=4)))
    assert torch.equal(inputs, torch.as_tensor(np.stack([data[i][0] for i in range(4)])))
    assert isinstance(labels, torch.Tensor)


@pytest.mark.parametrize(("framework", "kind"), [("pytorch", torch.Tensor), ("onnxrt_qlinearops", np.ndarray)])
def test_loaders_by_framework(framework, kind):
    assert framework in DATALOADERS
    loader = DATALOADERS[framework](Datasets(framework)["dummy"](shape=(4, 3)), batch_size=3)
    assert [(type(inputs), len(inputs)) for inputs, _ in loader] == [(kind, 3), (kind, 1)]
    with pytest.raises(ConfigError, match="DATALOADERS: unknown framework 'onxrt'"):
        DATALOADERS["onxrt"]


def test_an_image_as_a_tensor():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    found, label = TRANSFORMS("pytorch")["ToTensor"]()((image, 7))
    assert np.array_equal(found, image.transpose(2, 0, 1).astype(np.float32) / 255)
    assert label == 7


def test_random_data_follow_the_seed(monkeypatch):
    first, same = (Datasets("pytorch")["dummy"](shape=(2, 3))[0][0] for _ in range(2))
    monkeypatch.setattr(options, "random_seed", 5)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, Datasets("pytorch")["dummy"](shape=(2, 3))[0][0])


def test_images_in_folders(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((6, 8, 3), 100 * number, np.uint8)).save(tmp_path / name / "one.png")
    steps = ComposeTransform([CenterCropTransform(4), CastTransform(), TransposeTransform((2, 0, 1))])
    data = Datasets("onnxrt_qdq")["ImageFolder"](root=tmp_path, transform=steps)
    assert len(data) == 2
    pixels, label = data[1]
    assert (pixels.shape, pixels.dtype, float(pixels.mean()), label) == ((3, 4, 4), np.float32, 100.0, 1)
    with pytest.raises(ConfigError, match="no folder"):
        Datasets("pytorch")["ImageFolder"](tmp_path / "nowhere")


@pytest.mark.parametrize("shape", [(4, 5, 3), (3, 4, 5)])
def test_channels_are_normalised_on_either_side(shape):
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    mean, std = [1.0, 2.0, 3.0], [2.0, 4.0, 8.0]
    found, _ = NormalizeTransform(mean, std)((image, 0))
    axis = shape.index(3)
    for channel in range(3):
        expected = (image.take(channel, axis) - mean[channel]) / std[channel]
        np.testing.assert_allclose(found.take(channel, axis), expected, rtol=1e-6)


def test_nothing_is_downloaded():
    with pytest.raises(ConfigError, match="'CIFAR10' here, and nothing is downloaded"):
        Datasets("pytorch")["CIFAR10"]
    with pytest.raises(ConfigError, match="smaller than"):
        CenterCropTransform(9)((np.zeros((4, 4, 3)), 0))


def test_random_samples_of_several_inputs():
    data = Datasets("pytorch")["dummy_v2"](input_shape=[(3, 4), (2,)], label_shape=(5,), low=0.0, high=1.0, count=6)
    (first, second), labels = next(iter(DataLoader("pytorch", data, batch_size=4)))
    assert (first.shape, second.shape, labels.shape) == ((4, 3, 4), (4, 2), (4, 5))
    assert 0 <= float(first.min()) < float(first.max()) < 1
    assert np.array_equal(data[3][0][0], data[3][0][0])
    assert not np.array_equal(data[3][0][0], data[4][0][0])
    plain = Datasets("onnxrt_qdq")["dummy_v2"](input_shape=(3, 4))
    assert (plain[0][0].shape, plain[0][1], len(plain)) == ((3, 4), 0, 100)
    with pytest.raises(ConfigError, match="low < high"):
        Datasets("pytorch")["dummy_v2"](input_shape=(3,), low=1.0, high=0.0)


def test_images_with_a_list(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number in range(2):
        image.fromarray(np.full((2, 2, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "val.txt").write_text("1.png 7\n0.png 3\n")
    data = Datasets("pytorch")["ImagenetRaw"](data_path=tmp_path)
    assert [(int(pixels.max()), label) for pixels, label in (data[0], data[1])] == [(1, 7), (0, 3)]
    (tmp_path / "other.txt").write_text("2.png 7\n")
    with pytest.raises(ConfigError, match=r"line 1.*2\.png"):
        Datasets("pytorch")["ImagenetRaw"](data_path=tmp_path, image_list=tmp_path / "other.txt")
    with pytest.raises(ConfigError, match="no list of images"):
        Datasets("pytorch")["ImagenetRaw"](data_path=tmp_path / "nowhere")


def test_resized_images():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 255, (8, 12, 3)).astype(np.uint8)
    found, label = TRANSFORMS("onnxrt_qdq", "preprocess")["Resize"](size=(4, 6))((pixels, 5))
    assert np.array_equal(found, np.asarray(image.fromarray(pixels).resize((6, 4), image.Resampling.BILINEAR)))
    assert label == 5
    assert TRANSFORMS("pytorch")["Resize"](4)((pixels, 0))[0].shape == (4, 6, 3)
    assert TRANSFORMS("onnxrt_qdq")["Resize"](4)((pixels, 0))[0].shape == (4, 4, 3)
    flat = np.full((8, 12), 0.25, np.float32)
    assert np.array_equal(TRANSFORMS("pytorch")["Resize"]((2, 2), "nearest")((flat, 0))[0], np.full((2, 2), 0.25))
    part = TRANSFORMS("pytorch")["CropToBoundingBox"](1, 2, 3, 4)((pixels, 0))[0]
    assert np.array_equal(part, pixels[1:4, 2:6])
    cut = TRANSFORMS("pytorch")["CropResize"](x=2, y=1, width=4, height=3, size=(3, 4))((pixels, 0))[0]
    assert np.array_equal(cut, part)
    for name, options_of in (("Resize", {"size": 0}), ("Resize", {"size": 4, "interpolation": "lanczos9"})):
        with pytest.raises(ConfigError, match="ResizeTransform"):
            TRANSFORMS("pytorch")[name](**options_of)
    with pytest.raises(ConfigError, match="no part"):
        TRANSFORMS("pytorch")["CropToBoundingBox"](0, 0, 99, 1)((pixels, 0))
    with pytest.raises(ConfigError, match="no transform 'RandomCrop'"):
        TRANSFORMS("pytorch")["RandomCrop"]
    with pytest.raises(ConfigError, match="preprocess"):
        TRANSFORMS("pytorch", "postprocess")


def test_loaders_by_their_settings(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        image.new("RGB", (6, 8), (255, 0, 0)).save(tmp_path / kind / "0.png")
    loader = create_dataloader(
        "onnxrt_qlinearops",
        {
            "batch_size": 2,
            "dataset": {"ImageFolder": {"root": tmp_path}},
            "transform": {"Resize": {"size": 4}, "CenterCrop": {"size": 4}, "Rescale": {}},
            "filter": None,
        },
    )
    ((images, labels),) = loader
    assert images.shape == (2, 4, 4, 3)
    assert images.max() == 1
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": {"ImageRecord": {"root": "."}}}, "there is no data set 'ImageRecord' here"),
        ({"batch_size": 4}, "dataset: got None, expected one by name"),
        ({"dataset": {"dummy": {"shape": (2, 3)}}, "transform": {"BilinearImagenet": {}}}, "BilinearImagenet"),
        ({"dataset": {"dummy": {"shape": (2, 3)}}, "filter": {"LabelBalance": {"size": 1}}}, "got a filter"),
        ("conf.yaml", "create_dataloader: got a str"),
    ],
)
def test_settings_of_loaders_that_cannot_be_had(given, message):
    with pytest.raises(ConfigError, match=message):
        create_dataloader("tensorflow", given)
