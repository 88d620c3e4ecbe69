# `make demo` and `make test` need only Python 3.11 or newer with pip: they make what else they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The lock files name all that is installed, and pip takes a file only if its hash is in them. Wheels alone: what builds
# a package from source would come unchecked.
LOCKED := --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all:
# drfl itself is this folder, for which pip knows no hash; setuptools is there already, so nothing is fetched to build it
ITSELF := --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.PHONY: demo test test-all check lint format pages messages docs deployment dist lock clean help

help:
	@echo "make demo    set up and run the main job on embedded data"
	@echo "make test    set up and pass the test suite"
	@echo "make test-all  the same with the long tests: mutation tests, fuzzing, statistics, real processes, all evidence"
	@echo "make check   lint, formatting, types, import order, prose, tests"
	@echo "make format  bring the code into its format"
	@echo "make pages   write stored results and lists of the code into the pages of docs/"
	@echo "make messages  write the wording of all errors and warnings into tests/messages.txt"
	@echo "make docs    build the documentation site, build/site; strict: a broken link or a missing page fails"
	@echo "make deployment  try a deployment with real processes on this machine"
	@echo "make dist    build wheel and source archive in build/dist, each tried in an empty environment"
	@echo "make lock    renew the lock files (UPGRADE=1: take the newest versions)"

demo: $(VENV)/.user
	$(BIN)/drfl compare examples/one_class.toml --seeds 5 --out runs/demo --overwrite

# The tests start many processes; where Python is told to keep no bytecode each of them would compile drfl anew.
export PYTHONDONTWRITEBYTECODE =

# a process a core, each of one thread: the models of the tests are too small to share out; neighbours run in the same
# process, which shares their fixtures, and a process that has nothing left takes tests of another
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# stores its result
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

# Where Python comes without ensurepip its own pip fills the environment.
# torch is first looked for without the network, where pip is told to (PIP_FIND_LINKS): a CPU build there is taken, if
# its hash is locked. With PyPI at hand pip would prefer PyPI's, whose hashes it knows beforehand. That one does not
# start on Linux without the packages of CUDA, gigabytes that are in no lock file, as most have no use for them: pip
# adds them in the step after, in the versions that torch's own, verified metadata names, but with their hashes unseen.
# For a CPU build that step does nothing.
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

# What builds the archives, and nothing else.
$(VENV)/.build: constraints-dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@awk '/^(packaging|setuptools|uv)==/ {keep = 1} keep {print} !/\\$$/ {keep = 0}' constraints.txt constraints-dev.txt > $(VENV)/build.txt
	$(BIN)/python -m pip install $(LOCKED) -r $(VENV)/build.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.user constraints-dev.txt
	$(BIN)/python -m pip install $(LOCKED) -r constraints-dev.txt
	$(BIN)/python -m pip check
	@touch $@
