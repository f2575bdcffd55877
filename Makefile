# Every task of the project. `make help` lists them.

# The first Python that is new enough; the one beneath, where .venv itself is active. `make PYTHON=/path/to/python ...`
# names another.
ifndef PYTHON
PYTHON := $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && $$p -c 'import sys; \
	print(sys._base_executable if sys.prefix == "$(CURDIR)/.venv" else sys.executable)' && break; done)
endif
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Only the plugins that are named: others may come with a torch that was already there. Bytecode is kept whatever the
# environment says: the tests start some hundred processes.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p xdist -p pytest_timeout -n 2 --dist worksteal --timeout 300

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint check format gpu models study ablation random mutations docs language clean

help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## Create .venv with all that the project needs

# A torch that is already there (a CUDA build, say) is used as it is: the new environment sees it, and a constraint keeps
# pip from putting another in front of it. The .pth file is for a torch that --system-site-packages does not reach,
# such as one of an active virtual environment. Bytecode is made of what is imported, when it is: all of it takes half a
# minute.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "mirage needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@set -e; : > constraints.tmp; trap 'rm -f constraints.tmp' EXIT; \
	if $(PYTHON) -c 'import torch' 2>/dev/null; then \
		echo "using the torch that is already there"; \
		$(PYTHON) -m venv --system-site-packages $(VENV); \
		$(BIN)/python -c 'import torch' 2>/dev/null || \
			$(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
			> "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_already_there.pth"; \
		$(PYTHON) -c 'import torch; print("torch==" + torch.__version__)' > constraints.tmp; \
		$(PYTHON) -c 'import triton; print("triton==" + triton.__version__)' >> constraints.tmp 2>/dev/null || true; \
	else \
		echo "downloading torch and triton into $(VENV): some minutes"; \
		$(PYTHON) -m venv $(VENV); \
		if nvidia-smi -L >/dev/null 2>&1; then torch="torch"; else torch="torch==2.13.0 triton==3.7.1"; fi; \
		$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $$torch; \
	fi; \
	echo "installing mirage and its tools into $(VENV)"; \
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.tmp --editable '.[dev]'
	@touch $@

demo: export MIRAGE_DB := $(CURDIR)/.mirage/demo.db
demo: $(STAMP) ## Search for the best kernel of a gated MLP, and export it
	$(BIN)/mirage search search_specs/gated_mlp.yaml || test $$? -eq 3
	$(BIN)/mirage export search_specs/gated_mlp.yaml --triton -o .mirage/gated_mlp.py

test: $(STAMP) ## Run the tests
	$(PYTEST)

lint: $(STAMP) ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

check: lint test ## All that CI runs: lint, then the tests

format: $(STAMP) ## Format the code, and mend what lint can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# On a machine with a GPU and perhaps no network: where the imports work as it is, nothing is installed.
define ON_GPU
set -e; \
if $(PYTHON) -c 'import pytest, rich, sqlite_utils, torch, triton, typer, yaml' 2>/dev/null; \
then python=$(PYTHON); else $(MAKE) venv; python=$(BIN)/python; fi; \
set -x; \
gpu=$$($$python -c 'from mirage_cli.target.gpus import find_target; print(find_target("auto").name)'); \
mkdir -p results/$$gpu;
endef

gpu: ## Run the tests that need a GPU, and the benchmark into results/
	@$(ON_GPU) \
	$$python -m pytest -m gpu; \
	$$python -m mirage_cli bench search_specs/*.yaml --against eager,compile,sdpa \
		--json results/$$gpu/bench.json --markdown results/$$gpu/README.md

models: ## Tune 100 model-like programs, the large problems and PyTorch modules on this GPU, into results/ (an hour)
	@$(ON_GPU) \
	failed=; \
	$$python -m tools.models results/$$gpu/models.md || failed=1; \
	$$python -m tools.large_problems results/$$gpu/large_problems.md || failed=1; \
	$$python -m tools.backend results/$$gpu/backend.md || failed=1; \
	test -z "$$failed"

study: $(STAMP) ## Compare the cost model with what the H200 measured, into results/
	$(BIN)/python -m tools.study --drawn tests/data/h200_sample.json.gz \
		--tuned tests/data/h200_tuned.json.gz results/h200/cost_model.md

ablation: $(STAMP) ## Switch off pruning and algebra in turn, into results/
	$(BIN)/python -m tools.ablation results/ablation.md

random: $(STAMP) ## Run 2,000 random programs through search, verifier and interpreter, into results/ (hours)
	$(BIN)/python -m tools.sweep results/random.md

mutations: $(STAMP) ## Give the verifier 1,000 wrong μGraphs instead of 200
	MIRAGE_MUTATIONS=1000 $(PYTEST) tests/verify/test_reject.py

docs: $(STAMP) ## Build the pages of docs/ as HTML, into docs/_build/
	$(BIN)/python -c 'import furo, myst_parser' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build

language: $(STAMP) ## Write the tables of docs/language.md anew
	$(BIN)/python -m tools.language docs/language.md

clean: ## Remove all that the tasks above have made, results apart
	rm -rf $(VENV) .mirage build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
