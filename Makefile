# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up all they need; see README.md.
#
#   PYTHON=...   interpreter to make the environment from (3.11 to 3.13; found otherwise)
#   VENV=...     folder of the environment (default .venv)
#   FORK=wheel   install the fork as a wheel rather than editable
#   WORKERS=...  processes that run tests, each with servers of its own (default 2)
#   ARGS=...     passed on: pytest (test), the demo (demo), the benchmarks (bench)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Servers are started many times: without bytecode each start compiles upstream again.
export PYTHONDONTWRITEBYTECODE :=

VENV ?= .venv
FORK ?= editable
WORKERS ?= 2
ARGS ?=
BIN := $(VENV)/bin
# --no-compile: Python compiles the tenth of the modules that are ever imported when they are.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
STAMP := $(VENV)/stamp

EXT_FILES := $(shell find sgl-kernel-ext -type f -not -path '*/build/*' -not -name '*.pyc' 2>/dev/null)
FORK_FILES := pyproject.toml UPSTREAM.toml $(wildcard tools/fork/*.py patches/*)

.PHONY: help venv model demo test lint format bench export clean distclean

help:
	@echo "make demo    serve a small model on the CPU, compare adaptive eviction with LRU"
	@echo "make test    run all tests (ARGS='-m \"not e2e\"' leaves out those that serve)"
	@echo "make lint    check style, types and patches"
	@echo "make bench   run the quick form of every benchmark"
	@echo "make export  write the patches as a git series against upstream, build/export/"
	@echo "make venv | model | format | clean | distclean"

# The environment, in steps that are not repeated unless what they depend on changed.

$(STAMP)/venv:
	@python="$${PYTHON:-$$(tools/find_python.sh)}"; \
	echo "setup: environment in $(VENV) from $$python"; \
	"$$python" -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/requirements: requirements/cpu.txt requirements/dev.txt | $(STAMP)/venv
	@echo "setup: upstream's requirements without GPU kernels (about 7 GB; several minutes)"
	@$(filter-out --quiet,$(PIP)) -r requirements/cpu.txt -r requirements/dev.txt \
	    | sed -un -e 's/^\(Collecting [^ ]*\).*/  \1/p' -e 's/^Installing.*/  Installing what was collected/p'
	@touch $@

$(STAMP)/tools: tools/pyproject.toml | $(STAMP)/requirements
	$(PIP) --no-build-isolation --no-deps --editable tools
	@touch $@

$(STAMP)/fork-$(FORK): $(FORK_FILES) | $(STAMP)/tools
	@echo "setup: the fork ($(FORK))"
	$(PIP) --no-deps --force-reinstall $(if $(filter editable,$(FORK)),--editable) .
	@echo "setup: first import, which compiles what a server's processes load"
	@$(BIN)/python -W ignore -c 'import sglang.srt.entrypoints.http_server'
	@rm -f $(STAMP)/fork-* && touch $@

# Built from C++; without a compiler everything else works and says what is missing.
$(STAMP)/kernel-ext: $(EXT_FILES) | $(STAMP)/requirements
	@if [ ! -f sgl-kernel-ext/pyproject.toml ]; then :; \
	elif command -v g++ >/dev/null; then \
	    echo "setup: sgl-kernel-ext"; $(PIP) ./sgl-kernel-ext; \
	else echo "setup: no g++, so sgl-kernel-ext is left out" >&2; fi
	@touch $@

venv: $(STAMP)/fork-$(FORK) $(STAMP)/kernel-ext

model: venv
	@PYTHONPATH=tools $(BIN)/python -m models.smollm2

demo: venv
	@$(BIN)/python benchmark/sglang_optimization/demo.py $(ARGS)

test: venv
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# python/ goes upstream and keeps upstream's line length.
OURS := benchmark tests tools
lint: venv
	$(BIN)/python -m ruff check $(OURS)
	$(BIN)/python -m ruff check --line-length 88 python
	$(BIN)/python -m ruff format --check $(OURS)
	$(BIN)/python -m ruff format --check --line-length 88 python
	$(BIN)/python -m mypy
	$(BIN)/python -m fork check

format: venv
	$(BIN)/python -m ruff check --fix $(OURS)
	$(BIN)/python -m ruff check --fix --line-length 88 python
	$(BIN)/python -m ruff format $(OURS)
	$(BIN)/python -m ruff format --line-length 88 python

# All are run, whichever fails; their figures and pictures are left in build/bench.
bench: venv
	@mkdir -p build/bench; failed=(); \
	for script in benchmark/sglang_optimization/bench_*.py; do \
	    name="$$(basename "$$script" .py)"; echo "== $$name"; started=$$SECONDS; \
	    $(BIN)/python "$$script" --json "build/bench/$$name.json" --plot "build/bench/$$name.png" \
	        $(ARGS) || failed+=("$$name"); \
	    echo "== $$name: $$((SECONDS - started)) s"; \
	done; \
	if (($${#failed[@]})); then echo "failed: $${failed[*]}" >&2; exit 1; fi

export: venv
	$(BIN)/python -m fork export

clean:
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis build/logs build/export

# The environment, the downloaded release and the models too.
distclean: clean
	rm -rf $(VENV) build
