"""How much of the calibration data is used."""

import torch

from neural_compressor.torch.structure.calibration_limit import UNLIMITED, CalibrationLimit

IDS = torch.arange(24).reshape(4, 6)


def test_rows_and_tokens_are_cut_together():
    mask, embedded, per_token = torch.ones_like(IDS), torch.randn(4, 6, 3), torch.randn(6)
    call = ((IDS,), {"mask": mask, "embedded": embedded, "more": (per_token, 2)})
    (ids,), kwargs = CalibrationLimit(samples=5, tokens=2).cut(call, seen=2)
    assert torch.equal(ids, IDS[:3, :2])
    assert kwargs["mask"].shape == (3, 2)
    assert torch.equal(kwargs["embedded"], embedded[:3, :2])
    assert torch.equal(kwargs["more"][0], per_token), "what is not by samples is left"


def test_what_is_within_the_limit_is_whole():
    for limit in (UNLIMITED, CalibrationLimit(8, 6)):
        assert torch.equal(limit.cut(((IDS,), {}), seen=4)[0][0], IDS)


def test_nothing_is_left_behind_the_last_sample():
    assert CalibrationLimit(4).cut(((IDS,), {}), seen=4) is None


def test_floats_have_no_tokens():
    images = torch.randn(2, 30, 30)
    assert CalibrationLimit(tokens=8).cut(((images,), {}), seen=0)[0][0].shape == images.shape


def test_the_most_that_anyone_wants_is_enough_for_all():
    assert CalibrationLimit.covering([CalibrationLimit(3, 9), CalibrationLimit(5, 2)]) == CalibrationLimit(5, 9)
    assert CalibrationLimit.covering([CalibrationLimit(3, 9), UNLIMITED]) == UNLIMITED
