"""Bad input of every kind: an error of our own that names what is wrong, or the right result. Never anything else."""

import hashlib
import json
import logging
import math
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import neural_compressor.config as settings
import neural_compressor.onnx.quantization.config as onnx_settings
import neural_compressor.torch.quantization as q
from neural_compressor import quantization
from neural_compressor.adaptor.framework_yaml import read_entries
from neural_compressor.config import (
    AccuracyCriterion,
    PostTrainingQuantConfig,
    QuantizationAwareTrainingConfig,
    TuningConfig,
    TuningCriterion,
)
from neural_compressor.errors import (
    CalibrationError,
    ConfigError,
    EvaluationError,
    FormatError,
    NeuralCompressorError,
    QuantizationError,
    WorkspaceError,
)
from neural_compressor.onnx.runtime.batches import LoaderReader, ModelInputs, RecordedReader
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.torch.capability import PyTorchQuery
from neural_compressor.torch.modules.kernels.race import racing
from neural_compressor.training import prepare_compression

NAN, INF, NUL = math.nan, math.inf, "a\0b"
BATCHES = list(torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


def table(*rows):
    """Rows ``(id, call, error, words of its message)`` as parameters."""
    return pytest.mark.parametrize(("call", "error", "said"), [pytest.param(*row[1:], id=row[0]) for row in rows])


def must_raise(error, said, call, *args):
    with pytest.raises(NeuralCompressorError) as caught:
        call(*args)
    assert isinstance(caught.value, error), caught.value
    for word in [said] if isinstance(said, str) else said:
        assert word in str(caught.value)
    return caught.value


# -- every field of every configuration class ---------------------------------------------------------------------------

POOL = {
    "nan": NAN,
    "inf": INF,
    "negative": -3,
    "huge": 10**30,
    "empty text": "",
    "word": "no_such_word",
    "empty list": [],
    "empty dict": {},
    "None": None,
    "True": True,
    "1": 1,
    "0": 0,
    "0.5": 0.5,
    "bytes": b"x",
    "set": {1},
    "class": int,
    "nested": [[1]],
    "list of None": [None],
    "NUL": NUL,
    "function": len,
}
SHARE, COUNT, NAMES = {"1", "0", "0.5"}, {"1", "huge"}, {"word", "NUL", "empty list", "None"}
# What of the pool makes sense, by field; True does for those that are True or False.
ADMITTED = {
    field: values
    for fields, values in {
        "alpha init_alpha alpha_min alpha_max percdamp": SHARE,
        "tolerable_loss": SHARE | {"negative"},  # a gain
        "group_size double_quant_group_size scale_quant_group_size weight_group_size": COUNT,
        "iters warmup": COUNT | {"0"},
        "dynamic_max_gap": COUNT | {"0", "negative", "None"},
        "lr_scheduler": {"None"},
        "dataset": {"None", "empty list", "list of None", "nested", "set"},  # batches, whatever the model takes
        "export_format static_kv_dtype static_attention_dtype scale_dtype options": {"None"},
        "shared_layers": {"None", "empty list"},
        "target_bits": {"1", "None"},
        "output_dir": {"None", "empty text", "word"},
        "tokenizer": {"None", "word", "function"},
        "gradient_accumulate_steps iteration": COUNT,
        "nblocks": COUNT | {"None"},
        "disable_opt_rtn": {"None"},
        "device_map": {"None", "word", "NUL", "0", "1", "huge"},  # known where the machine is
        "num_of_instance cores_per_instance inter_num_of_threads intra_num_of_threads": COUNT | {"None"},
        "input_names output_names": NAMES,
        "dynamic_axes": {"empty dict", "None"},
        "recipe": {"None"},
        "opset_version": set(),
        "ni_workload_name": {"empty text", "word", "NUL"},
        "nsamples seqlen block_size blocksize calib_iter": COUNT,
        "max_trials calibration_sampling_size": COUNT,
        "bits double_quant_bits weight_bits group_dim act_bits batch_size": {"1"},
        "inputs outputs nodes_to_exclude nodes_to_quantize op_types_to_quantize": NAMES,
        "op_type_dict op_name_dict recipes strategy_kwargs extra_options ratios auto_alpha_args": {
            "empty dict",
            "None",
        },
        "accuracy_criterion tuning_criterion absorb_layer_dict absorb_to_layer allowlist blocklist": {"empty dict"},
        "lr minmax_lr": {"1", "0.5", "None", "list of None"},
        "model_path dump_stats_path": {"empty text", "word"},
        "framework_yaml calibration_data_reader execution_provider reduce_range": {"None"},
        "freeze_after": COUNT | {"None", "0"},
        "scale_params mod_dict": {"empty dict"},
        "device_for_scales world_size": {"None"},
        "calibration_sample_interval": COUNT,
        "local_rank global_rank": COUNT | {"0", "None"},
        "quant_level seed": {"1", "0"},
        "excluded_precisions": {"empty list", "None"},
        "timeout": SHARE | {"huge"},
        "alpha_step": {"1", "0.5", "huge"},
        "model_name": {"empty text", "word", "NUL"},
        "strategy": {"word", "NUL"},  # known where the strategies are: another case says so
        "sampler": {"None", "class", "function"},
        "workspace": {"word", "None"},
        "resume_from": {"None"},
        "random_seed": COUNT | {"0", "huge"},
        "white_list": NAMES | {"class"},
        "local": {"empty list"},
        "super_bits": {"1", "None", "list of None"},
        "act_group_size super_group_size": COUNT | {"None", "list of None"},
        "act_sym act_dtype": {"None", "list of None"},
        "accuracy_level": {"1", "0", "None", "list of None"},
        "example_inputs": set(POOL),  # whatever the model takes
    }.items()
    for field in fields.split()
}
CLASSES = {
    f"{module.__name__.split('.')[1]}.{name}": found
    for module in (settings, q, onnx_settings)
    for name in module.__all__
    if isinstance(found := getattr(module, name), type)
    and hasattr(found, "model_fields")
    and name not in ("ComposableConfig", "ComposedConfig")
}


@pytest.mark.parametrize("cls", [pytest.param(cls, id=name) for name, cls in CLASSES.items()])
def test_fields_refuse_what_makes_no_sense_and_say_so(cls):
    for field in cls.model_fields:
        refuses_nonsense(cls, field)


def refuses_nonsense(cls, field):
    yes_or_no = isinstance(cls.model_fields[field].get_default(call_default_factory=True), bool)
    admitted = ADMITTED.get(field, set()) | ({"True"} if yes_or_no or field == "act_sym" else set())
    others = {"config_set": q.RTNConfig()} if cls.__name__ == "TuningConfig" and field != "config_set" else {}
    for name in POOL.keys() - admitted:
        said = str(
            must_raise(ConfigError, [cls.__name__, field], lambda value: cls(**{field: value}, **others), POOL[name])
        )
        assert "expected" in said or "nown" in said or "Input should" in said, f"{name}: {said}"


@pytest.mark.parametrize("cls", [pytest.param(cls, id=name) for name, cls in CLASSES.items()])
def test_a_field_that_is_not_there_names_close_ones(cls):
    field = list(cls.model_fields)[-1]
    others = {"config_set": q.RTNConfig()} if cls.__name__ == "TuningConfig" else {}
    must_raise(ConfigError, [f"{field}x", repr(field)], lambda: cls(**{f"{field}x": 1}, **others))
    must_raise(ConfigError, "7", cls.from_dict, {**others, 7: 1})


RTN, PTQ, QAT = q.RTNConfig, PostTrainingQuantConfig, QuantizationAwareTrainingConfig
RULE = {"weight": {"dtype": "fp32"}}


@table(
    ("500 percent", lambda: AccuracyCriterion(tolerable_loss=5), ConfigError, ["500%", "0.05", "absolute"]),
    ("made relative", lambda: setattr(AccuracyCriterion(criterion="absolute", tolerable_loss=5), "criterion", "relative"),
     ConfigError, "tolerable_loss"),
    ("500 percent of autotune", lambda: TuningConfig(RTN(), tolerable_loss=5), ConfigError, ["TuningConfig", "0.05"]),
    ("a set of nothing", lambda: TuningConfig({}), ConfigError, ["config_set", "torch.rtn"]),
    ("rules that are a list", lambda: PTQ(op_name_dict=["fc"]), ConfigError, "op_name_dict"),
    ("a rule of a number", lambda: PTQ(op_name_dict={5: RULE}), ConfigError, "string"),
    ("a rule that is empty", lambda: PTQ(op_name_dict={"fc": {}}), ConfigError, "weight"),
    ("a part of a rule", lambda: PTQ(op_name_dict={"fc": {"wieght": {}}}), ConfigError, "'weight'"),
    ("a field of a rule", lambda: PTQ(op_name_dict={"fc": {"weight": {"dtypo": 1}}}), ConfigError, "dtype"),
    ("a rule with back-references", lambda: PTQ(op_name_dict={r"(a)\1": RULE}), ConfigError, "bounded"),
    ("a rule of 3000 characters", lambda: PTQ(op_name_dict={"a" * 3000: RULE}), ConfigError, "2000"),
    ("unknown recipe", lambda: PTQ(recipes={"smooth": 1}), ConfigError, "smooth_quant"),
    ("no such yaml", lambda: PTQ(framework_yaml="no.yaml"), ConfigError, "no.yaml"),
    ("local of None", lambda: RTN().set_local("fc", None), ConfigError, "set_local"),
    ("local of a dict", lambda: RTN().set_local("fc", {}), ConfigError, "set_local"),
    ("local of a sum", lambda: RTN().set_local("fc", RTN() + q.GPTQConfig()), ConfigError, "set_local"),
    ("local with local", lambda: RTN().set_local("fc", RTN().set_local("a", RTN())), ConfigError, "local rules"),
    ("local of another framework", lambda: RTN().set_local("fc", onnx_settings.RTNConfig()), ConfigError, "onnx"),
    *((f"local for {op!r}", lambda op=op: RTN().set_local(op, RTN()), ConfigError, "set_local")
      for op in (None, 5, "", [], {}, ["fc", None], {"type": 5}, 1.5, b"fc", r"(a)\1")),
    ("list without meaning", lambda: q.convert(net(), RTN(bits=[4, 8])), ConfigError, "bits=[4, 8]"),
    ("rule for no op", lambda: q.convert(net(), RTN().set_local("zero", RTN())), ConfigError, "'zero'"),
    ("invalid rule for no op", lambda: q.convert(net(), RTN().set_local("0[", RTN())), ConfigError, "unterminated"),
    ("white list of no op", lambda: q.convert(net(), RTN(white_list=["zero"])), ConfigError, "'zero'"),
)  # fmt: skip
def test_configurations(call, error, said):
    must_raise(error, said, call)


def test_a_field_that_was_refused_is_as_it_was():
    criterion = AccuracyCriterion(criterion="absolute", tolerable_loss=5)
    must_raise(ConfigError, "tolerable_loss", setattr, criterion, "criterion", "relative")
    assert (criterion.criterion, criterion.tolerable_loss) == ("absolute", 5)


@pytest.mark.parametrize("key", ["(a+)+", "(a|a)*b", ".*" * 20 + "x", "(?:a*)*c"])
def test_a_rule_that_would_never_end_matches_nothing_and_says_so(key, tmp_path):
    model = nn.Sequential()
    model.add_module("a" * 60 + "!", nn.Linear(8, 8))
    conf = PTQ(approach="dynamic", op_name_dict={key: RULE})
    must_raise(ConfigError, "matches no op", lambda: quantization.fit(model, conf, workspace=tmp_path, quiet=True))


@pytest.mark.parametrize("name", ["fc(1", "fc[", "a+b", "*"])
def test_the_name_of_an_op_matches_it_though_it_is_no_expression(name, tmp_path):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(8, 8))
    model.add_module("other", nn.Linear(8, 8))
    conf = PTQ(approach="dynamic", op_name_dict={name: RULE})
    fitted = quantization.fit(model, conf, workspace=tmp_path, quiet=True)
    kinds = {name: type(module) for name, module in fitted.model.named_children()}
    assert kinds[name] is nn.Linear
    assert kinds["other"] is not nn.Linear
    local = RTN().set_local(name, RTN(dtype="fp32"))
    assert type(q.convert(model, local, inplace=True).get_submodule(name)) is nn.Linear


# -- JSON files of settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("\0", "JSON"),
        ("[" * 60000, "recursion"),
        ("[]", "mapping"),
        ("5", "mapping"),
        ("null", "mapping"),
        ('{"config": "torch.rtnn"}', "torch.rtn"),
        ('{"config": 5}', "5"),
        ('{"config": ["x"]}', "x"),
        ('{"config": "torch.gptq"}', "GPTQConfig"),
        ('{"bits": 99}', "bits"),
        ('{"bits": "4"}', "bits"),
        ('{"bits": NaN}', "bits"),
        ('{"bits": 4, "bits": 8}', "twice"),
        ('{"bitts": 4}', "'bits'"),
        ('{"local": [5]}', "local"),
        ('{"local": [{"op": "a", "config": {}}]}', "local"),
        ('{"local": [{"op": 5, "config": {"config": "torch.rtn"}}]}', "local"),
    ],
)
def test_settings_in_json(text, said, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(text)
    must_raise(ConfigError, said, RTN.from_json_file, file)


def loop(folder):
    os.symlink(folder / "loop", folder / "loop")
    return folder / "loop"


PLACES = {
    "None": lambda folder: None,
    "5": lambda folder: 5,
    "an object": lambda folder: object(),
    "bytes": lambda folder: b"x",
    "a list": lambda folder: ["a"],
    "nothing": lambda folder: "",
    "NUL": lambda folder: NUL,
}
OF_FILES = {"a loop of links": loop, "below a file": lambda folder: Path(__file__) / "below"}


@pytest.mark.parametrize("place", [*PLACES, *OF_FILES])
def test_paths(place, tmp_path):
    path = {**PLACES, **OF_FILES}[place](tmp_path)
    model, done = net(), q.convert(net(), RTN())
    must_raise(ConfigError, "", RTN.from_json_file, path)
    must_raise(ConfigError, "", RTN().to_json_file, path)
    must_raise((ConfigError, WorkspaceError), "", q.save, done, path)
    must_raise((ConfigError, FormatError), "", q.load, path, model)
    must_raise((ConfigError, FormatError), "", quantization.load, path, model)
    must_raise(ConfigError, "", lambda: q.load(path, format="huggingface"))
    if path is not None:  # None is the usual folder
        must_raise((ConfigError, WorkspaceError), "", lambda: fit(tmp_path, workspace=path))
    if place in PLACES and path is not None:
        must_raise(ConfigError, "storage", lambda: fit(tmp_path, storage=path, eval_func=lambda _: 1.0))


# -- framework YAML -----------------------------------------------------------------------------------------------------

TENSOR = "{dtype: int4, scheme: sym, granularity: per_channel, algorithm: minmax}"
BOMB = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))])
YAML = {
    "empty": ("", "nothing"),
    "a number": ("5", "int"),
    "an empty list": ("[]", "list"),
    "no version": ("- {fp32: ['*']}", "version"),
    "60000 brackets": ("[" * 60000, "nested"),
    "60000 closed brackets": ("[" * 60000 + "]" * 60000, "nested"),
    "60000 braces": ("{a: " * 60000, "nested"),
    "30000 dashes": ("- " * 30000 + "x", "nested"),
    "five million characters": ("#" * 5_000_000, "characters"),
    "aliases that multiply": (BOMB, "aliases"),
    "an alias of itself": ("&a [*a]", "entry 1"),
    "an unknown alias": ("a: *b", "alias"),
    "code": ("!!python/object/apply:os.system ['true']", "YAML"),
    "a wrong number": ("a: !!int 'x'", "cannot be read"),
    "a wrong date": ("a: !!timestamp x", "cannot be read"),
    "a tab": ("int4:\n\tstatic: {}", "YAML"),
    "two documents": ("int4: {}\n---\nint4: {}", "YAML"),
    "a key twice": ("int4: {}\nint4: {}", "twice"),
    "NUL": ("\0", "YAML"),
    "an unknown precision": ("int99: {static: {}}", "int9"),
    "an unknown mode": ("int4: {statik: {}}", "static"),
    "a mode that is a list": ("int4: {static: [1]}", "mapping"),
    "a mode that is nothing": ("int4: {static: }", "mapping"),
    "an op type that is nothing": ("int4: {static: {Linear: }}", "Linear"),
    "an op type that is text": ("int4: {static: {Linear: x}}", "Linear"),
    "an unknown tensor": (f"int4: {{static: {{Linear: {{wieght: {TENSOR}}}}}}}", "weight"),
    "an unknown field": ("int4: {static: {Linear: {weight: {dtype: int4, schem: sym}}}}", "'scheme'"),
    "an unknown data type": ("int4: {static: {Linear: {weight: {dtype: int44}}}}", "int4"),
    "a data type that is a number": ("int4: {static: {Linear: {weight: {dtype: 4}}}}", "str"),
    "a data type that is not a number": ("int4: {static: {Linear: {weight: {dtype: .nan}}}}", "nan"),
    "an unknown scheme": ("int4: {static: {Linear: {weight: {dtype: int4, scheme: symm}}}}", "'sym'"),
    "an unknown algorithm": ("int4: {static: {Linear: {weight: {dtype: int4, algorithm: minmx}}}}", "'minmax'"),
    "an unknown granularity": (
        "int4: {static: {Linear: {weight: {dtype: int4, granularity: channel}}}}",
        "per_channel",
    ),
    "99 bits": ("int4: {static: {Linear: {weight: {dtype: int, bits: 99}}}}", "int99"),
    "bits that are text": ("int4: {static: {Linear: {weight: {dtype: int, bits: x}}}}", "int"),
    "no group size": ("int4: {weight_only: {Linear: {weight: {dtype: int4, granularity: per_group}}}}", "group_size"),
    "a group size of 0": ("int4: {weight_only: {Linear: {weight: {dtype: int4, group_size: 0}}}}", "positive"),
    "a version that is a number": ("- {version: {name: 2.10}}", "quoted"),
    "a version that is text": ("- {version: {name: 'abc'}}", "version"),
    "a version that is nothing": ("- {version: }", "version"),
    "precisions": ("precisions: 5", "precisions"),
    "precisions of another name": ("precisions: {nam: []}", "names"),
    "patterns": ("patterns: {int8: [5]}", "patterns"),
    "recipes": ("recipes: 5", "recipes"),
    "backends": ("backends: 5", "backends"),
    "ops": ("fp32: 5", "fp32"),
    "an op type the framework has not": (
        f"int4: {{static: {{Lineer: {{weight: {TENSOR}}}}}}}",
        ["'Lineer'", "'Linear'"],
    ),
    "an op type that cannot be quantized": (f"int4: {{static: {{LayerNorm: {{weight: {TENSOR}}}}}}}", "'LayerNorm'"),
    "an op type the framework has not in float": ("fp32: ['Conv2dd']", "'Conv2d'"),
}


@pytest.mark.parametrize(("text", "said"), YAML.values(), ids=YAML)
def test_framework_yaml(text, said, tmp_path):
    file = tmp_path / "framework.yaml"
    file.write_text(text)
    assert len(str(must_raise(ConfigError, said, PyTorchQuery, file))) < 5000


@pytest.mark.parametrize("name", ["missing", "folder", "loop", "binary"])
def test_framework_yaml_that_is_no_text(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    loop(tmp_path)
    must_raise(ConfigError, "framework YAML", read_entries, tmp_path / name)


# As the guides print it, the marks of added lines in the first column.
PRINTED = """
  fp32: ['*'] # `*` means all op types.


+    int4: {
+        'static': {
+            'Conv2d': {
+                'weight': {
+                    'dtype': ['int4'],
+                    'scheme': ['sym'],
+                    'granularity': ['per_channel'],
+                    'algorithm': ['minmax']},
+                'activation': {
+                    'dtype': ['uint4'],
+                    'scheme': ['sym'],
+                    'granularity': ['per_tensor'],
+                    'algorithm': ['minmax']},
+            },
+        }
+    }

  int8: &1_11_capabilities {
    'static': &cap_s8_1_11 {
          'Conv1d': &cap_s8_1_11_Conv1d {
"""
# ... where the guides leave off.
REST = "            'weight': {'dtype': ['int8']}, 'activation': {'dtype': ['uint8']}}}}\n"


@pytest.mark.parametrize("mark", ["", " "], ids=["marks cut off", "marks blanked"])
def test_the_framework_yaml_of_the_guides_is_read_as_it_is_printed(mark, tmp_path):
    file = tmp_path / "framework.yaml"
    file.write_text("\n".join(mark + line[1:] for line in PRINTED.splitlines()) + "\n" + REST)
    (entry,) = read_entries(file)
    assert entry.op_types == {"fp32": ("*",)}
    assert list(entry.capabilities) == ["int4", "int8"]
    assert entry.capabilities["int4"]["static"]["Conv2d"]["weight"] == {
        "dtype": ["int4"], "scheme": ["sym"], "granularity": ["per_channel"], "algorithm": ["minmax"],
    }  # fmt: skip
    assert list(entry.capabilities["int8"]["static"]) == ["Conv1d"]
    conv = PyTorchQuery(file).get_quantization_capability()["int4"]["static"]["Conv2d"]
    assert conv["activation"]["dtype"] == ["uint4"]


def test_a_block_that_stands_deeper_than_the_key_above_is_beside_it(tmp_path):
    file = tmp_path / "framework.yaml"
    file.write_text(
        f"fp32: ['*']\n   int4:\n     static:\n       Linear:\n         weight: {TENSOR}\n"
        "int8:\n  static: {Linear: {weight: {dtype: int8}}}\n"
    )
    (entry,) = read_entries(file)
    assert list(entry.capabilities) == ["int4", "int8"]


# -- models -------------------------------------------------------------------------------------------------------------


class OneLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x)


class WithLock(OneLayer):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class NeverCopied(OneLayer):
    def __deepcopy__(self, memo):
        raise NotImplementedError("this model is one of a kind")


class OwnParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x))


class ByName(OneLayer):
    def forward(self, *, x):
        return self.fc(x)


def raising(error):
    def forward(self, x):
        raise error

    return type("Raising", (OneLayer,), {"forward": forward})()


def compiled(model):
    model.compile(backend="eager")
    return model


def spoiled(value):
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = value
    return model


NO_MODELS = {"None": None, "5": 5, "text": "x", "a dict": {}, "a class": nn.Linear, "a function": len, "a list": [1]}


def fit(folder, model=None, data=BATCHES, approach="static", **options):
    options = {"workspace": folder / "workspace", **options}
    conf = options.pop("conf", None) or PTQ(approach=approach)
    with racing(None):
        return quantization.fit(net() if model is None else model, conf, data, quiet=True, **options)


@pytest.mark.parametrize("model", NO_MODELS.values(), ids=NO_MODELS)
def test_what_is_no_model(model, tmp_path):
    if model is not None:
        must_raise(ConfigError, "", fit, tmp_path, model)
    tuning = TuningConfig(RTN(), workspace=tmp_path)
    must_raise(ConfigError, "model", q.prepare, model, RTN())
    must_raise(ConfigError, "model", q.convert, model, RTN())
    must_raise(ConfigError, "model", q.quantize, model, RTN())
    must_raise(ConfigError, "model", q.autotune, model, tuning, lambda _: 1.0)
    must_raise(ConfigError, "", q.finalize_calibration, model)
    must_raise(ConfigError, "model", prepare_compression, model, QAT())
    must_raise(FormatError, "", q.save, model, tmp_path / "saved")
    must_raise(ConfigError, "", quantization.load, tmp_path, model)
    must_raise(ConfigError, "", q.load, tmp_path, model)


@table(
    ("nothing in it", nn.Sequential, ConfigError, "no ops"),
    ("no parameters", nn.ReLU, ConfigError, "no ops"),
    ("no forward", lambda: nn.ModuleList([nn.Linear(8, 4)]), CalibrationError, "forward"),
    ("compiled by jit", torch.jit.ScriptModule, ConfigError, "torch.jit"),
    ("on the meta device", lambda: nn.Sequential(nn.Linear(8, 4, device="meta")), QuantizationError, ["'0.weight'", "meta"]),
    ("a lock inside", WithLock, QuantizationError, ["WithLock", "copied", "lock"]),
    ("never copied", NeverCopied, QuantizationError, ["NeverCopied", "one of a kind"]),
    ("never copied, ready", lambda: NeverCopied().eval(), QuantizationError, "one of a kind"),
    ("takes names", lambda: ByName().eval(), CalibrationError, ["batch 0", "keyword"]),
    ("raises a KeyError", lambda: raising(KeyError("inside")), CalibrationError, ["batch 0", "KeyError", "inside"]),
    ("raises an AssertionError", lambda: raising(AssertionError("inside")), CalibrationError, ["AssertionError", "inside"]),
    ("raises a ZeroDivisionError", lambda: raising(ZeroDivisionError("z")), CalibrationError, ["ZeroDivisionError"]),
    ("NaN in a weight", lambda: spoiled(NAN), QuantizationError, ["'0.weight'", "NaN"]),
    ("Inf in a weight", lambda: spoiled(INF), QuantizationError, ["'0.weight'", "Inf"]),
    ("half precision", lambda: net().half(), CalibrationError, ["batch 0", "Half"]),
    ("no outputs", lambda: nn.Sequential(nn.Linear(8, 0)), ConfigError, "(0, 8)"),
    ("lazy", lambda: nn.Sequential(nn.LazyLinear(4)), QuantizationError, ["'0.weight'", "no shape yet"]),
    ("prepared", lambda: q.prepare(net(), q.StaticQuantConfig()), ConfigError, "prepared already"),
    ("compiled by itself", lambda: compiled(net()), ConfigError, "compile it then"),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_models(call, error, said, tmp_path):
    must_raise(error, said, lambda: fit(tmp_path, call()))


@pytest.mark.parametrize("model", [OwnParts, lambda: net().train(), ByName], ids=["shared", "training", "by name"])
def test_models_that_are_unusual_and_right(model, tmp_path):
    given = model()
    data = [{"x": batch} for batch in BATCHES] if isinstance(given, ByName) else BATCHES
    fitted = fit(tmp_path, given, data)
    call = (lambda m: m(x=BATCHES[0])) if isinstance(given, ByName) else (lambda m: m(BATCHES[0]))
    with torch.no_grad():
        error = (call(fitted.model) - call(given.eval())).abs().max()
    assert 0 < error < 0.2
    assert not fitted.model.training


@table(
    ("prepare a copy", lambda: q.prepare(NeverCopied(), RTN(), inplace=False), QuantizationError, "one of a kind"),
    ("prepare twice", lambda: q.prepare(q.prepare(net(), RTN()), RTN()), ConfigError, "prepared already"),
    ("convert what is not prepared", lambda: q.convert(net()), ConfigError, "not prepared"),
    ("convert again", lambda: q.convert(q.convert(net(), RTN())), ConfigError, "quantized already"),
    ("convert twice", lambda: q.convert(q.convert(net(), RTN()), RTN()), ConfigError, "quantized already"),
    ("no layer", lambda: q.convert(nn.Sequential(nn.ReLU()), RTN()), ConfigError, "no layer that could be quantized"),
    ("no linear layer", lambda: q.convert(nn.Sequential(nn.Conv2d(1, 1, 1)), RTN()), ConfigError, "no linear layer"),
    ("lazy layers", lambda: q.convert(nn.Sequential(nn.LazyLinear(4)), RTN()), QuantizationError, "'0.weight'"),
    ("no values", lambda: q.convert(nn.Sequential(nn.Linear(8, 4, device="meta")), RTN()), ConfigError, "model_path"),
    ("no such folder", lambda: q.convert(nn.Sequential(nn.Linear(8, 4, device="meta")), RTN(model_path="/no")),
     FormatError, "/no"),
    *((f"{name} for a configuration", lambda config=config: q.convert(net(), config), ConfigError, "quant_config")
      for name, config in {"5": 5, "text": "x", "a dict": {}, "a class": RTN, "a list": [5],
                           "PostTrainingQuantConfig": PTQ(), "TuningConfig": TuningConfig(RTN())}.items()),
    *((f"{cls.__name__} without data", lambda cls=cls: q.convert(net(), cls()), CalibrationError, "need calibration")
      for cls in (q.StaticQuantConfig, q.FP8Config, q.GPTQConfig)),
    *((f"autotune with {name}", lambda config=config: q.autotune(net(), config, lambda m: 1.0), ConfigError, "TuningConfig")
      for name, config in {"None": None, "5": 5, "RTNConfig": RTN(), "a dict": {}}.items()),
    *((f"training with {name}", lambda conf=conf: prepare_compression(net(), conf), ConfigError, "QuantizationAwareTraining")
      for name, conf in {"None": None, "a dict": {}, "RTNConfig": RTN(), "a class": QAT}.items()),
)  # fmt: skip
def test_calls_of_the_torch_functions(call, error, said):
    must_raise(error, said, call)


# -- data and functions of a user ---------------------------------------------------------------------------------------


class Loader:
    def __init__(self, fails_at, error):
        self.fails_at, self.error = fails_at, error

    def __iter__(self):
        for index, batch in enumerate(BATCHES):
            if index == self.fails_at:
                raise self.error
            yield batch


class Broken:
    def __iter__(self):
        raise OSError("no disk")


@table(
    *((f"raises {kind.__name__} at {at}", Loader(at, kind("no")), CalibrationError, ["Loader", kind.__name__, f"batch {at}"])
      for at in (0, 1) for kind in (ValueError, KeyError, OSError, AssertionError)),
    ("raises before", Broken(), CalibrationError, ["Broken", "no disk", "before its first batch"]),
    ("nothing", [], CalibrationError, "empty"),
    ("5", 5, CalibrationError, "not iterable"),
    ("an object", object(), CalibrationError, "not iterable"),
    ("a class", list, CalibrationError, "not iterable"),
    ("a generator", iter(BATCHES), ConfigError, "only once"),
    ("text", "abc", CalibrationError, ["batch 0", "str"]),
    ("strings", ["a", "b"], CalibrationError, ["batch 0", "str"]),
    ("None", [None], CalibrationError, ["batch 0", "None"]),
    ("two of None", [(None, None)], CalibrationError, ["batch 0", "NoneType"]),
    ("numbers", [1, 2], CalibrationError, ["batch 0", "int"]),
    ("lists", [[1.0] * 8], CalibrationError, ["batch 0", "list"]),
    ("sets", [{1}], CalibrationError, ["batch 0", "set"]),
    ("arrays of numpy", [np.zeros((4, 8), np.float32)], CalibrationError, ["batch 0", "ndarray"]),
    ("empty tuples", [()], CalibrationError, "batch 0"),
    ("empty dicts", [{}], CalibrationError, "batch 0"),
    ("dicts of other names", [{"nope": BATCHES[0]}], CalibrationError, ["batch 0", "nope"]),
    ("ragged batches", [BATCHES[0], torch.zeros(4, 9)], CalibrationError, ["batch 1", "(4, 9)"]),
    ("another width", [torch.zeros(4, 9)], CalibrationError, ["batch 0", "(4, 9)"]),
    ("double", [BATCHES[0].double()], CalibrationError, ["batch 0", "float64"]),
    ("integers", [BATCHES[0].long()], CalibrationError, ["batch 0", "int64"]),
    ("a scalar", [torch.tensor(1.0)], CalibrationError, "batch 0"),
    ("no samples", [torch.zeros(0, 8)], CalibrationError, "none with samples"),
    ("NaN", [BATCHES[0] * NAN], CalibrationError, ["input 'input'", "NaN"]),
    ("Inf", [BATCHES[0] * INF], CalibrationError, ["'0'", "NaN or Inf"]),
)  # fmt: skip
def test_calibration_data(call, error, said, tmp_path):
    must_raise(error, said, lambda: fit(tmp_path, data=call))


def fails_after_one(model):
    model(BATCHES[0])
    model(BATCHES[1])
    raise KeyError("no third")


@table(
    ("raises", fails_after_one, CalibrationError, ["fails_after_one", "KeyError", "batch 1", "no third"]),
    ("takes nothing", lambda: None, CalibrationError, ["TypeError", "positional"]),
    ("runs nothing", lambda model: None, CalibrationError, "ops to quantize"),
    ("feeds another width", lambda model: model(torch.zeros(4, 9)), CalibrationError, ["RuntimeError", "batch 0"]),
    ("is a number", 5, ConfigError, "calib_func"),
)
def test_calibration_functions(call, error, said, tmp_path):
    raised = must_raise(error, said, lambda: fit(tmp_path, data=None, calib_func=call))
    assert (raised.__cause__ is not None) == ("raised" in str(raised)), "what the function raised is chained"


@pytest.mark.parametrize("config", [q.GPTQConfig(), q.AWQConfig()], ids=["gptq", "awq"])
@table(
    ("raises", fails_after_one, CalibrationError, ["run_fn", "fails_after_one", "KeyError", "batch 1"]),
    ("takes nothing", lambda: None, CalibrationError, ["run_fn", "TypeError"]),
    ("runs nothing", lambda model: None, CalibrationError, "need calibration"),
    ("feeds no samples", lambda model: model(torch.zeros(0, 8)), CalibrationError, "need calibration"),
    ("feeds text", lambda model: model("x"), CalibrationError, ["run_fn", "TypeError"]),
    ("feeds nothing", lambda model: model(), CalibrationError, ["run_fn", "TypeError"]),
    ("is a number", 5, ConfigError, "run_fn"),
    ("is not given", None, CalibrationError, "need calibration"),
)
def test_functions_that_feed_weight_only_algorithms(call, error, said, config):
    raised = must_raise(error, said, lambda: q.quantize(net(), config, run_fn=call))
    assert "run_fn" not in said or error is ConfigError or raised.__cause__ is not None


@table(
    *((f"returns {name}", lambda model, value=value: value, EvaluationError, "returned")
      for name, value in {"None": None, "text": "x", "NaN": NAN, "Inf": INF, "a list": [1, 2], "True": True,
                          "a complex number": 1 + 2j, "a tensor": torch.ones(2)}.items()),
    ("raises", lambda model: {}["key"], EvaluationError, ["KeyError", "key"]),
    ("takes nothing", lambda: 1.0, EvaluationError, "TypeError"),
    ("is a number", 5, ConfigError, "eval_func"),
)  # fmt: skip
def test_evaluations(call, error, said, tmp_path):
    must_raise(error, said, lambda: fit(tmp_path, eval_func=call))


@table(
    *((f"{conf!r:.20}", {"conf": conf}, ConfigError, "PostTrainingQuantConfig")
      for conf in ("x", {1: 2}, PTQ, RTN())),
    ("a title of 5", {"title": 5}, ConfigError, "title"),
    ("resume of text", {"resume": "yes"}, ConfigError, "resume"),
    ("a metric alone", {"eval_metric": "topk"}, ConfigError, "eval_dataloader"),
    ("a strategy that is none", {"conf": PTQ(tuning_criterion=TuningCriterion(strategy="basicc")),
                                 "eval_func": lambda m: 1.0}, ConfigError, "'basic'"),
    ("examples that are text", {"conf": PTQ(example_inputs="x")}, CalibrationError, "str"),
    ("examples of another width", {"conf": PTQ(example_inputs=torch.zeros(3, 3))}, CalibrationError, "(3, 3)"),
    ("a recipe that is none of this adaptor", {"conf": PTQ(recipes={"dedicated_qdq_pair": True})}, ConfigError,
     "dedicated_qdq_pair"),
)  # fmt: skip
def test_arguments_of_fit(call, error, said, tmp_path):
    must_raise(error, said, lambda: fit(tmp_path, **call))


QUIET_DATA = {
    "zeros": (np.zeros((4, 8), np.float32), "is 0 in every sample"),
    "one value": (np.full((4, 8), 3, np.float32), "the one value 3"),
    "denormal": (np.full((4, 8), 1e-42, np.float32), "denormal"),
}


@pytest.mark.parametrize("name", QUIET_DATA)
def test_calibration_data_that_tells_nothing_is_warned_of(name, tmp_path, caplog):
    array, said = QUIET_DATA[name]
    batch = torch.from_numpy(array)
    runs = {
        "a dataloader": lambda: fit(tmp_path, data=[batch, batch]),
        "a function": lambda: fit(tmp_path, data=None, calib_func=lambda model: model(batch)),
        "weight-only": lambda: q.quantize(net(), q.GPTQConfig(), run_fn=lambda model: model(batch)),
        "a data reader": lambda: list(Samples(Reader([{"input": array}, {"input": array}]))),
    }
    for run in runs.values():
        caplog.clear()
        run()
        (told,) = [record.getMessage() for record in caplog.records if "calibration data" in record.getMessage()]
        assert said in told
        assert "'input'" in told


def test_calibration_data_that_varies_is_not_warned_of(tmp_path, caplog):
    constant = [torch.full((4, 8), float(value)) for value in (1, 2)]
    fit(tmp_path, data=constant)
    list(Samples(Reader([{"input": batch.numpy(), "mask": np.ones(4, np.int64)} for batch in constant])))
    assert not [record for record in caplog.records if "calibration data" in record.getMessage()]


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self.samples = iter(samples)

    def get_next(self):
        found = next(self.samples, None)
        if isinstance(found, Exception):
            raise found
        return found


def test_a_data_reader_that_raises_is_named_with_the_batch():
    samples = Samples(Reader([{"x": np.ones(2)}, KeyError("k")]))
    must_raise(CalibrationError, ["Reader", "KeyError", "sample 1"], list, samples)


def test_a_calibration_function_of_an_onnx_model_that_raises_is_named_with_the_batch():
    inputs = ModelInputs({"x": np.dtype(np.float32)})
    reader = RecordedReader(fails_after_one, None, inputs, lambda model, feed: None)
    must_raise(CalibrationError, ["calib_func", "fails_after_one", "KeyError", "batch 1"], list, Samples(reader))


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_a_loader_of_an_onnx_model_that_raises_is_named_with_the_batch(error):
    reader = LoaderReader(Loader(1, error("no")), ModelInputs({"x": np.dtype(np.float32)}), 100)
    must_raise(CalibrationError, ["Loader", error.__name__, "batch 1"], list, Samples(reader))


# -- saved models -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A folder of each kind of saved model."""
    folder = tmp_path_factory.mktemp("saved")
    fit(folder).save(folder / "static")
    q.save(q.convert(net(), RTN(use_sym=False, group_size=4)), folder / "weight_only")
    return folder


@pytest.fixture
def saved(originals, tmp_path):
    shutil.copytree(originals, tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(folder, change, seal=True):
    """Change what ``qconfig.json`` says, with the checksum made again where ``seal`` says so."""
    file = folder / "qconfig.json"
    config = json.loads(file.read_text())
    change(config)
    if seal and "checksum" in config:
        said = {name: value for name, value in config.items() if name != "checksum"}
        config["checksum"] = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(config))


def retensor(folder, change):
    """Change the tensors, with both checksums made again."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    rewrite(folder, lambda config: config.update(sha256=digest))


@pytest.mark.parametrize("kind", ["static", "weight_only"])
def test_what_was_saved_loads_with_the_same_outputs(kind, saved):
    first, second = (q.load(saved / kind, net())(BATCHES[0]) for _ in range(2))
    assert torch.equal(first, second)


def test_a_model_of_an_earlier_release_loads_with_a_note(saved, caplog):
    before = q.load(saved / "static", net())(BATCHES[0])
    rewrite(saved / "static", lambda config: (config.pop("checksum"), config.update(version=1)))
    with caplog.at_level(logging.INFO, logger="neural_compressor"):
        assert torch.equal(q.load(saved / "static", net())(BATCHES[0]), before)
    assert "no checksum" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["structure"]["relus"].clear(),
        lambda config: config["plan"]["op"][0].__setitem__(1, "Conv2d"),
        lambda config: config["plan"].update(calib_sampling_size=7),
        lambda config: config["relays"]["modules"].clear(),
        lambda config: config.update(extra=1),
        lambda config: config.pop("checksum"),
        lambda config: config.update(checksum=5),
    ],
    ids=["relus", "type", "plan", "relays", "another field", "no checksum", "a checksum that is a number"],
)
def test_settings_that_were_changed_do_not_load(change, saved):
    rewrite(saved / "static", change, seal=False)
    must_raise(FormatError, ["qconfig.json", "changed"], q.load, saved / "static", net())


STORED = ("format", "version", "plan", "structure", "reasons", "relays", "aliases", "sha256")
WRONG = {"None": None, "5": 5, "text": "x", "a list": [1], "nested": [[1, 2]], "a dict": {"a": 1}, "True": True}


@pytest.mark.parametrize("field", STORED)
def test_damaged_settings_do_not_load_though_the_checksum_is_right(field, originals, tmp_path):
    folder = tmp_path / "model"
    for wrong in (..., *WRONG.values()):
        shutil.copytree(originals / "static", folder, dirs_exist_ok=True)
        rewrite(
            folder, lambda config, wrong=wrong: config.pop(field) if wrong is ... else config.update({field: wrong})
        )
        must_raise(FormatError, "", q.load, folder, net())


OP = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "static"}}


def weight_in(config):
    return config["plan"]["op"][0][2]["weight"]


@table(
    ("no op", lambda config: config["plan"].pop("op"), FormatError, "plan"),
    ("an op of two parts", lambda config: config["plan"].update(op=[["0", "Linear"]]), FormatError, "plan"),
    ("an op that is text", lambda config: config["plan"].update(op=[["0", "Linear", "x"]]), FormatError, "plan"),
    ("an unknown data type", lambda config: weight_in(config).update(dtype="int99"), FormatError, "int99"),
    ("another data type", lambda config: weight_in(config).update(dtype="int4"), FormatError, "'0'"),
    ("another granularity", lambda config: weight_in(config).update(granularity="per_tensor"), FormatError, "'0'"),
    ("an unknown mode", lambda config: config["plan"]["op"][0][2]["activation"].update(quant_mode="x"), FormatError, "plan"),
    ("another op type", lambda config: config["plan"]["op"][0].__setitem__(1, "Conv2d"), FormatError, ["Conv2d", "Linear"]),
    ("an op that is not there", lambda config: config["plan"].update(op=[["9", "Linear", OP]]), FormatError, "9"),
    ("a ReLU that is not there", lambda config: config["structure"]["relus"].update({"0": "9"}), FormatError, "9"),
    ("a fold that is not there", lambda config: config["structure"]["folded"].update({"9": "0"}), FormatError, "9"),
    ("a relay that is not there", lambda config: config["relays"].update(modules=["9"]), FormatError, "9"),
    ("an unknown part of the structure", lambda config: config["structure"].update(x={}), FormatError, "structure"),
    ("an alias of nothing", lambda config: config["aliases"].update({"a": "b"}), FormatError, "b"),
    ("a later version", lambda config: config.update(version=99), FormatError, "99"),
    ("a version that is True", lambda config: config.update(version=True), FormatError, "True"),
    ("another format", lambda config: config.update(format="x"), FormatError, "not the configuration"),
    ("an unknown field", lambda config: config.update(extra=1), FormatError, "extra"),
    ("a reason of two parts", lambda config: config.update(reasons=[["a", "b"]]), FormatError, "reasons"),
)  # fmt: skip
def test_details_of_damaged_settings(call, error, said, saved):
    rewrite(saved / "static", call)
    must_raise(error, said, q.load, saved / "static", net())


def fill(name, value):
    return lambda tensors: tensors[name].fill_(value)


def cast(name, kind):
    return lambda tensors: tensors.update({name: tensors[name].to(kind)})


@table(
    *((f"{name} of {value}", ("static", fill(name, value)), FormatError, name.partition(".")[2])
      for name in ("0.weight_scale", "0.input_scale") for value in (0, -1, NAN, INF)),
    *((f"a bias of {value}", ("static", fill("0.bias", value)), FormatError, ["bias", "NaN"]) for value in (NAN, INF)),
    *((f"a zero point of {value}", ("static", fill("0.input_zero_point", value)), FormatError, ["input_zero_point", "255"])
      for value in (-1, 256, 10**6)),
    *((f"weight-only scales of {value}", ("weight_only", fill("0.weight_scale", value)), FormatError, "weight_scale")
      for value in (0, -1, NAN, INF)),
    ("weight-only zero points", ("weight_only", fill("0.weight_zero_point", 100)), FormatError, "weight_zero_point"),
    ("scales that are integers", ("weight_only", cast("0.weight_scale", torch.int32)), FormatError, "weight_scale"),
    ("weights that are floats", ("static", cast("0.weight_packed", torch.float32)), FormatError, "'0'"),
    ("a weight less", ("static", lambda tensors: tensors.pop("0.weight_packed")), FormatError, "weight_packed"),
    ("a tensor more", ("static", lambda tensors: tensors.update(more=torch.zeros(1))), FormatError, "more"),
    ("another shape", ("static", lambda tensors: tensors.update({"0.weight_packed": torch.zeros(2, 2, dtype=torch.uint8)})),
     FormatError, "'0'"),
    ("another bias", ("static", lambda tensors: tensors.update({"0.bias": torch.zeros(3)})), FormatError, "bias"),
)  # fmt: skip
def test_tensors_that_no_quantization_gives(call, error, said, saved):
    kind, change = call
    retensor(saved / kind, change)
    must_raise(error, said, q.load, saved / kind, net())


@pytest.mark.parametrize("value", [NAN, INF])
def test_float_parameters_that_no_model_had(value, tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    q.save(q.convert(model, RTN(), inplace=False), tmp_path / "model")
    retensor(tmp_path / "model", fill("1.weight", value))
    must_raise(FormatError, ["1.weight", "NaN"], q.load, tmp_path / "model", model)
    retensor(tmp_path / "model", cast("1.weight", torch.int64))
    must_raise(FormatError, ["1.weight", "int64"], q.load, tmp_path / "model", model)


def cut(name, keep):
    def change(folder):
        file = folder / name
        file.write_bytes(file.read_bytes()[: int(keep * file.stat().st_size)])

    return change


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def as_folder(name):
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def as_loop(name):
    return lambda folder: ((folder / name).unlink(), os.symlink(folder / name, folder / name))


FILES = ("model.safetensors", "qconfig.json")


@table(
    *((f"{file} {what}", change(file), FormatError, file)
      for file in FILES
      for what, change in {
          "missing": lambda file: lambda folder: (folder / file).unlink(),
          "empty": lambda file: write(file, b""),
          "cut to a half": lambda file: cut(file, 0.5),
          "a byte short": lambda file: cut(file, 0.999),
          "other bytes": lambda file: write(file, b"\xff\xfe\x00\x01"),
          "deep": lambda file: write(file, b"[" * 60000),
          "a folder": as_folder,
          "a loop of links": as_loop,
      }.items()),
    ("the folder missing", shutil.rmtree, FormatError, "static"),
    ("the folder a file", lambda folder: (shutil.rmtree(folder), folder.write_text("x")), FormatError, "static"),
    ("null", write("qconfig.json", b"null"), FormatError, "qconfig.json"),
    ("a list", write("qconfig.json", b"[]"), FormatError, "qconfig.json"),
)  # fmt: skip
def test_files_of_saved_models(call, error, said, saved):
    call(saved / "static")
    must_raise(error, said, q.load, saved / "static", net())


@pytest.mark.parametrize("sizes", [0, 1, 2**40, 2**63], ids=str)
def test_a_header_of_tensors_that_lies(sizes, saved):
    folder = saved / "static"
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(sizes.to_bytes(8, "little") + content[8:])
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    rewrite(folder, lambda config: config.update(sha256=digest))
    must_raise(FormatError, "model.safetensors", q.load, folder, net())


@table(
    *((f"the model {name}", {"original_model": model}, (ConfigError, FormatError), "")
      for name, model in {"None": None, "5": 5, "a class": nn.Linear, "empty": nn.Sequential(), "another": nn.Linear(8, 4),
                          "wider": nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 4)),
                          "of other layers": nn.Sequential(nn.Conv1d(8, 8, 1), nn.ReLU(), nn.Linear(8, 4))}.items()),
    *((f"the device {device!r}", {"device": device}, ConfigError, "device") for device in ("moon", "cuda:99", [5])),
    *((f"the format {kind!r}", {"format": kind}, ConfigError, ["format", "default"]) for kind in (None, 5, "defualt", [])),
    ("an unknown option", {"nonsense": 1}, ConfigError, "nonsense"),
    ("GGUF, which is written only", {"format": "gguf"}, ConfigError, "GGUF"),
)  # fmt: skip
def test_arguments_of_load(call, error, said, saved):
    must_raise(error, said, lambda: q.load(saved / "static", **{"original_model": net(), **call}))


@table(
    *((f"the format {kind!r}", {"format": kind}, ConfigError, ["format", "default"]) for kind in (None, 5, "ggguf", [])),
    *((f"an option of {kind}", {"format": kind, "nonsense": 1}, ConfigError, "nonsense")
      for kind in ("default", "huggingface", "gguf")),
    ("a model without a transformers config", {"format": "huggingface"}, ConfigError, "transformers"),
)  # fmt: skip
def test_arguments_of_save(call, error, said, tmp_path):
    must_raise(error, said, lambda: q.save(q.convert(net(), RTN()), tmp_path / "new", **call))
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_something_else_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    must_raise(WorkspaceError, str(tmp_path), q.save, q.convert(net(), RTN()), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
