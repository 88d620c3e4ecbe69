# `make demo` and `make test` need only Python 3.11 or newer with pip: they make what else they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The lock files name all that is installed, and pip takes a file only if its hash is in them. Wheels alone: what builds
# a package from source would come unchecked.
LOCKED := --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all:
# drfl itself is this folder, for which pip knows no hash; setuptools is there already, so nothing is fetched to build it
ITSELF := --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.PHONY: demo test check lint format lock clean help

help:
	@echo "make demo    set up and run the main job on embedded data"
	@echo "make test    set up and pass the test suite"
	@echo "make check   lint, formatting, types, import order, tests"
	@echo "make format  bring the code into its format"
	@echo "make lock    renew the lock files (UPGRADE=1: take the newest versions)"

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

lock: $(VENV)/.dev
	$(BIN)/python scripts/lock.py $(if $(UPGRADE),--upgrade)

clean:
	rm -rf $(VENV) runs build src/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Where Python comes without ensurepip its own pip fills the environment. The step for torch does nothing where torch is
# a CPU build, as on macOS. PyPI's for Linux does not start without the packages of CUDA: gigabytes, which the lock files
# leave out. pip takes those in the versions that torch's own, verified metadata name, but their hashes are not checked;
# `pip install` a CPU wheel of torch first, or give it as PIP_FIND_LINKS, to do without them.
$(VENV)/.user: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "drfl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 2; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) \
		|| { $(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install $(LOCKED) -r constraints.txt; }
	$(BIN)/python -m pip install $(LOCKED) -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch
	$(BIN)/python -m pip install $(ITSELF)
	$(BIN)/python -m pip check
	@touch $@

$(VENV)/.dev: $(VENV)/.user constraints-dev.txt
	$(BIN)/python -m pip install $(LOCKED) -r constraints-dev.txt
	$(BIN)/python -m pip check
	@touch $@
