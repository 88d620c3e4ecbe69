# `make demo` and `make test` need only Python 3.11 or newer with pip. They install everything else into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The lock files list every package, and pip accepts a file only if they contain its hash. Only wheels are allowed,
# because the build requirements of source packages would not be verified. pip does not compile them: that would take a
# third of the set-up, and Python compiles the few modules that it imports.
LOCKED := --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps --only-binary :all:
# drfl itself is installed from this folder, which has no hash. setuptools is installed already, so nothing is downloaded.
ITSELF := --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.PHONY: demo test test-all check lint format pages messages docs deployment dist lock clean help

help:
	@echo "make demo    set up and run the main job on embedded data"
	@echo "make test    set up and pass the test suite"
	@echo "make test-all  the same with the long tests: mutation tests, fuzzing, statistics, real processes, all evidence"
	@echo "make check   lint, formatting, types, import order, prose, tests"
	@echo "make format  format the code"
	@echo "make pages   update the generated blocks of the pages, from stored results and the code"
	@echo "make messages  write the wording of all errors and warnings into tests/messages.txt"
	@echo "make docs    build the documentation site in build/site; fails on a broken link or a missing page"
	@echo "make deployment  try a deployment with real processes on this machine"
	@echo "make dist    build wheel and source archive in build/dist, each tried in an empty environment"
	@echo "make lock    update the lock files (UPGRADE=1: to the newest versions)"

demo: $(VENV)/.user
	$(BIN)/drfl compare examples/one_class.toml --seeds 5 --out runs/demo --overwrite

# The tests start many processes. Without bytecode files, each of them would compile drfl again.
export PYTHONDONTWRITEBYTECODE =

# One process per core with one thread each, because the models in tests are too small for several threads. Neighbouring
# tests run in one process and share fixtures, and an idle process takes over tests of another one.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# This also stores the outcome.
test-all: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python scripts/test_all.py

check: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/prose.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pages: $(VENV)/.dev
	$(BIN)/python scripts/pages.py

messages: $(VENV)/.dev
	$(BIN)/python scripts/messages.py

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html; its search needs a server: python3 -m http.server -d build/site"

deployment: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python scripts/try_deployment.py --quick

dist: $(VENV)/.build
	$(BIN)/python scripts/dist.py

lock: $(VENV)/.dev
	$(BIN)/python scripts/lock.py $(if $(UPGRADE),--upgrade)

clean:
	rm -rf $(VENV) runs build src/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# If Python lacks ensurepip, its own pip fills the environment.
# pip first looks for torch without the network, in PIP_FIND_LINKS, and takes a CPU build from there if its hash is
# locked. With access to PyPI it would prefer PyPI's build, whose hashes it knows. On Linux that build needs gigabytes of
# CUDA packages, which are in no lock file because most users do not need them. The step after that installs them, in
# the versions of torch's verified metadata, but without verifying their hashes. It does nothing for a CPU build.
$(VENV)/.user: pyproject.toml constraints.txt constraints-torch.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "drfl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 2; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) \
		|| { $(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install $(LOCKED) -r constraints.txt; }
	$(BIN)/python -m pip install $(LOCKED) -r constraints.txt
	$(BIN)/python -m pip install $(LOCKED) --no-index -r constraints-torch.txt 2>/dev/null \
		|| $(BIN)/python -m pip install $(LOCKED) -r constraints-torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch
	$(BIN)/python -m pip install $(ITSELF)
	$(BIN)/python -m pip check
	@touch $@

# Only the packages that build the archives.
$(VENV)/.build: constraints-dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@awk '/^(packaging|setuptools|uv)==/ {keep = 1} keep {print} !/\\$$/ {keep = 0}' constraints.txt constraints-dev.txt > $(VENV)/build.txt
	$(BIN)/python -m pip install $(LOCKED) -r $(VENV)/build.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.user constraints-dev.txt
	$(BIN)/python -m pip install $(LOCKED) -r constraints-dev.txt
	$(BIN)/python -m pip check
	@touch $@
