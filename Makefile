# On a machine with Python 3.11 or later and make, `make demo` and `make test` set everything up by themselves.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# the version of torch to lock; its CUDA libraries are left out of the lock, see `lock`
TORCH := 2.13.0
WORKERS ?= 2

# Tensors of some megabytes come from the heap and stay there, instead of being mapped afresh each time:
# the page faults would cost up to a third of a step on CPU (glibc reads these; elsewhere they do nothing).
export MALLOC_MMAP_THRESHOLD_ := 33554432
export MALLOC_TRIM_THRESHOLD_ := 1073741824
# Threads that wait sleep instead of spinning, which on a busy machine would slow the others down severalfold.
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help setup demo test contract faults lint format lock docs reproduce clean

help:  ## what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY)  ## the environment in .venv, as locked (done by the others when needed)

$(READY): requirements.lock pyproject.toml setup.py
	@test -n "$(PYTHON)" || { echo "expected Python 3.11 or later, found none; name one: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## AND-mask against plain training on the spirals: a table, and a picture in out/
	$(BIN)/python examples/spirals.py

test: setup  ## the tests and the examples in the documentation
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

contract: setup  ## every strategy with every objective in every setting (SHARD=3/8 for a part)
	OMP_NUM_THREADS=1 WEFT_SHARD=$(SHARD) $(BIN)/python -m pytest tests/contract/cross.py -n $(WORKERS) --dist worksteal

faults: setup  ## a hundred kills (stopped replicas, solved objectives and studies too), a thousand damaged files
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults/thorough.py -n $(WORKERS) --dist worksteal

reproduce: setup  ## every claim in its full setting, with the gallery: out/claims (NAMES="spirals ring" for some of them)
	$(BIN)/weft reproduce $(if $(NAMES),$(NAMES),--all) --full --out out
	$(BIN)/weft report out/claims

docs: setup  ## the documentation, in out/docs
	$(BIN)/python -m sphinx -W --keep-going -q -d out/doctrees docs out/docs

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch's own metadata pins the CUDA libraries it was built with. `===` takes PyPI's build and no other of that version:
# torchvision's wheel is built against that one.
lock: setup  ## requirements.lock anew
	echo "torch==$(TORCH)" > $(VENV)/constraints.txt
	$(BIN)/uv pip compile pyproject.toml --extra dev --constraint $(VENV)/constraints.txt --upgrade --quiet \
		--python-version 3.11 --no-emit-index-url --no-emit-find-links --no-header --output-file $(VENV)/lock.txt
	{ echo "# Pinned for Python 3.11 on Linux by \`make lock\`; torch brings the CUDA libraries it needs."; \
		awk '/^[a-z]/ { skip = /^(nvidia|cuda|triton)/ } !skip' $(VENV)/lock.txt | sed 's/^torch==/torch===/'; } > requirements.lock

# What moves and names must not compute anything else: the same trainings by the code of BASE and by this one.
BASE ?= HEAD

.PHONY: guard
guard: setup  ## trained parameters bit for bit as at another revision: make guard BASE=REVISION
	rm -rf out/guard && mkdir -p out/guard && git archive $(BASE) src | tar -x -C out/guard
	OMP_NUM_THREADS=1 PYTHONPATH=out/guard/src $(BIN)/python -W ignore tests/guard/dump.py out/guard/before.safetensors
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/guard/dump.py out/guard/after.safetensors
	$(BIN)/python tests/guard/compare.py out/guard/before.safetensors out/guard/after.safetensors

PEERS := .venv-peers

.PHONY: bench
bench: setup $(PEERS)/.ready  ## beside the peers (in .venv-peers): tables, and benchmarks/results/cpu.json and memory.json
	$(BIN)/python benchmarks/run.py --peers $(PEERS)/bin/python
	$(BIN)/python benchmarks/memory.py

.PHONY: parity
parity: $(PEERS)/.ready  ## what the peers answer, kept for the tests: tests/fixtures/parity
	for script in benchmarks/parity/*.py; do $(PEERS)/bin/python -W ignore $$script || exit 1; done

$(PEERS)/.ready: benchmarks/requirements-peers.txt
	$(PYTHON) -m venv $(PEERS)
	@echo '*' > $(PEERS)/.gitignore
	$(PEERS)/bin/python -m pip install --quiet --requirement $<
	@touch $@

clean:  ## remove what was made
	rm -rf $(VENV) build dist out .pytest_cache .ruff_cache .mypy_cache src/*.egg-info
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
