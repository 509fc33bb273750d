# Everything a newcomer needs: `make demo` and `make test`. Reuse an environment with `make test VENV=/path/to/venv`.
VENV ?= .venv
PYTHON ?= python3
JOBS ?= 2
BIN := $(VENV)/bin
PROSE := README.md CONTRIBUTING.md CHANGELOG.md docs/*.md docs/*/*.md lab/*.md
STAMP := $(VENV)/.asterism-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

# Workers and commands under test share the bytecode of the package, even where the shell says to write none.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPATH=$(CURDIR) $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --durations 10

.PHONY: setup demo test test-all campaign matrix check audit format docs clean

setup: $(STAMP)

# The stamp changes with the dependencies, so an up-to-date environment costs nothing and a stale one is renewed.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@rm -f $(VENV)/.asterism-*
	@touch $@

demo: setup
	PYTHONPATH=$(CURDIR) $(BIN)/python -m asterism demo --out demo --overwrite

# What a change can break in any room, in at most five minutes on two cores.
test: setup
	$(PYTEST) -m "not slow"

# Everything: after the quick tests the slow ones, in which the shapes of every signature are checked at run time.
# `make test test-all` runs no test twice.
test-all: test
	ASTERISM_TYPES=1 $(PYTEST) -m slow

# Every generated bad input, failing disk and attack; `make test` runs a few of each kind. CAMPAIGN=outputs runs one campaign.
campaign: setup
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.campaigns $(CAMPAIGN)

# The quick tests with the oldest, the tested and the newest versions of what we depend on; VERSIONS=newest runs one of them.
matrix:
	$(PYTHON) -m tests.matrix $(VERSIONS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=$(CURDIR) $(BIN)/lint-imports
	PYTHONPATH=$(CURDIR) $(BIN)/python -m docs.links
	PYTHONPATH=$(CURDIR) $(BIN)/python -m docs.figures
	$(BIN)/codespell --dictionary - --dictionary docs/british.txt --ignore-regex '`[^`]*`' $(PROSE)
	$(BIN)/codespell --ignore-words docs/spelling.txt asterism lab tests docs/*.py Makefile Dockerfile mkdocs.yml
	$(BIN)/python -m tests.audit

# The site, with warnings as errors: build/site/index.html. It needs no network, neither to build nor to read.
docs: setup
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(CURDIR) $(BIN)/python -m mkdocs build --quiet
	@echo build/site/index.html

audit: setup
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python -m tests.audit

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build demo .pytest_cache .ruff_cache .mypy_cache .import_linter_cache *.egg-info
