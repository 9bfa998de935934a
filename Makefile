# The commands of this repository. Each sets up what it needs (scripts/setup.py, quick if nothing has changed).

PYTHON ?= python3
# Two per core and two more, because most tests wait for processes, containers and databases. The tests of a file
# stay on one worker, because some share an image that takes a minute to build.
WORKERS ?= $(shell echo $$((2 + 2 * $$(nproc 2>/dev/null || echo 1))))
BIN := .venv/bin
# Empty counts as unset: otherwise every process of a test run compiles what it imports again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo demo-docker kaggle-local colab-local test lint parts compiled lock soak bench docs site clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile

setup: ## create .venv, or update it
	@command -v "$(PYTHON)" >/dev/null || { echo "set-up: $(PYTHON) was not found; on Debian or Ubuntu: sudo apt-get update && sudo apt-get install -y python3 python3-venv" >&2; exit 1; }
	@"$(PYTHON)" scripts/setup.py

demo: setup ## train a small model on this machine, over several sessions and a crash
	@$(BIN)/python scripts/demo.py

demo-docker: setup ## the same in containers of this machine's Docker engine; builds the image first
	@mkdir -p -m 700 .demo-docker
	@test -e .demo-docker/config.yaml || cp scripts/demo_docker_config.yaml .demo-docker/config.yaml
	@$(BIN)/python scripts/demo.py --home .demo-docker --config .demo-docker/config.yaml --platform docker

kaggle-local: setup ## run a local Kaggle with short sessions, to try without an account
	@$(BIN)/python -m tests.stand_ins.kaggle --folder .kaggle-local --port 8377

colab-local: setup ## run a local Colab with short machines, to try without an account
	@$(BIN)/python -m tests.stand_ins.colab --folder .colab-local --port 8378

test: setup ## every check and every test (CI=true or SYSTEM_DEPS=1 also installs system packages)
	@$(MAKE) --no-print-directory -j 3 lint parts compiled
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(CI),--reruns 2)

lint: setup ## format, lint, types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# Beside lint, because one of them waits for the network and the other computes.
parts: setup
	@$(BIN)/python scripts/system_parts.py

# The workers of a test run all start by importing every test, so that in a fresh clone each would compile it anew.
# What is wrong with an import is told by the run itself.
compiled: setup
	@$(BIN)/pytest --collect-only -q >/dev/null 2>&1 || true

lock: setup ## rewrite the lists of packages (UPGRADE=1: with the newest versions that fit)
	@$(BIN)/python scripts/lock.py $(if $(UPGRADE),--upgrade)

soak: setup ## what CI leaves out: long tests (20 to 30 minutes each), and dear ones that are like others
	@$(BIN)/pytest -m soak --timeout 0 -s

bench: setup ## every benchmark; copy the figures to docs/benchmarks.md
	@for each in benchmarks/[!_]*.py; do echo "== $$each"; $(BIN)/python -m "benchmarks.$$(basename "$$each" .py)" || exit 1; done

docs: setup ## rewrite the generated pages
	@$(BIN)/python scripts/generate_docs.py

site: setup ## build the documentation into build/site, to read it in a browser
	@$(BIN)/python scripts/build_site.py

clean: ## remove .venv, the demo's state and all caches
	@for home in .demo .demo-docker .kaggle-local .colab-local; do \
	    if [ -d $$home ] && [ -x $(BIN)/orchestrator ]; then $(BIN)/orchestrator --home $$home down || true; fi; \
	done
	@rm -rf .venv .demo .demo-docker .kaggle-local .colab-local .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
