"""The first two of the three steps of static quantization: watch the inputs of ops while the float network runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neural_compressor.observers import make_observer
from neural_compressor.schemes import QParams, TensorScheme, choose_qparams
from tinynet.network import Network
from tinynet.quantized import FakeQuant


def insert_fake_quants(network: Network, schemes: Mapping[str, TensorScheme]) -> Network:
    """The network with a FakeQuant before each layer that ``schemes`` has an activation scheme for."""
    calib_model = Network()
    for layer in network:
        if layer.name in schemes:
            calib_model.add_layer(FakeQuant(name=layer.name, observer=make_observer(schemes[layer.name])))
        calib_model.add_layer(layer)
    return calib_model


def run_samples(calib_model: Network, dataloader: Iterable[Any] | None, iterations: int) -> int:
    """Run at most ``iterations`` batches; returns how many there were."""
    done = 0
    for inputs, _ in dataloader if dataloader is not None else ():
        calib_model.predict_on_batch(inputs)
        done += 1
        if done == iterations:
            break
    return done


def calibrated(calib_model: Network, schemes: Mapping[str, TensorScheme]) -> dict[str, QParams]:
    """Scale and zero point of the input of each watched layer, from the ranges its observer arrived at."""
    watchers = [layer for layer in calib_model if isinstance(layer, FakeQuant)]
    return {w.name: choose_qparams(*w.observer.range(schemes[w.name]), schemes[w.name]) for w in watchers}
