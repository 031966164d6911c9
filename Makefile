# make demo: set up, train a policy and prove it; make test: set up, lint, types, contracts, tests.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
PIP := $(BIN)/python -m pip install --quiet --no-compile
# uv reads none of pip's settings: where pip has an index of its own, pip installs.
PIP_HAS_INDEX := $(BIN)/python -m pip config list | grep -qE '\.(index-url|no-index)='
UV := UV_HTTP_TIMEOUT=10 $(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt \
	--build-constraints constraints.txt
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1
# Where it is set, as in many images, each process would compile torch anew: 2 s each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: venv demo test test-long quick check static static-beside lint types contracts docs unit clean

venv: $(VENV)/.ready

# What pip installs as torch: make demo TORCH="torch --index-url ADDRESS" or TORCH=torch, which is
# what pip finds. Unset: without a GPU the build for CPUs, where its index answers within 10 s.
TORCH :=
CPU_BUILDS := https://download.pytorch.org/whl/cpu
HAS_GPU := timeout 10 nvidia-smi -L
HAS_CPU_BUILDS := timeout 10 $(BIN)/python -m pip --isolated index versions --retries 0 --timeout 5 \
	--index-url $(CPU_BUILDS) torch

# torch first and alone: what it needs is the same from every index, and pinned.
$(VENV)/.ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer, or say make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH)" ]; then $(PIP) --no-deps $(TORCH); \
	elif ! $(HAS_GPU) >/dev/null 2>&1 && $(HAS_CPU_BUILDS) >/dev/null 2>&1 \
		&& $(PIP) --no-deps --index-url $(CPU_BUILDS) torch; then :; \
	else echo "torch: what pip finds (make TORCH=... takes another)"; $(PIP) --no-deps torch; fi
	@if ! $(PIP_HAS_INDEX) && $(PIP) uv && $(UV) --editable '.[dev]'; then :; \
	else echo "the rest: by pip, which takes longer than uv"; $(PIP) --editable '.[dev]'; fi
	@touch $@

demo: venv
	@rm -rf $(RUN)
	$(BIN)/distrlcc train quickstart --out $(RUN)
	$(BIN)/distrlcc evaluate $(RUN)/policy.safetensors --suite random --seeds 1 --out $(RUN)/report
	$(BIN)/distrlcc evaluate $(RUN)/policy.safetensors --trace cellular:2000 --seeds 5 --out $(RUN)/report-cellular

test: venv
	@$(MAKE) --no-print-directory check

# The tests use two cores now and then only: lint, types and contracts run beside them, and what
# these say comes at the end where something is wrong. Both are make's own children, not a shell's
# in the background, which Ctrl-C would not reach.
STATIC := $(VENV)/static.log
check:
	@$(MAKE) --no-print-directory -j2 unit static-beside; failed=$$?; \
	if [ -e $(STATIC) ]; then cat $(STATIC); echo "lint, types, contracts or docs: FAILED"; \
	else echo "lint, types, contracts, docs: passed"; fi; exit $$failed

static-beside:
	@$(MAKE) --no-print-directory --output-sync=target static > $(STATIC) 2>&1 && rm $(STATIC) \
	|| { echo "lint, types, contracts or docs: FAILED, as $(STATIC) says and the end will"; exit 1; }

static: lint types contracts docs

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types:
	$(BIN)/mypy

contracts:
	$(BIN)/lint-imports

# A page that links nowhere fails.
docs: venv
	$(BIN)/python -m scripts.reference_pages $(VENV)/pages
	NO_COLOR=1 $(BIN)/zensical build --strict --config-file $(VENV)/pages/mkdocs.yml

PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider --durations=25

# Many tests wait rather than compute: five at a time keep two cores busy. The longest files begin
# first: add --store-durations to write anew which these are.
# First one process compiles for numba and writes what Python compiles, which all others would do
# anew side by side. SELECT is pytest's -m: make unit SELECT="not net".
SELECT :=
unit:
	@$(BIN)/distrlcc check sim --scenarios 1 && $(PYTEST) tests/env/test_contract.py -k contract
	@$(PYTEST) --collect-only tests > /dev/null || true
	$(PYTEST) tests -n 5 --dist loadfile --no-loadscope-reorder $(if $(SELECT),-m "$(SELECT)")

# While you work: the rooms that start no processes, in under a minute on two cores.
QUICK := $(addprefix tests/,control env learn policy sim transport test_config.py)
quick: venv
	$(PYTEST) --durations=5 $(QUICK) -n 2 --dist loadfile -m "not net and not long and not slow"

# What does not fit into `make test`: other paths to what the suite shows once.
test-long: venv
	$(PYTEST) tests -n 2 --dist loadfile -m long --long

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
