# `make demo` and `make test` need only Python 3.11 or newer with pip: they make what else they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint format clean help

help:
	@echo "make demo    set up and run the main job on embedded data"
	@echo "make test    set up and pass the test suite"
	@echo "make check   lint, formatting, types, import order, tests"
	@echo "make format  bring the code into its format"

demo: $(VENV)/.user
	$(BIN)/drfl compare --algorithms FedAvg,DRFA,DRDM,DualDRDM --seeds 5 --out runs/demo --overwrite

# a process a core, each of one thread: the models of the tests are too small to share out
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

check: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build src/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# torch goes first and pinned: a range would let pip take a build with gigabytes of CUDA along
$(VENV)/.user: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "drfl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }  # where Python comes without ensurepip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.user
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
