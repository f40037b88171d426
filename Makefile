# Each target works alone on a fresh clone: what it needs is installed into .venv first, with the newest Python on this
# machine that the pinned wheels support, or with PYTHON.

PYTHON ?=
VENV ?= .venv
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
RELEASED := $(wildcard protos/released/*.binpb)
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
SOURCES := pyproject.toml setup.py src/parley/stubs.py constraints.txt $(shell find protos -name '*.proto')

# One thread for each process: a federation on one machine has as many processes as parties.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install venv demo test again coverage check e2e torture bench peers bump release clean

help:  ## List the targets
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

install: $(STAMP)  ## Make .venv with Parley and its development tools

venv: install

$(BIN)/python:
	@python=$$(PYTHON="$(PYTHON)" TORCH_INDEX_URL="$(TORCH_INDEX_URL)" deploy/choose-python) \
	  && echo "Making $(VENV) with $$("$$python" --version) ..." \
	  && "$$python" -m venv $(VENV)

# torch comes first and as a CPU wheel, so that nothing pulls gigabytes of CUDA: from pip's own configuration if that
# has one, else from PyTorch's index. macOS has CPU wheels only, under the plain version.
$(STAMP): $(SOURCES) | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	@if [ "$$(uname -s)" = Darwin ]; then $(PIP) -c constraints.txt "torch==$(TORCH)"; else \
	  $(PIP) -c constraints.txt "torch==$(TORCH)+cpu" 2>/dev/null \
	  || $(PIP) -c constraints.txt --extra-index-url "$(TORCH_INDEX_URL)" "torch==$(TORCH)+cpu" \
	  || { echo "error: no CPU wheel of torch $(TORCH): set TORCH_INDEX_URL to an index that has it" >&2; exit 1; }; fi
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## Train a federation of three organisations on this machine, under two minutes
	$(BIN)/parley demo

# Files of tests are shared out over so many processes; each has its own federations, so more want more memory. They go
# in the order of their names, in which many short ones come last: nobody waits for a long one at the end.
WORKERS ?= 2
test: $(STAMP)  ## Run the tests (without slow ones and those that need Docker)
	@mkdir -p out
	$(BIN)/python -m pytest -q -rfE -n $(WORKERS) --dist loadfile --no-loadscope-reorder; status=$$?; echo $$status > out/test-status; exit $$status

again: $(STAMP)  ## Run what failed last time, one test after the other
	$(BIN)/python -m pytest -q -rfE --last-failed --last-failed-no-failures none

# All of them, or those that TESTS names.
coverage: $(STAMP)  ## Run the tests and show which lines and branches they reach; out/coverage has every line
	$(BIN)/python -m pytest -q --cov --cov-report=term --cov-report=html $(TESTS)

check: $(STAMP)  ## Lint, formatting, types, layers, and protos, also against the last release
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf breaking protos --against $(RELEASED)

# Where no engine runs and no image can be pulled, programs that provide them may stand beside the project.
e2e: export PREPARE_ENGINE ?= $(wildcard ../shared/docker/prepare-engine.sh)
e2e: export GET_HELM ?= $(wildcard ../shared/docker/get-helm.py)
e2e: $(STAMP)  ## Run the tests that need a Docker engine or a browser
	PYTHON=$(BIN)/python tests/e2e/run

torture: $(STAMP)  ## Run faults, fuzzing and reproductions at full length
	$(BIN)/python -m tests.faults
	PARLEY_FUZZ_EXAMPLES=2000 $(BIN)/python -m pytest -q tests/property --timeout 7200
	$(BIN)/python -m pytest -q -m slow --timeout 7200

bench: $(STAMP)  ## Run every benchmark; rows and pictures land in out/bench
	$(BIN)/parley bench all --out out/bench

# Each in a virtualenv of its own: their pins are not ours, and FATE's end with Python 3.11.
# `parley bench peers` looks in out/peers, or in PARLEY_PEERS.
PARLEY_PEERS ?= out/peers
PEERS_PYTHON ?= python3.11
peers:  ## Install Flower, NVIDIA FLARE and FATE beside Parley, for `parley bench peers`
	$(PEERS_PYTHON) -m venv $(PARLEY_PEERS)/flower
	$(PARLEY_PEERS)/flower/bin/python -m pip install --disable-pip-version-check --quiet flwr==1.41.0 numpy
	$(PEERS_PYTHON) -m venv $(PARLEY_PEERS)/nvflare
	$(PARLEY_PEERS)/nvflare/bin/python -m pip install --disable-pip-version-check --quiet nvflare==2.9.0
	$(PEERS_PYTHON) -m venv $(PARLEY_PEERS)/fate
	$(PARLEY_PEERS)/fate/bin/python -m pip install --disable-pip-version-check --quiet -r benchmarks/peers/fate.txt
	$(PARLEY_PEERS)/fate/bin/python -m pip install --disable-pip-version-check --quiet --no-deps pyfate==2.2.0

bump: $(STAMP)  ## Write VERSION=x.y.z everywhere, in the first change after a release
	$(BIN)/python deploy/release.py bump $(VERSION)

release: check test  ## Date the changelog, keep an image of the protos, commit and tag
	$(BIN)/python deploy/release.py release

clean:  ## Remove .venv, generated stubs, caches and results
	rm -rf $(VENV) src/parley/contracts src/*.egg-info build dist out
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
