"""A quantized graph as a folder: ``model.safetensors`` and ``qconfig.json``, which holds the graph. Nothing is pickled.

``torch.export.save`` writes archives that ``torch.export.load`` unpickles in part, so graphs have a form of their own here:
operators by name, of the namespaces that exported graphs have, with plain arguments.
"""

from __future__ import annotations

import json
import operator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from neural_compressor.errors import FormatError, MissingDependencyError, NeuralCompressorError, WorkspaceError
from neural_compressor.formats import new_folder
from neural_compressor.paths import path_of
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.torch.files.checkpoint import CONFIG, WEIGHTS, checksum, read_checked, read_tensors, sha256
from neural_compressor.torch.modules.relay import Relays
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.pt2e.converted_forms import keep_given_terms
from neural_compressor.torch.pt2e.exported import Exported, exported_of, finished, torchao_required
from neural_compressor.torch.pt2e.ops import find_graph_ops, name_layer
from neural_compressor.torch.quantized_model import Quantization

FORMAT, VERSION = "neural_compressor.torch.pt2e", 1

_NAMESPACES = {
    **dict.fromkeys(("aten", "quantized_decomposed", "prims")),
    "transformers": "transformers.integrations.moe",
}
"""Where operators may come from; those of other libraries with the module that registers them."""
_FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (
            operator,
            (
                "getitem",
                "add",
                "sub",
                "mul",
                "floordiv",
                "truediv",
                "mod",
                "neg",
                "pow",
                "eq",
                "ne",
                "lt",
                "le",
                "gt",
                "ge",
            ),
        ),
        (torch, ("sym_max", "sym_min", "sym_not", "sym_ite", "sym_int", "sym_float")),
    )
    for name in names
}
"""Functions of numbers that graphs with varying sizes call."""
_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)


def save_graph(model: GraphModule, path: str | Path) -> None:
    """Write a quantized graph into the folder ``path``; an older one there is replaced only when the new is complete."""
    done, exported = getattr(model, "quantization", None), exported_of(model)
    if not isinstance(done, Quantization) or exported is None:
        raise FormatError("this graph was not quantized here: there is no plan to save with it")
    path = path_of(path, "save")
    if path.is_dir() and any(path.iterdir()) and not (path / CONFIG).exists():
        raise WorkspaceError(f"{path} exists and holds no quantized model: choose another folder, or empty it")
    names = {node: key for key, nodes in find_graph_ops(model, quantized=True)[0].items() for node in nodes}
    state, stored = _stored(model)
    size = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    config = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "plan": json.loads(done.plan.to_json()),
        "reasons": [[*key, reason] for key, reason in done.reasons.items()],
        "exported": asdict(exported),
        "tensors": state,
        "graph": _written_graph(model, names),
    }
    with new_folder(path, overwrite=True, needed=size) as folder:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in stored.items()}, folder / WEIGHTS)
        config["sha256"] = sha256(folder / WEIGHTS)
        config["checksum"] = checksum(config)
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")


def load_graph(path: str | Path) -> GraphModule:
    """Read what :func:`save_graph` wrote."""
    # torchao teaches Inductor which patterns are int8 kernels.
    with torchao_required():
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401

    path = path_of(path, "load")
    config = read_checked(path / CONFIG, FORMAT, VERSION)
    tensors = read_tensors(path, config.get("sha256", ""))
    try:
        root = torch.nn.Module()
        for name, stored in config["tensors"].items():
            _place(root, name, tensors[stored])
        graph, names = _read_graph(config["graph"])
        model = GraphModule(root, graph)
        keep_given_terms(model)  # which graphs of earlier releases were written without
        for node in model.graph.nodes:
            if node.name in names:
                name_layer(node, names[node.name])
        reasons = {(name, kind): reason for name, kind, reason in config["reasons"]}
        done = Quantization(Plan.from_json(json.dumps(config["plan"])), Structure(), reasons, Relays())
        return finished(model, Exported.from_dict(config["exported"]), done)
    except MissingDependencyError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, NeuralCompressorError) as error:
        raise FormatError(
            f"{path / CONFIG} holds no graph that can be read: {type(error).__name__}: {error}"
        ) from error


def _stored(model: GraphModule) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The tensors a graph reads, ``{name: stored name}`` and those to store: equal ones once."""
    state: dict[str, str] = {}
    stored: dict[str, torch.Tensor] = {}
    for node in model.graph.nodes:
        if node.op != "get_attr":
            continue
        owner, _, own = node.target.rpartition(".")
        tensor = getattr(model.get_submodule(owner), own)
        if isinstance(tensor, GraphModule):
            raise FormatError(
                f"the graph holds another one, {node.target!r} (a branch, a loop, or what runs under autocast), and only "
                'tensors can be saved beside it; format="aoti" saves it compiled'
            )
        if not isinstance(tensor, torch.Tensor):
            raise FormatError(
                f"the graph holds {node.target!r} of type {type(tensor).__name__}; only tensors can be saved"
            )
        same = (name for name, other in stored.items() if other is tensor or _equal(other, tensor))
        state[node.target] = next(same, node.target)
        stored.setdefault(state[node.target], tensor)
    return state, stored


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


def _place(root: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    *path, own = name.split(".")
    module = root
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    module.register_buffer(own, tensor.clone())


# -- the graph as plain data ------------------------------------------------------------------------------------------


def _written_graph(model: GraphModule, names: dict[Node, OpKey]) -> dict[str, Any]:
    codegen = model.graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        raise FormatError("the graph has lost how its inputs are nested; save the model that convert returned")
    info = codegen.pytree_info
    nodes = []
    for node in model.graph.nodes:
        entry = {"name": node.name, "op": node.op, "target": _written_target(node), "args": _written(node.args)}
        if node.kwargs:
            entry["kwargs"] = _written(dict(node.kwargs))
        if node in names:
            entry["layer"] = list(names[node])
        nodes.append(entry)
    specs = [None if spec is None else pytree.treespec_dumps(spec) for spec in (info.in_spec, info.out_spec)]
    return {"inputs": list(info.orig_args), "in": specs[0], "out": specs[1], "nodes": nodes}


def _read_graph(data: dict[str, Any]) -> tuple[Graph, dict[str, OpKey]]:
    graph, nodes, names = Graph(), dict[str, Node](), dict[str, OpKey]()
    for entry in data["nodes"]:
        kind, target = entry["op"], entry["target"]
        args, kwargs = _read(entry["args"], nodes), _read(entry.get("kwargs", {}), nodes)
        if kind == "call_function":
            target = _function(target)
        elif kind not in ("placeholder", "get_attr", "output"):
            raise FormatError(f"the graph has a node of the kind {kind!r}")
        node = graph.create_node(kind, target, tuple(args), kwargs, name=entry["name"])
        nodes[entry["name"]] = node
        if "layer" in entry:
            names[node.name] = (str(entry["layer"][0]), str(entry["layer"][1]))
    specs = [_read_spec(data[key]) for key in ("in", "out")]
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo([str(name) for name in data["inputs"]], *specs)))
    graph.lint()
    return graph, names


def _read_spec(text: str | None) -> Any:
    """How inputs or outputs are nested; types of transformers are known once it is imported."""
    if text is None:
        return None
    if "__enum__" in text:
        raise FormatError("the graph nests its inputs by an enumeration, which reading would import")
    if '"transformers.' in text:
        _register("transformers.modeling_outputs")
    return pytree.treespec_loads(text)


def _register(module: str) -> None:
    """Import a module of a library that the model was made with, for what it tells torch."""
    try:
        import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise MissingDependencyError(
            f"the graph uses {module}, which cannot be imported ({error}): pip install {library}"
        ) from error


def _written_target(node: Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
        return str(target)
    found = next((name for name, function in _FUNCTIONS.items() if function is target), None)
    if node.op != "call_function" or found is None:
        raise FormatError(
            f"the graph calls {target}, which has no written form (an operator of another library, or a branch or loop); "
            "save(format='aoti') compiles it instead"
        )
    return found


def _function(name: str) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if module := _NAMESPACES.get(namespace):
        _register(module)
    if namespace in _NAMESPACES and packet.replace("_", "a").isalnum() and overload.replace("_", "a").isalnum():
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        if isinstance(found, torch._ops.OpOverload):
            return found
    raise FormatError(f"the graph calls {name!r}, which is no operator of {', '.join(_NAMESPACES)}")


def _written(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _TORCH_VALUES):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, slice):
        return {"slice": [_written(value.start), _written(value.stop), _written(value.step)]}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_written(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[str(name), _written(each)] for name, each in value.items()]}
    raise FormatError(f"the graph has an argument of type {type(value).__name__}, which has no written form")


def _read(data: Any, nodes: dict[str, Node]) -> Any:
    if not isinstance(data, dict):
        return data
    if not data:
        return {}
    ((kind, value),) = data.items()
    if kind == "node":
        return nodes[value]
    if kind == "float":
        return float.fromhex(value)
    if kind == "device":
        return torch.device(value)
    if kind == "torch":
        found = getattr(torch, value)
        if not isinstance(found, _TORCH_VALUES):
            raise FormatError(f"the graph names torch.{value} as a data type")
        return found
    if kind == "dict":
        return {name: _read(each, nodes) for name, each in value}
    parts = [_read(each, nodes) for each in value]
    makers: dict[str, Any] = {"tuple": tuple, "list": list, "slice": lambda three: slice(*three)}
    return makers[kind](parts)
