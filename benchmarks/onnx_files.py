"""Seconds and peak memory of reading, looking at every weight of, and writing an ONNX file: this toolkit, onnx, onnx_ir.

    python benchmarks/onnx_files.py [--gib 1.5]

Each cell is a process of its own; a model of matrices is made in a temporary folder, in one file and with external data.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper
from peak_memory import peak_mib

from neural_compressor.onnx.files.mapped_file import release
from neural_compressor.onnx.files.message_check import checked_message
from neural_compressor.onnx.files.model_file import initializers, read_model, write_model

WIDTH = 2048


def make(path: Path, bytes_in_all: int, external: bool) -> None:
    """A chain of products."""
    rng, tensors, nodes = np.random.default_rng(0), [], []
    for place in range(max(1, bytes_in_all // (4 * WIDTH * WIDTH))):
        values = rng.standard_normal((WIDTH, WIDTH), np.float32)
        tensors.append(helper.make_tensor(f"w{place}", TensorProto.FLOAT, values.shape, values.tobytes(), raw=True))
        nodes.append(helper.make_node("MatMul", [f"v{place}", f"w{place}"], [f"v{place + 1}"], name=f"m{place}"))
    ends = [helper.make_tensor_value_info(name, 1, ["n", WIDTH]) for name in ("v0", f"v{len(nodes)}")]
    model = helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors), ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data")


def ours(path: Path, out: Path) -> None:
    """Weights mapped from the file and written one after the other."""
    model = read_model(path)
    for _, tensor in initializers(model):
        np.abs(tensor.numpy()).max()
        release(tensor)
    write_model(model, out)


def by_onnx(path: Path, out: Path) -> None:
    """The message whole."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        np.abs(onnx.numpy_helper.to_array(tensor)).max()
    onnx.save(model, out)


def by_onnx_ir(path: Path, out: Path) -> None:
    """onnx_ir: external data is mapped, what is in the file is read with it."""
    model = ir.load(path)
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        np.abs(value.const_value.numpy()).max()
    ir.save(model, out)


def check_ours(path: Path, out: Path) -> None:
    """The check of the message alone, behind ``onnx.load``."""
    checked_message(onnx.load(path, load_external_data=False), "model")


def check_onnx(path: Path, out: Path) -> None:
    """What onnx has for that, by path, as it refuses messages of over 2 GiB."""
    onnx.checker.check_model(str(path))


CELLS = {each.__name__: each for each in (ours, by_onnx, by_onnx_ir, check_ours, check_onnx)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.5)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        name, path, out = given.cell
        before, start = peak_mib(), time.process_time()
        CELLS[name](Path(path), Path(out))
        print(
            f"{name:12} {time.process_time() - start:6.1f} s CPU, {peak_mib() - before:6.0f} MiB more than at its start"
        )
        return
    print(f"onnx {onnx.__version__}, onnx_ir {ir.__version__}, {given.gib} GiB of weights")
    for external in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            make(path, int(given.gib * (1 << 30)), external)
            print("external data" if external else "one file", flush=True)
            for name in CELLS:
                out = Path(folder) / f"{name}.onnx"
                subprocess.run([sys.executable, __file__, "--cell", name, str(path), str(out)], check=False)
                for made in Path(folder).glob(f"{name}*"):
                    made.unlink()


if __name__ == "__main__":
    main()
