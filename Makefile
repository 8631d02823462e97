# make run: from nothing to a trained, quantized and checked model.   make test: from nothing to a green test suite.
# make ensemble: from nothing to four models that answer every bar.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
WORKERS ?= logical

.PHONY: setup run ensemble test test-fast check lint types tests docs gpu-check bench

setup: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -e '.[train]'
	touch $@

$(VENV)/.installed-rl: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -e '.[rl]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -e '.[test]'
	touch $@ $(VENV)/.installed

run: setup
	$(BIN)/python -m tftq.run recipes/qat_int8.yaml $(ARGS)

# The members of recipes/ensemble.yaml, and all of them over the shipped bars; over others: make ensemble ARGS='data.path=ES_1m.parquet'
MEMBERS := $(patsubst %,exports/%/int8_ptq.onnx,qat_int8 mamba2 dqn ppo)

ensemble: $(MEMBERS)
	$(BIN)/python -m tftq.cli ensemble recipes/ensemble.yaml $(ARGS)

$(MEMBERS): exports/%/int8_ptq.onnx: recipes/%.yaml | $(VENV)/.installed-rl
	$(BIN)/python -m tftq.run $<

lint: $(VENV)/.installed-test
	$(BIN)/ruff check tftq tests $(wildcard benchmarks test_data)
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed-test
	$(BIN)/mypy

# A process for each core, and a thread in each: the networks of the tests are too small to share one among threads.
# Groups run in the order of their files, which begins with long ones: by number of tests, as xdist orders them, the longest come last.
tests: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(ARGS)

# Leaves out whole runs, exports of models and other slow tests.
test-fast: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -m "not slow" $(ARGS)

test: lint types tests

check: test  # the tests hold the pages too: make docs runs those alone

docs: $(VENV)/.installed-test
	$(BIN)/pytest -n0 tests/test_docs.py

# In .venv where there is one; else with the python that has a CUDA build of torch.
gpu-check:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) benchmarks/gpu/check.py $(ARGS)

bench: setup
	$(BIN)/python -m pip install -e '.[bench]'
	for script in $(filter-out benchmarks/common.py benchmarks/members.py benchmarks/process.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done
