"""A model above the two gigabytes that protobuf holds, quantized from file to file."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from neural_compressor.onnx.adaptor.inspection import constants_of
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.schemes import sqnr_db

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured as Linux does"),
]

WIDTH, LAYERS = 4096, 36
CHILD = """
import json, sys
from pathlib import Path
from neural_compressor.onnx.quantization import RTNConfig, quantize

quantize(sys.argv[1], sys.argv[2], RTNConfig())
status = Path("/proc/self/status").read_text()
print(json.dumps(1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))))
"""


def weight(place):
    """Different in each layer, and cheap to make again."""
    return np.roll(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), dtype=np.float32), place)


@pytest.fixture
def folder():
    """Gone afterwards, other than ``tmp_path``."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_weights_stream_from_file_to_file(folder):
    weights, nodes = [], []
    with (folder / "weights.bin").open("wb") as file:
        for i in range(LAYERS):
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            where = {"location": "weights.bin", "offset": file.tell(), "length": 4 * WIDTH * WIDTH}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(weight(i))
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"], name=f"product{i}"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("h0", f"h{LAYERS}"))
    graph = helper.make_graph(nodes, "large", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    size = (folder / "weights.bin").stat().st_size
    assert size > 2 << 30

    command = [sys.executable, "-c", CHILD, str(folder / "m.onnx"), str(folder / "q.onnx")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The quantized weights are a sixth of the float ones; of these, one at a time is in memory.
    assert json.loads(done.stdout.splitlines()[-1]) < 0.4 * size

    assert (folder / "q.onnx").stat().st_size < 0.17 * size
    quantized = read_model(folder / "q.onnx")
    assert [node.op_type for node in quantized.graph] == ["MatMulNBits"] * LAYERS
    for place in (0, LAYERS - 1):
        assert sqnr_db(weight(place), constants_of(quantized.graph[place])["weight"]) > 18
