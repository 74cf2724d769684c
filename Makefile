# Every target installs what it needs; PYTHON picks the interpreter for a new environment.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test check test-engine test-engine-full test-soak test-gpu bench bench-gpu \
	kernels-report format hooks clean

help:                ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)    ## The router and the development tools, into .venv
	@echo "installed: $(BIN)/transload"

check: $(STAMP)      ## Format, lint, types, layering
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP)       ## Everything that needs no engine, no GPU, no network (under five minutes)
	$(BIN)/python -m pytest -n 4 --dist loadfile

test-soak: $(STAMP)  ## Full-size soak: 1,500 streams, 20,000 requests
	$(BIN)/python -m pytest -m soak

test-engine: $(STAMP)       ## The core matrix against the real vLLM on CPU (under 25 minutes)
	$(BIN)/python tools/engine_env.py
	$(BIN)/python -m pytest tests/engine -m 'engine and not engine_full'

test-engine-full: $(STAMP)  ## All of it, also with two decode engines
	$(BIN)/python tools/engine_env.py
	$(BIN)/python -m pytest tests/engine -m engine

test-gpu: $(STAMP)   ## The kernels on the GPU that is here; says so where there is none
	$(BIN)/python -m pytest tests -m gpu

# ENGINE=reference: the package's own engines. ENGINE=vllm: the real ones, on the CPU.
ENGINE ?= reference
# Where the development tools are not installed, the demo has an environment of its own.
DEMO_VENV := $(if $(wildcard $(STAMP)),$(VENV),.venv-demo)
DEMO_STAMP_reference := $(DEMO_VENV)/.installed
DEMO_STAMP_vllm := $(STAMP)
DEMO_reference := $(DEMO_VENV)/bin/transload demo
DEMO_vllm := $(BIN)/python tools/demo.py
DEMO_PIP := install -qq --disable-pip-version-check --no-compile
# Compiled here once, or each of the demo's processes would do it, and where Python is told to write
# no bytecode, each time.
DEMO_IMPORTS := import torch, transload_engine.server.model_command, transload_router.app.line

.venv-demo/.installed: pyproject.toml
	@echo "installing torch and the router's packages into .venv-demo (once: 900 MB, about a minute)"
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip $(DEMO_PIP) -e '.[demo]'
	env -u PYTHONDONTWRITEBYTECODE .venv-demo/bin/python -c '$(DEMO_IMPORTS)'
	@touch $@

demo: $(DEMO_STAMP_$(ENGINE))  ## Two engines and the router; ONESHOT=1 ends after two turns of a chat
	$(or $(DEMO_$(ENGINE)),$(error ENGINE is reference or vllm)) $(if $(ONESHOT),--oneshot)

# Of bench/README.md, quick ones first; `make bench BENCHES=relay` runs one.
BENCHES ?= plan kernels transports choose decision events index tokens flood relay

bench: $(STAMP)      ## What things cost, one script after the other (half an hour)
	@set -e; for each in $(BENCHES); do echo "== $$each"; $(BIN)/python bench/$$each.py; done

bench-gpu: $(STAMP)  ## The kernels' bandwidth on the GPU that is here
	$(BIN)/python bench/kernels_gpu.py

kernels-report: $(STAMP)  ## Compile the kernels for GPUs and rewrite the table of kernels/DESIGN.md
	$(BIN)/python tools/kernels_report.py

format: $(STAMP)     ## Rewrite the tree in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks:               ## A git hook that runs make check before each commit
	printf '#!/bin/sh\nexec make check\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit

clean:               ## Remove environments and caches of this checkout
	rm -rf $(VENV) .venv-demo .mypy_cache .ruff_cache .pytest_cache build dist
