# Two commands do all the set-up: `make demo` and `make test`. They need Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/run
DEV := $(VENV)/dev
SOURCES := $(shell find src tasks workers schema -type f -not -name '*.pyc') pyproject.toml
SEED ?= 1
DURATION ?= 60
MINUTES ?= 10
PIP := -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs check torture chaos mutants bench recall clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(RUN)/.installed ## watch conversations being recorded, recalled and erased (about a minute)
	@$(RUN)/bin/afterturn demo

test: $(DEV)/.installed ## install what the tests need and run them
	@$(DEV)/bin/python -m pytest -n 2 --dist loadfile $(PYTEST)

lint: $(DEV)/.installed ## format, lint, types, layers
	@$(DEV)/bin/ruff format --check .
	@$(DEV)/bin/ruff check .
	@$(DEV)/bin/mypy
	@PYTHONPATH=src:. $(DEV)/bin/lint-imports --no-cache

docs: $(DEV)/.docs ## build the documentation into build/docs; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 $(DEV)/bin/mkdocs build --quiet && echo "built build/docs/index.html"

torture: $(RUN)/.installed ## kill everything at random and look for lost or erased words (SEED=, DURATION=)
	@$(RUN)/bin/python tests/torture.py --seed $(SEED) --duration $(DURATION)

chaos: $(RUN)/.installed ## the same for long: every fault there is (SEED=, MINUTES=)
	@$(RUN)/bin/python tests/torture.py --seed $(SEED) --duration $$(( $(MINUTES) * 60 ))

mutants: $(DEV)/.installed ## take each protection of the erase away and see that a test notices (about 5 minutes)
	@$(DEV)/bin/python -m tests.mutation

check: lint test docs torture ## all that CI runs

bench: $(RUN)/.installed ## hand-over, throughput, and model calls per turn, measured in one run each
	@$(RUN)/bin/python bench/handover.py
	@$(RUN)/bin/python bench/throughput.py
	@$(RUN)/bin/python bench/retrieve.py
	@$(RUN)/bin/python $(PIP) install '.[openai]'
	@$(RUN)/bin/python bench/extraction.py

recall: $(RUN)/.installed ## share of evidence found (SCORER=path/to/score.py DATA="--data locomo=file ...")
	@test -n "$(SCORER)" && test -n "$(DATA)" || { echo 'set SCORER=path/to/score.py and DATA="--data KIND=PATH ..."'; exit 2; }
	@PYTHONPATH=. $(RUN)/bin/python $(SCORER) --adapter bench.recall:make_retriever $(DATA)

clean: ## remove the virtual environments
	@rm -rf $(VENV)

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "afterturn needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@mkdir -p $(VENV) && touch $@

# The package as users install it: not the checkout.
$(RUN)/.installed: $(SOURCES) | $(VENV)/.python
	@test -x $(RUN)/bin/python || { echo "creating $(RUN)"; $(PYTHON) -m venv $(RUN); }
	@echo "installing afterturn"
	@$(RUN)/bin/python $(PIP) install '.[embedded]'
	@$(RUN)/bin/python $(PIP) install --force-reinstall --no-deps .
	@touch $@

$(DEV)/.installed: pyproject.toml | $(VENV)/.python
	@test -x $(DEV)/bin/python || { echo "creating $(DEV)"; $(PYTHON) -m venv $(DEV); }
	@echo "installing afterturn and what its tests need"
	@$(DEV)/bin/python $(PIP) install -e '.[embedded,symfonic,test,dev]'
	@touch $@

$(DEV)/.docs: $(DEV)/.installed
	@echo "installing what the documentation needs"
	@$(DEV)/bin/python $(PIP) install -e '.[docs]'
	@touch $@
