PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
DIR     ?=
MODULES ?= etl

.PHONY: help setup demo test soak previous mutants check bench dev wheels clean

help:  ## Say what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

setup: $(VENV)/ready  ## Make .venv with everything in it

demo: setup  ## Survey a source tree with workers, one of them killed (DIR=… for another tree)
	$(BIN)/python -m flowforge demo $(if $(DIR),'$(DIR)')

test: setup  ## Run the tests on real servers of their own
	$(BIN)/python -m pytest -n 3 --dist worksteal

soak: setup  ## Run the tests that take long by their nature
	$(BIN)/python -m pytest -m soak

previous: setup  ## Run the tests of the release before on this release's schema
	$(BIN)/python -m tests.previous

mutants: setup  ## Leave out each predicate of each verb, and undo each answer to a fault: some test must turn red
	$(BIN)/python -m tests.mutants
	$(BIN)/python -m tests.faults

check: setup  ## Check style, types, import contracts, migrations = schema.sql, and docs
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/contract/test_schema.py tests/contract/test_typing.py tests/contract/test_data_model_docs.py \
		tests/contract/test_docs.py tests/contract/test_migrations.py

bench: setup  ## Measure what docs/performance.md says
	$(BIN)/python -m benchmarks

dev: setup  ## Run the Procfile on servers of its own, for MODULES (examples/etl); Ctrl-C ends everything
	PYTHONPATH=examples $(BIN)/python -m flowforge dev $(MODULES)

wheels: setup  ## Prove that all that users install has wheels, for each Python and platform
	$(BIN)/python tools/wheels.py

clean:  ## Remove what make made
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
