"""The quantizable ops of a float model, its linear layers and repeated blocks, and why other weights are left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from neural_compressor.schemes import OpKey
from neural_compressor.torch import functional
from neural_compressor.torch.modules.function_products import (
    ATTENTION,
    FunctionProduct,
    ProductsForward,
    can_open,
    opened_products,
    seen_products,
)
from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.structure.watch import Call, Trace

FUNCTIONAL = (functional.MatMul, functional.Add, functional.Mul)
"""Ops without a weight; their output range is calibrated too."""

_MATMUL = "neural_compressor.torch.functional.MatMul"
_INSTEAD = {
    **dict.fromkeys(("matmul", "__rmatmul__", "mm", "bmm"), _MATMUL),
    **dict.fromkeys(
        ("einsum", "tensordot", "inner", "mv", "dot", "chain_matmul", "multi_dot"),
        f"{_MATMUL} (with the operands as matrices)",
    ),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv"), f"{_MATMUL} and an addition"),
    **{"linear": "nn.Linear", "embedding": "nn.Embedding", "lstm": "nn.LSTM", "gru": "nn.GRU"},
    **{f"conv{n}d": f"nn.Conv{n}d" for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": f"nn.ConvTranspose{n}d" for n in (1, 2, 3)},
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward", "bilinear", "cdist"), ""),
}
"""Functions that multiply matrices, with the module that would be quantized; none where there is no quantized form."""


BY_FUNCTION = (
    "a product that a forward computes by a function: in float unless a rule given to quantization.fit, prepare, quantize "
    "or autotune speaks of products alone, by their type 'MatMul' or their names, and the model can be run first, on "
    "example_inputs"
)
"""Why a rule for a whole block is not enough: a quantized product is simulated, and serving engines have no place for it."""


def op_classes() -> dict[str, type[nn.Module]]:
    """The module classes that count as ops, by type name."""
    names = (
        *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *("Embedding", "EmbeddingBag", "LSTM", "GRU"),
    )
    classes: dict[str, type[nn.Module]] = {name: getattr(nn, name) for name in names}
    return classes | {cls.__name__: cls for cls in FUNCTIONAL}


def find_ops(
    model: nn.Module, op_types: Collection[str] | None = None, traces: Sequence[Trace] = ()
) -> tuple[dict[OpKey, nn.Module], dict[OpKey, str]]:
    """``(ops, skipped)``: ops in the order they run (or are defined, without traces); skipped ones with the reason.

    An op is a module of a class that has a quantized form, a linear layer that holds its weight transposed (``Conv1D``) or a
    parameter that holds a matrix for each of several experts, with the module that multiplies with it. ``op_types`` are the
    types that the framework YAML lists.
    """
    classes = op_classes()
    ops: dict[OpKey, nn.Module] = {}
    skipped: dict[OpKey, str] = {}
    order = _run_order(model, traces)
    for name, module in model.named_modules():
        kind = type(module).__name__
        key = (name, kind)
        if type(module) is classes.get(kind) or is_conv1d(module):
            if module._forward_hooks or module._forward_pre_hooks:
                skipped[key] = "it has forward hooks, which would be lost with the module"
            elif getattr(module, "proj_size", 0):
                skipped[key] = f"{kind} with projections (proj_size) has no quantized form"
            elif getattr(module, "max_norm", None) is not None:
                skipped[key] = f"{kind} with max_norm rewrites its weight at each call"
            elif why := _without_floats(module):
                skipped[key] = why
            elif op_types is not None and kind not in op_types and not is_conv1d(module):
                skipped[key] = f"the framework YAML lists no quantized {kind}"
            elif traces and name not in order:
                skipped[key] = (
                    "never called while the model ran on the calibration data: its parent may use its weight directly"
                )
            else:
                ops[key] = module
        elif base := next((c for c in classes.values() if isinstance(module, c)), None):
            skipped[key] = (
                "its weight is computed from others (torch.nn.utils.parametrize); remove_parametrizations leaves the weight"
                if is_parametrized(module)
                else f"a subclass of {base.__name__} with behaviour of its own"
            )
        else:
            experts = _stacks_of(module)
            for own, parameter in module.named_parameters(recurse=False):
                key = (f"{name}.{own}" if name else own, kind)
                if own in experts:
                    ops[key] = module
                elif sum(size > 1 for size in parameter.shape) > 1:
                    skipped[key] = f"a parameter of shape {tuple(parameter.shape)} that {kind} works with directly"
    if traces:
        last = len(order)
        ops = dict(sorted(ops.items(), key=lambda item: order.get(item[0][0], last)))
    return ops, skipped


def _without_floats(module: nn.Module) -> str:
    """Why a layer has no weight that could be rounded, where that is so."""
    for name, parameter in module.named_parameters(recurse=False):
        if 0 in parameter.shape:
            return f"its {name} of shape {tuple(parameter.shape)} has no values"
        if not parameter.is_floating_point():
            return f"its {name} is {parameter.dtype}, and floats are rounded"
    return ""


def _run_order(model: nn.Module, traces: Iterable[Trace]) -> dict[str, int]:
    """When leaf modules were first called; products that are modules now and were functions then count as such."""
    opened: dict[tuple[str, str], list[str]] = {}
    for name, product in opened_products(model).items():
        opened[name.rpartition(".")[0], product.site] = [name + part for part in product.parts]
    order: dict[str, int] = {}
    for trace in traces:
        within: dict[str, list[Call]] = {}
        for call in trace.within:
            within.setdefault(call.inside, []).append(call)
        for call in trace.calls:
            owner = call.inside if call.module is None else call.module
            products = (opened.get((each.inside, each.site), ()) for each in (call, *within.get(owner, ())))
            for name in (*([] if call.module is None else [owner]), *chain.from_iterable(products)):
                order.setdefault(name, len(order))
    return order


def not_weight_only(model: nn.Module, ops: Mapping[OpKey, nn.Module], with_head: bool = False) -> dict[OpKey, str]:
    """Those of ``ops`` that weight-only configurations leave in float, with the reason; the output head is one of them."""
    head, found = output_head(model), dict[OpKey, str]()
    for key, module in ops.items():
        if module is head and not with_head:
            found[key] = "the output head; quant_lm_head=True quantizes it"
        elif not is_linear(module) and not is_parameter(model, key[0]):
            conv, table = isinstance(module, nn.modules.conv._ConvNd), isinstance(module, nn.Embedding)
            what = "a convolution" if conv else "an embedding" if table else f"of type {key[1]}"
            found[key] = f"{what}: weight-only algorithms quantize linear layers"
    return found


def find_functions(model: nn.Module, traces: Iterable[Trace], listed: Collection[OpKey]) -> dict[OpKey, str]:
    """Matrix products that forwards compute by functions of torch, with the reason why these stay in float.

    They are named by the module whose forward calls them. What happens inside ``listed`` modules of torch is said of those,
    and what is listed itself is not listed again.
    """
    modules = dict(model.named_modules())
    owners = [name if name in modules else name.rpartition(".")[0] for name, _ in listed]
    known = {name for name in owners if type(modules.get(name)).__module__.startswith("torch.")}
    said = {name for name, _ in listed}
    calls = [(name, kind, call) for name, kind, call in _function_calls(modules, traces) if call.inside not in known]
    found = {(name, product.kind): True for name, product in seen_products(model).items()}
    found |= {(name, kind): _can_be_module(call, modules[call.inside]) for name, kind, call in calls}
    return {
        (name, kind): _of_function(name, kind, can_be_module)
        for (name, kind), can_be_module in found.items()
        if not said & {name, f"{name}.qk", f"{name}.av"}
    }


def find_products(model: nn.Module, traces: Iterable[Trace]) -> dict[str, FunctionProduct]:
    """Products that forwards compute by functions and that can be modules, by the name that the module would have."""
    modules = dict(model.named_modules())
    return {
        name: FunctionProduct(kind, call.site)
        for name, kind, call in _function_calls(modules, traces)
        if _can_be_module(call, modules[call.inside])
    }


def _can_be_module(call: Call, inside: nn.Module) -> bool:
    return bool(call.site) and (can_open(inside) or isinstance(vars(inside)["forward"], ProductsForward))


def _function_calls(modules: Mapping[str, nn.Module], traces: Iterable[Trace]) -> Iterator[tuple[str, str, Call]]:
    """Functions that multiply matrices: the name of each, the function, and a call of it.

    Those at one place of the code are one; where the place is not known each call is one. A product that is a module now is
    none of them.
    """
    names: dict[tuple[str, str, str | int], str] = {}
    seen = {(name.rpartition(".")[0], each.site): name for name, each in seen_products(modules[""]).items()}
    for trace in traces:
        counts: Counter[tuple[str, str]] = Counter()
        for call in [*trace.calls, *trace.within]:
            kind = call.target.rpartition(".")[2]
            inside = modules.get(call.inside)
            if (
                call.module is not None
                or kind not in _INSTEAD
                or inside is None
                or getattr(inside, "by_function", False)
            ):
                continue
            counts[call.inside, kind] += not call.site
            if not call.site and isinstance(vars(inside).get("forward"), ProductsForward):
                continue  # its products were found by running it
            place = (call.inside, kind, call.site or counts[call.inside, kind])
            known = seen.get((call.inside, call.site))
            if place in names or known in modules:
                continue
            first = f"{call.inside}.{kind}" if call.inside else kind
            numbered = (first if n == 0 else f"{first}_{n}" for n in count())
            taken = {*names.values(), *seen.values(), *modules}
            free = (n for n in numbered if n not in taken and not hasattr(inside, n.rpartition(".")[2]))
            names[place] = known or next(free)
            yield names[place], kind, call


def _of_function(name: str, kind: str, can_be_module: bool) -> str:
    if can_be_module:
        return f"{BY_FUNCTION} ({name}.qk, {name}.av)" if kind == ATTENTION else BY_FUNCTION
    why = "a function that a forward calls, and only modules are quantized"
    return f"{why}; use {_INSTEAD[kind]} in its place" if _INSTEAD[kind] else f"{why}; it has no quantized form"


def is_linear(module: nn.Module) -> bool:
    """Whether ``module`` computes ``x Wᵀ + b`` and nothing else."""
    return type(module) is nn.Linear or is_conv1d(module)


def input_axis(module: nn.Module) -> int:
    """Where the channels of a layer's input lie, counted from the end."""
    return -1 - len(module.kernel_size) if isinstance(module, nn.modules.conv._ConvNd) else -1


def _stacks_of(module: nn.Module) -> list[str]:
    """The parameters of ``module`` that hold a matrix for each of several experts.

    Such a module has a stack for each of the layers that an expert has, all of the same number. One array alone may be
    anything: positions, a bias for each head.
    """
    threes = {name: p.shape for name, p in module.named_parameters(recurse=False) if p.dim() == 3 and min(p.shape) > 1}
    counts = [shape[0] for shape in threes.values()]
    return [name for name, shape in threes.items() if counts.count(shape[0]) > 1]


def op_type(model: nn.Module, name: str) -> str:
    """The class of the layer ``name``, or of the module that has the parameter of that name."""
    return type(model.get_submodule(name.rpartition(".")[0] if is_parameter(model, name) else name)).__name__


def is_parameter(model: nn.Module, name: str) -> bool:
    """Whether ``name`` is a parameter of ``model``, and no module."""
    owner, _, own = name.rpartition(".")
    return own in model.get_submodule(owner)._parameters


def output_head(model: nn.Module) -> nn.Module | None:
    """The layer that maps to a vocabulary: what the model says, or the last Linear as wide as its embedding."""
    ask = getattr(model, "get_output_embeddings", None)
    if callable(ask):
        found = ask()
        return found if isinstance(found, nn.Module) else None
    sizes = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features in sizes]
    return heads[-1] if heads else None


def outer_blocks(model: nn.Module, layers: Collection[str]) -> list[str]:
    """Names of the repeated blocks of a model that hold any of ``layers``, outermost only.

    A model without any is worked on as one block.
    """
    found: list[str] = []
    for path in repeated_blocks(model):
        if isinstance(model.get_submodule(path), nn.ModuleList):
            continue  # which is never called: what is in it is
        inside_another = any(path.startswith(f"{block}.") for block in found)
        if not inside_another and any(layer.startswith(f"{path}.") for layer in layers):
            found.append(path)
    return found


def ops_by_block(model: nn.Module, ops: Collection[OpKey]) -> list[list[OpKey]]:
    """Ops grouped by the repeated blocks they sit in, one inside another included; groups of one op are left out."""
    groups = ([key for key in ops if key[0].startswith(f"{path}.")] for path in repeated_blocks(model))
    return [group for group in groups if len(group) > 1]


def repeated_blocks(model: nn.Module) -> Iterator[str]:
    """The children of ModuleLists and Sequentials that have siblings of their class."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            children = list(module.named_children())
            kinds = Counter(type(child) for _, child in children)
            yield from (f"{name}.{own}" if name else own for own, child in children if kinds[type(child)] > 1)
