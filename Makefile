# make demo: set up, train a policy and prove it; make test: set up, lint, types, contracts, tests.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1
# Where it is set, as in many images, each process would compile torch anew: 2 s each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: venv demo test test-long check lint types contracts unit lane-1 lane-2 clean

venv: $(VENV)/.ready

# torch first: an unpinned torch would bring gigabytes of packages for GPUs.
$(VENV)/.ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer, or say make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile torch
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev,ray]'
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

# Two lanes side by side, one for each core of a small machine; a third only makes all three slower.
LANE := tests/cli tests/doctor tests/learn tests/net tests/policy tests/recipes tests/transport tests/tune \
	tests/actors tests/storage tests/benchmarks tests/cluster/test_training.py tests/parallel/test_launcher.py \
	$(addprefix tests/runs/,test_best_expert.py test_collapse.py test_gail.py)
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider --durations=25

unit:
	@$(MAKE) --no-print-directory -j2 --output-sync=target lane-1 lane-2

# What does not fit into 20 minutes on 2 cores: other paths to what the suite shows once.
test-long: venv
	$(PYTEST) tests -m long --long

lane-1:
	$(PYTEST) $(LANE)

lane-2:
	$(PYTEST) tests $(addprefix --ignore=,$(LANE))

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
