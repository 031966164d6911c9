# make demo: set up, train a policy and prove it; make test: set up, lint, types, contracts, tests.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1

.PHONY: venv demo test check lint types contracts unit unit-half unit-rest clean

venv: $(VENV)/.ready

# torch first: an unpinned torch would bring gigabytes of packages for GPUs.
$(VENV)/.ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer, or say make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch
	$(BIN)/python -m pip install --quiet --editable '.[dev,ray]'
	@touch $@

demo: venv
	@rm -rf $(RUN)
	$(BIN)/distrlcc train quickstart --out $(RUN)
	$(BIN)/distrlcc evaluate $(RUN)/policy.safetensors --suite random --seeds 1 --out $(RUN)/report
	$(BIN)/distrlcc evaluate $(RUN)/policy.safetensors --trace cellular:2000 --seeds 5 --out $(RUN)/report-cellular

test: venv
	@$(MAKE) --no-print-directory check

check: lint types contracts unit

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types:
	$(BIN)/mypy

contracts:
	$(BIN)/lint-imports

# Two processes for what computes, then one for what starts processes and watches the clock.
RUNTIME := tests/runtime
HALF := tests/cli tests/env tests/learn tests/policy
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider

unit:
	@$(MAKE) --no-print-directory -j2 --output-sync=target unit-half unit-rest
	$(PYTEST) $(RUNTIME)

unit-half:
	$(PYTEST) $(HALF)

unit-rest:
	$(PYTEST) tests $(addprefix --ignore=,$(RUNTIME) $(HALF))

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
