PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test test-slow lint bench clean

quickstart: $(STAMP)  ## train a small CNN on real data, tune it to int8, save the model and a report
	$(BIN)/python examples/quickstart.py

test: $(STAMP) lint  ## everything that must hold
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-slow: $(STAMP)  ## long checks and the browser
	$(BIN)/python -m pytest -q -m slow

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

clean:
	rm -rf $(VENV) build dist *.egg-info
