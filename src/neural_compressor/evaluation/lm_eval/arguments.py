"""The arguments of lm-eval, validated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.validators import Flag, as_list, at_least, flag, is_number, optional, seed, text, word
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of


def _tasks(value: Any) -> list[Any]:
    given = value.split(",") if isinstance(value, str) else as_list(value)
    found = [each.strip() if isinstance(each, str) else each for each in given]
    for task in found:
        if not (isinstance(task, str) and task) and not isinstance(task, Mapping):
            raise ConfigError(f"got {task!r}, expected the name of a task, the path of its YAML file, or its settings")
    if value is None or not found:
        raise ConfigError("expected at least one task: a name, or the path of a YAML file")
    return found


def _paths(value: Any) -> list[Path]:
    found = [path_of(each) for each in ([] if value is None else as_list(value))]
    for path in found:
        if not path.is_dir():
            raise ConfigError(f"there is no folder {str(path)!r}; expected one with YAML files of tasks")
    return found


def _model_args(value: Any) -> dict[str, Any]:
    """``"pretrained=folder,dtype=float32"``, or the same as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    found = {}
    for part in text(value).split(","):
        name, equals, given = part.partition("=")
        if part.strip() and not equals:
            raise ConfigError(f"got {value!r}, expected name=value, separated by commas, or a dict")
        if name.strip():
            found[name.strip()] = given.strip() if name.strip() in _TEXTS else _value(given.strip())
    return found


_TEXTS = ("pretrained", "tokenizer")
"""Arguments that are names of folders, whatever they look like."""


def _value(given: str) -> Any:
    """What a text stands for: lm-eval reads numbers and words of its command line so, and takes those of a dict as they are.

    >>> [_value(each) for each in ("False", "none", "512", "0.5", "float32")]
    [False, None, 512, 0.5, 'float32']
    """
    words = {"true": True, "false": False, "none": None}
    if given.lower() in words:
        return words[given.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(given)
    return given


def _batch_size(value: Any) -> int | str:
    if isinstance(value, str) and not value.isdigit():
        if value.split(":")[0] != "auto":
            raise ConfigError(f"got {value!r}, expected a number of samples or 'auto'")
        return value
    return at_least(1)(int(value) if isinstance(value, str) else value)


def _limit(value: Any) -> float | None:
    if value is None or (is_number(value) and value > 0):
        return value  # type: ignore[no-any-return]
    raise ConfigError(f"got {value!r}, expected a number of samples a task, a share of them below 1, or None")


def _seeds(value: Any) -> list[int | None]:
    given = value.split(",") if isinstance(value, str) else as_list(value)
    found = [None if each in (None, "None") else seed(int(each) if isinstance(each, str) else each) for each in given]
    if len(found) not in (1, 3, 4):
        raise ConfigError(
            f"got {value!r}, expected one seed, or those of random, numpy and torch, and of few-shot examples"
        )
    return (found * 4 if len(found) == 1 else [*found, found[1]])[:4]


def _optional(check: Any) -> Any:
    return BeforeValidator(optional(check))


class LMEvalParser(ConfigModel):
    """The arguments of an evaluation: those of lm-eval's command line.

    The model is ``user_model`` with its ``tokenizer``, or the local folder in ``model_args`` ("pretrained=FOLDER"), a
    quantized one too. ``tasks`` are paths of YAML files, settings as dicts, names of tasks in the folders ``include_path``,
    or names that lm-eval itself has, whose data sets it then fetches as it always does. ``seed`` are those of random, numpy,
    torch, and few-shot examples. ``add_bos_token`` begins texts with that token, which is a model argument too.
    ``output_path`` is a folder that ``results.json`` is written into, or a file.

    >>> LMEvalParser(tasks="piqa,local/task.yaml", model_args="pretrained=folder").tasks
    ['piqa', 'local/task.yaml']
    """

    model: Annotated[str, BeforeValidator(text)] = "hf"
    tasks: Annotated[list[Any], BeforeValidator(_tasks)]
    model_args: Annotated[dict[str, Any], BeforeValidator(_model_args)] = Field(default_factory=dict)
    num_fewshot: Annotated[int | None, _optional(at_least(0))] = None
    batch_size: Annotated[int | str, BeforeValidator(_batch_size)] = 1
    max_batch_size: Annotated[int | None, _optional(at_least(1))] = None
    device: Annotated[str | None, _optional(text)] = None
    output_path: Annotated[Path | None, _optional(path_of)] = None
    limit: Annotated[float | int | None, BeforeValidator(_limit)] = None
    use_cache: Annotated[str | None, _optional(text)] = None
    cache_requests: Annotated[str | None, _optional(word(("true", "refresh", "delete")))] = None
    check_integrity: Flag = False
    write_out: Flag = False
    log_samples: Flag = False
    show_config: Flag = False
    include_path: Annotated[list[Path], BeforeValidator(_paths)] = Field(default_factory=list)
    gen_kwargs: Annotated[str | None, _optional(text)] = None
    verbosity: Annotated[str | None, _optional(word(("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")))] = "INFO"
    predict_only: Flag = False
    seed: Annotated[list[int | None], BeforeValidator(_seeds)] = Field(default=[0, 1234, 1234, 1234])
    trust_remote_code: Flag = False
    add_bos_token: Annotated[bool | None, _optional(flag)] = None
    user_model: Any = None
    tokenizer: Any = None

    def __init__(self, **values: Any) -> None:
        values.setdefault("tasks", None)
        super().__init__(**values)
