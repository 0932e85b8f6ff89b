PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# TensorFlow is large and wants other versions of some packages: it has an environment of its own.
TF_VENV := .venv-tensorflow
TF_STAMP := $(TF_VENV)/.installed

.PHONY: quickstart quickstart-keras test test-tensorflow test-slow test-avx2 test-mxnet lint bench clean

quickstart: $(STAMP)  ## train a small CNN on real data, tune it to int8, save the model and a report
	$(BIN)/python examples/quickstart.py

quickstart-keras: $(TF_STAMP)  ## the same with Keras: an integer file for LiteRT
	TF_CPP_MIN_LOG_LEVEL=3 $(TF_VENV)/bin/python examples/quickstart_keras.py

test: $(STAMP) lint  ## everything that must hold
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-tensorflow: $(TF_STAMP)  ## Keras and TensorFlow, in an environment of their own
	TF_CPP_MIN_LOG_LEVEL=3 $(TF_VENV)/bin/python -m pytest -q tests/tensorflow src/neural_compressor/tensorflow

test-slow: $(STAMP) test-avx2  ## long checks, the browser and another CPU
	$(BIN)/python -m pytest -q -m slow

# What depends on the instructions of the CPU, on an emulated one with AVX2 and without VNNI, bfloat16 and AVX-512.
CPU_TESTS := tests/torch/modules/kernels/test_integer.py tests/torch/modules/test_quant_linear.py tests/torch/modules/test_quant_conv.py \
	tests/torch/modules/test_quant_recurrent.py tests/torch/modules/test_not_finite.py tests/torch/test_adaptor.py tests/torch/modules/relay \
	tests/torch/modules/kernels/test_onednn.py tests/torch/structure/test_int8_race.py \
	tests/onnx/runtime/test_saturation.py tests/onnx/passes/test_optimisation_levels.py tests/onnx/methods/static \
	tests/onnx/methods/test_dynamic.py tests/onnx/methods/test_dynamic_race.py \
	tests/torch/methods/test_qat.py tests/torch/passes/test_correct.py tests/torch/files/test_engine_checkpoints.py \
	tests/torch/methods/test_learned_rounding.py tests/torch/passes/test_range_search.py
# NumPy's AVX2 sorting crashes in the emulator. Times taken there are of no use to anybody, so they are kept apart.
EMULATED := OMP_NUM_THREADS=1 NPY_DISABLE_CPU_FEATURES=X86_V3 XDG_CACHE_HOME=$(CURDIR)/out/emulated \
	qemu-x86_64 -cpu Haswell $(BIN)/python

test-avx2: $(STAMP)  ## what depends on the CPU, on one without VNNI; takes long, as every instruction is emulated
	@command -v qemu-x86_64 >/dev/null || { echo "test-avx2 needs qemu-x86_64: apt-get install qemu-user" >&2; exit 1; }
	$(EMULATED) -m pytest -q -p no:xdist -p no:cacheprovider $(CPU_TESTS)
	$(EMULATED) examples/quickstart.py --epochs 1 --images 120 --out out/emulated/quickstart

# MXNet is retired and needs a NumPy of its time, so its plug-in has an environment of its own; it is not part of 'test'.
MXNET := plugins/mxnet
MXNET_PYTHON ?= python3.11
MXNET_STAMP := $(MXNET)/.venv/.installed

test-mxnet: $(MXNET_STAMP)  ## the plug-in for MXNet, in its own environment
	cd $(MXNET) && OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q

$(MXNET_STAMP): pyproject.toml $(MXNET)/pyproject.toml $(MXNET)/constraints.txt
	test -x $(MXNET)/.venv/bin/python || $(MXNET_PYTHON) -m venv $(MXNET)/.venv
	$(MXNET)/.venv/bin/python -m pip install --quiet --disable-pip-version-check -c $(MXNET)/constraints.txt \
		-e . -e "$(MXNET)[test]"
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/trunk.py

# Redone only when what is to be installed has changed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[transformers,gguf,onnx,dev]"
	touch $@

$(TF_STAMP): pyproject.toml constraints-tensorflow.txt
	test -x $(TF_VENV)/bin/python || $(PYTHON) -m venv $(TF_VENV)
	$(TF_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-tensorflow.txt \
		-e ".[tensorflow,tensorboard]" pytest hypothesis scikit-learn
	touch $@

clean:
	rm -rf $(VENV) $(TF_VENV) $(MXNET)/.venv build dist *.egg-info
