"""One toolkit quantizes one ONNX model: seconds and peak memory, as a line of JSON.

Runs in the environment of its toolkit, and needs nothing of this project there but this file and its sibling modules:

    ENV/bin/python benchmarks/onnx_quantizers.py onc static MODEL CALIBRATION.npz OUT --samples 20
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onnx_inputs import Sample, StoredSamples
from peak_memory import peak_mib

METHODS = ("static", "static-kl", "dynamic", "rtn", "gptq")
CPUS = ("static-vnni", "static-7bit", "dynamic-vnni", "dynamic-7bit")
"""Further methods of ours: all of int8 for CPUs with VNNI, and one bit less, where the others give the same on any CPU."""
TOOLKITS = {"ours": "open-neural-compressor", "ort": "onnxruntime", "onc": "onnx-neural-compressor"}
"""The toolkits and the pip packages they come in."""
IMPORTS = {
    "ours": ("onnx_neural_compressor.quantization",),
    "ort": ("onnxruntime.quantization", "onnxruntime.quantization.matmul_nbits_quantizer"),
    "onc": ("onnx_neural_compressor.quantization", "onnx_neural_compressor.quantization.matmul_nbits_quantizer"),
}
BITS, BLOCK = 4, 32


class Feed:
    """Samples in the forms toolkits read them: by ``get_next``, or in a loop."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.rewind()

    def get_next(self) -> Sample | None:
        """The next sample, or None at the end."""
        self._place += 1
        return self.samples[self._place] if self._place < len(self.samples) else None

    def rewind(self) -> None:
        """Start anew."""
        self._place = -1

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)


def ours(method: str, model: str, out: str, feed: Any) -> None:
    """This project. Types, group and symmetry are the same for all toolkits."""
    from onnx_neural_compressor.quantization import config, quantize

    weight = {"weight_bits": BITS, "weight_group_size": BLOCK, "weight_sym": True}
    configs: dict[str, Callable[[], Any]] = {
        "static": lambda: config.StaticQuantConfig(feed, quant_format="QDQ", per_channel=True),
        "static-kl": lambda: config.StaticQuantConfig(
            feed, quant_format="QDQ", per_channel=True, calibrate_method="Entropy"
        ),
        "static-vnni": lambda: config.StaticQuantConfig(feed, quant_format="QDQ", per_channel=True, target_cpu="vnni"),
        "static-7bit": lambda: config.StaticQuantConfig(feed, quant_format="QDQ", per_channel=True, reduce_range=True),
        "dynamic": lambda: config.DynamicQuantConfig(per_channel=True),
        "dynamic-vnni": lambda: config.DynamicQuantConfig(per_channel=True, target_cpu="vnni"),
        "dynamic-7bit": lambda: config.DynamicQuantConfig(per_channel=True, reduce_range=True),
        "rtn": lambda: config.RTNConfig(**weight),
        "gptq": lambda: config.GPTQConfig(**weight, calibration_data_reader=feed),
    }
    quantize(model, out, configs[method]())


def ort(method: str, model: str, out: str, feed: Any) -> None:
    """The quantizers that come with ONNX Runtime, with the preparation their guide asks for.

    A scale a channel needs opset 13, which is not among what they raise a model to.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        prepared = str(Path(folder, "prepared.onnx"))
        # Its symbolic shape inference refuses most of these models, and is the step its guide lets one leave out.
        quant_pre_process(model, prepared, skip_symbolic_shape=True)
        loaded = onnx.load(prepared)
        if next(one.version for one in loaded.opset_import if not one.domain) < 13:
            onnx.save(onnx.version_converter.convert_version(loaded, 13), prepared)
        del loaded
        if method in ("rtn", "gptq"):
            weights: dict[str, Callable[[], Any]] = {
                "rtn": lambda: nbits.DefaultWeightOnlyQuantConfig(
                    BLOCK, is_symmetric=True, accuracy_level=4, bits=BITS
                ),
                "gptq": lambda: nbits.GPTQWeightOnlyQuantConfig(feed),
            }
            quantizer = nbits.MatMulNBitsQuantizer(
                prepared, BITS, BLOCK, is_symmetric=True, accuracy_level=4, algo_config=weights[method]()
            )
            quantizer.process()
            quantizer.model.save_model_to_file(out)
        elif method == "dynamic":
            quantization.quantize_dynamic(prepared, out, per_channel=True, weight_type=QuantType.QInt8)
        else:
            quantization.quantize_static(
                prepared,
                out,
                feed,
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.Entropy if method == "static-kl" else CalibrationMethod.MinMax,
            )


def onc(method: str, model: str, out: str, feed: Any) -> None:
    """Intel's onnx-neural-compressor, which wants readers of its own class."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod

    from onnx_neural_compressor import data_reader
    from onnx_neural_compressor.quantization import QuantFormat, config, quantize
    from onnx_neural_compressor.quantization import matmul_nbits_quantizer as nbits

    class Reader(Feed, data_reader.CalibrationDataReader):  # type: ignore[misc]
        """The samples, as that package asks for them."""

    reader = Reader(feed.samples)
    if method in ("rtn", "gptq"):
        weights: dict[str, Callable[[], Any]] = {
            "rtn": nbits.RTNWeightOnlyQuantConfig,
            "gptq": lambda: nbits.GPTQWeightOnlyQuantConfig(reader),
        }
        quantizer = nbits.MatMulNBitsQuantizer(
            model, BLOCK, is_symmetric=True, accuracy_level=4, algo_config=weights[method](), n_bits=BITS
        )
        quantizer.process()
        onnx.save(quantizer.model, out)
    elif method == "dynamic":
        quantize(model, out, config.DynamicQuantConfig(per_channel=True))
    else:
        ranges = CalibrationMethod.Entropy if method == "static-kl" else CalibrationMethod.MinMax
        static = {"quant_format": QuantFormat.QDQ, "per_channel": True, "calibrate_method": ranges}
        quantize(model, out, config.StaticQuantConfig(reader, **static))


def main() -> None:
    """Quantize once and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("toolkit", choices=TOOLKITS)
    parser.add_argument("method", choices=(*METHODS, *CPUS))
    parser.add_argument("model")
    parser.add_argument("calibration")
    parser.add_argument("out")
    parser.add_argument("--samples", type=int, required=True)
    options = parser.parse_args()
    feed = Feed(StoredSamples(Path(options.calibration), options.samples))
    for name in IMPORTS[options.toolkit]:  # seconds are those of quantization
        import_module(name)
    start = time.perf_counter()
    {"ours": ours, "ort": ort, "onc": onc}[options.toolkit](options.method, options.model, options.out, feed)
    seconds = time.perf_counter() - start
    found = {"seconds": seconds, "peak_mib": peak_mib(), "version": version(TOOLKITS[options.toolkit])}
    print("\n" + json.dumps(found))  # progress bars leave their line open


if __name__ == "__main__":
    main()
