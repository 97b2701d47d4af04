# On a fresh machine with Python 3.11 or newer, pip and make:
#   make demo     watch a degenerating agent being caught
#   make test     run the tests
# Everything is installed into .venv; `make help` lists the rest.

SHELL := /bin/sh
VENV  := .venv
BIN   := $(VENV)/bin
PINS  := constraints.txt
INPUTS := pyproject.toml protocol/pyproject.toml $(PINS)
PIP   := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check
PINNED := --constraint $(PINS) --build-constraint $(PINS)
# Two workers: the suite is made for two cores. `make test PYTEST=-x` adds options.
WORKERS ?= 2
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: fuzz-http pictures help demo demo-real test test-pythons test-long test-agents test-page crash-matrix soak soak-agents bench bench-detection lint types contracts docs wheels constraints clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Finds a Python that is new enough. A name may exist and still not run (a version manager's shim),
# so each candidate is executed; PYTHON=/path/to/python overrides the search.
$(BIN)/python:
	@set -e; found=; \
	for candidate in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do \
	  if "$$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "loopd needs Python 3.11 or newer with its venv module; found: $$(python3 --version 2>&1 || true). Set PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "setup: $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV); "$$found" -m venv --without-pip $(VENV); \
	  "$$found" -m pip --python $(VENV)/bin/python install --quiet --disable-pip-version-check pip; \
	}

# pip first: --group needs 25.1 and --build-constraint 25.3.
$(VENV)/.pip: $(BIN)/python $(PINS)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(PIP) --upgrade pip --constraint $(PINS)
	@touch $@

$(VENV)/.run: $(VENV)/.pip $(INPUTS)
	@echo "setup: loopd and what it needs"
	@$(PIP) $(PINNED) -e ./protocol -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.pip $(INPUTS)
	@echo "setup: loopd, test and lint tools"
	@$(PIP) $(PINNED) -e ./protocol -e . --group dev
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## a real incident replayed in fast time: a degenerating agent is caught (under 30 s)
	@$(BIN)/loopd demo

demo-real: $(VENV)/.run ## the same with a real small model, which really degenerates (about 220 MB to install)
	@$(BIN)/python -m loopd.testing.demo_real

test: $(VENV)/.dev ## the tests
	@$(BIN)/pytest -n $(WORKERS) $(PYTEST)

test-pythons: $(BIN)/python ## the tests under every Python from 3.11 to 3.14 that is here; says which are not
	@$(BIN)/python .ci/pythons.py -n $(WORKERS) $(PYTEST)

test-long: $(VENV)/.dev ## the heavy cases with their full counts
	@HYPOTHESIS_PROFILE=soak $(BIN)/pytest -m long --timeout 3600 -n $(WORKERS) $(PYTEST)

# The agents and Node go into ~/.cache/loopd-agents (LOOPD_AGENTS_CACHE), the model into .cache/; about 1.2 GB, once.
# What a registry does not have is skipped, and said to be. AGENTS="goose pi" installs only these.
pictures: $(VENV)/.dev ## take the pictures of page and screen for the docs again (needs chromium)
	@$(PIP) "playwright==1.65.2"
	@$(BIN)/python docs/make_pictures.py

PAGE_CACHE = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/loopd-page
test-page: $(VENV)/.dev ## the web page in a real browser (needs Debian's chromium; installs the rest)
	@$(PIP) "playwright==1.65.2"
	@test -e $(PAGE_CACHE)/node_modules/axe-core/axe.min.js || npm install --silent --no-save --prefix $(PAGE_CACHE) axe-core@4.14.1
	@$(BIN)/pytest tests/browser -n 0 --timeout 180 $(PYTEST)

test-agents: $(VENV)/.dev ## real coding agents and a real model, unattended (installs them the first time)
	-@$(BIN)/python -m loopd.testing.realagents install $(AGENTS)
	-@$(BIN)/python -m loopd.testing.realmodel prepare
	@LOOPD_TEST_AGENTS=1 $(BIN)/pytest tests/agents -n 0 --timeout 600 $(PYTEST)

# N faults in all; SEED repeats a run; FAULTS adds options such as `--family disk` or `--minutes 10`.
N ?= 200
SEED ?= 1
MINUTES ?= 5
crash-matrix: $(VENV)/.dev ## break real daemons in every way there is, and prove that nothing is lost or run twice
	@$(BIN)/python -m tests.faults -n $(N) --seed $(SEED) --lanes $(WORKERS) $(FAULTS)

soak: $(VENV)/.dev ## 200 sessions for MINUTES with a kill every minute (FAULTS=--one-life: only at the end): no broken promise, flat memory
	@$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) --seed $(SEED) $(FAULTS)

soak-agents: $(VENV)/.dev ## 20 hosted agents for MINUTES with crons and suspensions: flat memory, nothing lost
	@LOOPD_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest -q -s -n0 -m long --timeout 7200 tests/e2e/test_hosted_soak.py

bench: $(VENV)/.dev ## measure against the goals; JSON lines go to bench-results/
	@$(BIN)/python -m tests.bench $(BENCH)

# Published packages go into environments of their own under .cache/peers, the first time.
bench-detection: $(VENV)/.dev ## recall, delay and false stops on the corpus, beside published packages; DATA=FILE adds real runs
	@$(BIN)/python -m tests.bench.bench_detection --peers install $(if $(DATA),--data $(DATA)) $(if $(PAGE),--page)

# schemathesis lives in an environment of its own; the first time it is installed there.
.cache/schemathesis/bin/schemathesis:
	@$(BIN)/python -m venv .cache/schemathesis && .cache/schemathesis/bin/pip install --quiet schemathesis

fuzz-http: $(VENV)/.run .cache/schemathesis/bin/schemathesis ## thousands of made-up requests to a real daemon, from its own OpenAPI
	@$(BIN)/python -m loopd.testing.fuzz_http --schemathesis .cache/schemathesis/bin/schemathesis $(FUZZ)

lint: $(VENV)/.dev ## ruff: rules and format
	@$(BIN)/ruff check --quiet && $(BIN)/ruff format --check --quiet && echo "lint: clean"

types: $(VENV)/.dev ## mypy (strict) and basedpyright
	@$(BIN)/mypy && $(BIN)/basedpyright --level error

contracts: $(VENV)/.dev ## who may import whom
	@$(BIN)/lint-imports

docs: $(VENV)/.dev ## write the generated pages again
	@for page in docs/generate*.py; do $(BIN)/python "$$page"; done

wheels: $(VENV)/.dev ## build both distributions into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist protocol >/dev/null
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls dist

constraints: ## resolve the newest versions again and pin them
	@rm -rf $(VENV)/.fresh && $(MAKE) -s $(BIN)/python
	@$(BIN)/python -m venv $(VENV)/.fresh
	@$(VENV)/.fresh/bin/python -m pip install --quiet --upgrade pip
	@$(VENV)/.fresh/bin/python -m pip install --quiet -e ./protocol -e . --group dev
	@$(VENV)/.fresh/bin/python -m pip list --format=freeze --exclude-editable | $(BIN)/python .ci/pin.py
	@rm -rf $(VENV)/.fresh
	@wc -l $(PINS)

clean: ## remove everything that was installed, built or measured
	@rm -rf $(VENV) .venv-real dist build bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
