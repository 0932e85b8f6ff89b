"""Evaluation of a language model by lm-eval."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

from neural_compressor.errors import ConfigError, EvaluationError, MissingDependencyError, NeuralCompressorError
from neural_compressor.evaluation.lm_eval.arguments import LMEvalParser
from neural_compressor.model import unwrapped

_HUGGING_FACE = ("hf", "hf-auto", "huggingface")
_LOADING = ("dtype", "revision", "subfolder", "parallelize", "peft", "delta", "autogptq", "gptqmodel", "gguf_file")
"""Arguments that say how a model is loaded, which lm-eval does not read where it is given one."""


def evaluate(args: LMEvalParser) -> dict[str, Any]:
    """The results of lm-eval for ``args``: ``["results"][task]["acc,none"]`` and so on; a table of them is printed."""
    if not isinstance(args, LMEvalParser):
        raise ConfigError(f"args is a {type(args).__name__}; evaluate takes a LMEvalParser")
    _check_model(args)
    lm_eval = _package()
    if args.verbosity is not None:
        logging.getLogger("lm_eval").setLevel(args.verbosity)
    seeds = dict(
        zip(("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed"), args.seed, strict=True)
    )
    caches = {"cache_requests": args.cache_requests in ("true", "refresh")}
    caches |= {"rewrite_requests_cache": args.cache_requests == "refresh"}
    caches |= {"delete_requests_cache": args.cache_requests == "delete"}
    try:
        results: dict[str, Any] = lm_eval.simple_evaluate(
            model=_model(args),
            model_args=None if _is_loaded_here(args) else {**_model_options(args), **args.model_args},
            tasks=args.tasks,
            task_manager=_task_manager(args),
            gen_kwargs=args.gen_kwargs,
            **{name: getattr(args, name) for name in _SAME},
            **caches,
            **seeds,
        )
    except NeuralCompressorError:
        raise
    except Exception as error:
        raise EvaluationError(
            f"lm-eval does not evaluate {', '.join(map(str, args.tasks))}: {type(error).__name__}: {error}. Tasks need no "
            "network where their YAML names local files (dataset_path: json, dataset_kwargs: {data_files: ...})"
        ) from error
    _show(args, results)
    return results


_SAME = (
    *("num_fewshot", "batch_size", "max_batch_size", "device", "use_cache", "limit", "check_integrity", "write_out"),
    *("log_samples", "predict_only"),
)
"""Arguments that have the same name there."""


def _package() -> ModuleType:
    try:
        import lm_eval
        import lm_eval.models.huggingface
        import lm_eval.tasks
        import lm_eval.utils
    except ImportError as error:
        raise MissingDependencyError(
            f"evaluation.lm_eval needs the package lm-eval ({error}): pip install 'open-neural-compressor[lm-eval]'"
        ) from error
    return lm_eval  # type: ignore[no-any-return]


def _check_model(args: LMEvalParser) -> None:
    if args.add_bos_token is not None and "add_bos_token" in args.model_args:
        raise ConfigError("LMEvalParser: add_bos_token is given twice, as a field and in model_args; give one of them")
    if args.user_model is not None:
        if args.tokenizer is None:
            raise ConfigError("LMEvalParser: user_model comes with its tokenizer; give tokenizer too")
        if args.model not in _HUGGING_FACE or args.model_args:
            raise ConfigError(
                "LMEvalParser: user_model is evaluated, and model and model_args would not be read: leave them"
            )
    elif args.model in _HUGGING_FACE:
        folder = args.model_args.get("pretrained")
        if folder is None or not Path(str(folder)).is_dir():
            raise ConfigError(
                f"LMEvalParser.model_args: pretrained is {folder!r}, which is no folder here, and nothing is downloaded; "
                "give 'pretrained=FOLDER', or user_model and tokenizer"
            )
        if args.tokenizer is not None:
            raise ConfigError(
                "LMEvalParser: tokenizer goes with user_model; beside model_args write 'tokenizer=FOLDER' there"
            )
        if _is_loaded_here(args) and (idle := [name for name in _LOADING if name in args.model_args]):
            raise ConfigError(
                f"LMEvalParser.model_args: {', '.join(idle)} would have no effect: {str(folder)!r} holds a quantized model, "
                "which is loaded as it was saved; leave it out"
            )


def _is_loaded_here(args: LMEvalParser) -> bool:
    """Whether lm-eval is handed a model: one of the user, or a quantized folder."""
    from neural_compressor.torch.quantization.saving import is_quantized_folder

    folder = args.model_args.get("pretrained")
    quantized = args.model in _HUGGING_FACE and folder is not None and is_quantized_folder(folder)
    return args.user_model is not None or quantized


def _model_options(args: LMEvalParser) -> dict[str, Any]:
    """Fields that are arguments of a model there."""
    said = {} if args.add_bos_token is None else {"add_bos_token": args.add_bos_token}
    return {"trust_remote_code": args.trust_remote_code, **said}


def _model(args: LMEvalParser) -> Any:
    if not _is_loaded_here(args):
        return args.model
    from lm_eval.models.huggingface import HFLM

    options = {name: value for name, value in args.model_args.items() if name != "pretrained"}
    model, tokenizer = unwrapped(args.user_model), args.tokenizer
    if model is None:
        from neural_compressor.torch.quantization import load

        folder = args.model_args["pretrained"]
        model = load(folder, format="huggingface", device=args.device or "cpu")
        tokenizer = options.pop("tokenizer", folder)
    elif args.device is not None:
        model = model.to(args.device)
    options = {**_model_options(args), **options}
    if args.max_batch_size is not None:
        options["max_batch_size"] = args.max_batch_size
    return HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=args.batch_size, device=args.device or "cpu", **options
    )


def _task_manager(args: LMEvalParser) -> Any:
    """One that knows the local tasks; those of the package, of which there are thousands, where these do not do."""
    from lm_eval.tasks import TaskManager

    folders = [str(path) for path in args.include_path]
    local = TaskManager(include_path=folders, include_defaults=False)
    known = {*local.all_tasks}
    if all(not isinstance(task, str) or task in known or Path(task).is_file() for task in args.tasks):
        return local
    return TaskManager(include_path=folders)


def _show(args: LMEvalParser, results: dict[str, Any]) -> None:
    from lm_eval.utils import handle_non_serializable, make_table

    if args.output_path is not None:
        file = args.output_path if args.output_path.suffix == ".json" else args.output_path / "results.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2, default=handle_non_serializable) + "\n", encoding="utf-8")
    if args.show_config:
        print(json.dumps(results["config"], indent=2, default=handle_non_serializable))
    print(make_table(results))
