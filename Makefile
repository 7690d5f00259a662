# Two commands do all their set-up themselves: `make demo` and `make test`.

PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	"$$python" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo "$$python" && break; done)
DEV := .venv/bin
VLLM := .venv-vllm/bin
DEMO_MODEL := smollm2-135m-instruct
export KVEIK_MODELS ?= $(CURDIR)/.kveik/models
export KVEIK_ENGINE_PYTHON ?= $(CURDIR)/$(VLLM)/python
export HF_HUB_OFFLINE := 1
# Tests start hundreds of processes; each would compile its sources anew.
unexport PYTHONDONTWRITEBYTECODE

# Test files and sources that need vLLM are chosen by their imports (tests/conftest.py). Files with engines run two at a
# time, the others three at a time, since most of them wait more than they compute. 0: one test after the other.
WORKERS ?= 3
ENGINE_WORKERS ?= 2
# Files have their turns as tests/conftest.py says.
PYTEST_XDIST := --dist loadfile --no-loadscope-reorder
PYTEST_DEV := $(DEV)/python -m pytest -n $(WORKERS) $(PYTEST_XDIST)
# The router's own tests once more, on its compiled code.
PYTEST_COMPILED := PYTHONPATH=.kveik/compiled $(PYTEST_DEV) -q tests/unit/router
PYTEST_VLLM := $(VLLM)/python -m pytest -m "vllm and not long" -n $(ENGINE_WORKERS) $(PYTEST_XDIST)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-long check bench verify models docs format dev vllm lmcache peers compiled demo-model clean

help: ## say what each target does
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: dev vllm demo-model ## two real engines share one cache: table, plot, equality
	$(DEV)/kveik demo --model $(KVEIK_MODELS)/$(DEMO_MODEL) --engine-python $(KVEIK_ENGINE_PYTHON)

# vLLM and the models are installed, and the router is compiled, while the tests that do without them run.
test: dev ## all tests, those with real vLLM engines too
	@mkdir -p .kveik; status=0; \
	$(MAKE) --no-print-directory models compiled >.kveik/models.log 2>&1 & making=$$!; \
	echo '$(PYTEST_DEV) -m "not vllm and not long"'; $(PYTEST_DEV) -m "not vllm and not long" || status=1; \
	wait $$making; made=$$?; cat .kveik/models.log; [ $$made = 0 ] || exit 1; \
	echo '$(PYTEST_COMPILED)'; $(PYTEST_COMPILED) || status=1; \
	echo '$(PYTEST_VLLM)'; $(PYTEST_VLLM) || status=1; \
	exit $$status

# Stores' packages are in one environment, vLLM is in the other: what needs both starts its engines from the first.
test-long: dev vllm models ## rolls, healing, compiling, ranks, groups, probes and stores with real engines: an hour more
	@status=0; \
	echo '$(VLLM)/python -m pytest -m long'; $(VLLM)/python -m pytest -m long --ignore-glob='*/test_store_*' || status=1; \
	echo '$(DEV)/python -m pytest -m long'; $(DEV)/python -m pytest -m "long and not vllm" || status=1; \
	$(DEV)/python -m pytest -m long tests/engines/test_store_*.py || status=1; \
	exit $$status

check: dev ## format, lint, types, import contract, docs, unit tests: about a minute
	$(DEV)/ruff format --check
	$(DEV)/ruff check
	$(DEV)/lint-imports --no-logo
	$(DEV)/mypy
	$(PYTEST_DEV) -q -m "not vllm and not slow and not long"

verify: dev vllm demo-model ## prove on two real engines that a hit gives what a cold run gives
	$(DEV)/kveik verify --start --model $(KVEIK_MODELS)/$(DEMO_MODEL) --engine-python $(KVEIK_ENGINE_PYTHON)

bench: dev vllm lmcache peers compiled demo-model ## measure speed and memory, also against LMCache and other routers: docs/benchmarks.md
	$(DEV)/python -m benchmarks.run

models: vllm ## make all models that tests use
	@$(VLLM)/python scripts/prepare_models.py

compiled: dev ## the router's request path compiled by mypyc, in .kveik/compiled: two minutes, needs a C compiler
	@$(DEV)/python scripts/compiled_router.py

demo-model: vllm
	@$(VLLM)/python scripts/prepare_models.py $(DEMO_MODEL)

docs: dev ## write the pages that are generated from code
	$(DEV)/python scripts/configuration_page.py

format: dev ## format the code and fix what the linter can fix
	$(DEV)/ruff check --fix
	$(DEV)/ruff format

dev: ## environment .venv: tools and kveik, no torch
	@$(if $(PYTHON),,$(error no Python 3.11 to 3.13 with venv found))$(PYTHON) scripts/environment.py dev

vllm: ## environment .venv-vllm: vLLM on CPU, pinned
	@$(if $(PYTHON),,$(error no Python 3.11 to 3.13 with venv found))$(PYTHON) scripts/environment.py vllm

lmcache: ## environment .venv-lmcache: LMCache on the same vLLM, for the comparison
	@$(if $(PYTHON),,$(error no Python 3.11 to 3.13 with venv found))$(PYTHON) scripts/environment.py lmcache

peers: dev ## other routers, for the comparison; what cannot be installed is left out of it
	-@$(DEV)/python scripts/peers.py

clean: ## remove environments, models and everything else that was made
	rm -rf .venv .venv-vllm .venv-lmcache .venv.lock .venv-vllm.lock .venv-lmcache.lock .kveik build dist .coverage
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
