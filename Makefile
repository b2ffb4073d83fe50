# What you can make here. `make demo` and `make test` set everything up by themselves.
#
# VENV is the virtual environment that is made and used; PYTHON makes it (3.11 or newer).
# JAX=newest, or a version as JAX=0.11.2, takes that jax, and flax to fit, in place of those in constraints.txt.

PYTHON ?= python3
JAX ?= constrained
OTHER_JAX := $(filter-out constrained,$(JAX))
VENV ?= .venv$(addprefix -jax-,$(OTHER_JAX))
PINS := $(if $(OTHER_JAX),$(VENV)/constraints.txt,constraints.txt)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SPREAD := -n auto --dist worksteal --durations=40 --reruns 1
PYTEST := $(BIN)/python -m pytest $(SPREAD)
unexport PYTHONDONTWRITEBYTECODE  # what one process compiles serves the next
PLUGINS := attention audio cpu gpu tpu trainium vision
SOURCES := pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)

COMPILERS := $(VENV)-compilers
PARITY := $(VENV)-parity
AOT_TARGETS ?= tpu-v5e-256 gpu-h100-8

.PHONY: help demo test test-slow test-long harm gate gate-all compile compile-all aot parity parity-gguf fmt lint types docs dist notebooks bench bench-gpu reliability clean

help:  ## Show what can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo  ## Train a small transformer on real text, then sample from it.
	@echo "== axcore train tiny: stop it with Ctrl-C, and 'make demo' resumes it"
	@$(BIN)/axcore train tiny

test: $(VENV)/.test  ## Run the suite, but for what the targets below run.
	@echo "== pytest: the suites of axcore and of the plugins"
	@$(PYTEST) -m "not slow and not long and not gate and not compile and not parity"

test-slow: $(VENV)/.test  ## Run the tests that take longer; PART=1/3 runs a third of them.
	@echo "== pytest: the tests marked slow$(PART:%=, part %)"
	@$(PYTEST) -m "slow and not long and not parity" $(PART:%=--part %)

harm: $(VENV)/.test  ## Run every escape, hostile request, hostile file and broken plugin, and print how many are bounded.
	@echo "== pytest: programs that models wrote, requests, files and plugins that mean harm"
	@$(PYTEST) -m "not long" tests/sandbox tests/serving/test_hostile_requests.py tests/interop/test_tensor_files.py \
		tests/plugins/test_broken_plugins.py tests/testing/test_planted_bugs.py

test-long: $(VENV)/.test  ## Run what is left of sweeps of which the others run a sample.
	@echo "== pytest: the tests marked long"
	@$(PYTEST) -m "long and not parity"

gate: $(VENV)/.test  ## Hold features to what they may cost in lines of code, in 64 models.
	@echo "== axcore loc: what each feature costs in 8 models of 8 variants"
	@$(BIN)/axcore loc --models 8 --variants 8 --check --markdown > $(VENV)/loc-table.md
	@sed 's/ 64 of 64 / 256 of 256 /' $(VENV)/loc-table.md | diff docs/loc-table.md - || (echo "docs/loc-table.md is not up to date: make gate-all"; exit 1)
	@echo "== pytest: every feature in two families on every target"
	@$(PYTEST) -m "gate and not long" tests/complexity

gate-all: $(VENV)/.test  ## The same in 256 models and in every family, and the table of docs/ again.
	@echo "== axcore loc: what each feature costs in 16 models of 16 variants"
	@$(BIN)/axcore loc --models 16 --variants 16 --check --markdown > docs/loc-table.md
	@git diff --exit-code docs/loc-table.md || (echo "docs/loc-table.md was not up to date: look at it, and commit it"; exit 1)
	@echo "== pytest: every feature in every family on every target"
	@$(PYTEST) -m gate tests/complexity

parity: $(PARITY)/.done  ## Compare models with transformers: logits, losses, gradients, greedy text, both ways; PART as above.
	@echo "== pytest: the tests marked parity, in an environment with torch and transformers"
	@$(PARITY)/bin/python -m pytest $(SPREAD) -m parity $(PART:%=--part %) tests/parity

parity-gguf: $(PARITY)-gguf/.done  ## Compare models with llama.cpp, which it compiles first: logits, greedy text, tokens.
	@echo "== pytest: the tests marked parity of files for llama.cpp"
	@$(PARITY)-gguf/bin/python -m pytest $(SPREAD) -m parity tests/parity_gguf

compile: $(COMPILERS)/.done  ## Compile what changed of kernels and train steps for accelerators that you do not have.
	@echo "== pytest: the tests marked compile without a receipt that holds, each target in a process of its own"
	@$(COMPILERS)/bin/python -m axcore.testing.compile_tests plugins

compile-all: $(COMPILERS)/.done  ## Compile all of them, and take no receipt.
	@echo "== pytest: the tests marked compile, each target in a process of its own"
	@$(COMPILERS)/bin/python -m axcore.testing.compile_tests --all plugins

aot: $(COMPILERS)/.done  ## Compile Llama 2 for accelerators that you do not have, and report what it needs.
	@echo "== axcore aot llama2-7b, two at a time: $(AOT_TARGETS)"
	@printf '%s\n' $(AOT_TARGETS) | xargs -P 2 -I TARGET $(COMPILERS)/bin/python -m axcore aot llama2-7b --target TARGET

fmt: $(VENV)/.test  ## Format the code, and write generated pages and the map again.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python -m axcore.plugins.generate
	@$(BIN)/python -m axcore.cli.kernel_reference
	@$(BIN)/python tools/draw_map.py
	@$(BIN)/python tests/support/broken_plugins_page.py

PROSE := axcore plugins docs tests benchmarks examples tools .ci Makefile mkdocs.yml $(wildcard *.md *.toml *.py)

lint: $(VENV)/.test  ## Check format, style, spelling and words.
	@echo "== ruff"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "== codespell, and the words of tools/words.toml"
	@$(BIN)/codespell $(filter-out tests,$(PROSE))
	@$(BIN)/codespell --ignore-words tools/misspelt_on_purpose.txt tests
	@$(BIN)/python tools/check_words.py

types: $(VENV)/.test  ## Check types.
	@echo "== mypy --strict"
	@$(BIN)/mypy

ON_A_GPU := $(wildcard benchmarks/gpu_kernels.py benchmarks/gpu_correctness.py benchmarks/gpu_block_sizes.py benchmarks/gpu_train_step.py)
COMPILING := $(wildcard benchmarks/aot*.py benchmarks/scaling.py benchmarks/tpu_*.py benchmarks/gpu_loss_memory.py)
DISASSEMBLING := $(wildcard benchmarks/gpu_sass.py)

docs: $(VENV)/.docs  ## Build the documentation site in site/.
	@echo "== mkdocs build: warnings are errors"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "$(BIN)/python -m http.server -d site 8000   shows it at http://localhost:8000"

dist: $(VENV)/.test  ## Build wheels and sdists of axcore and the plugins in dist/, from the commit that is checked out.
	@$(BIN)/python tools/build_distributions.py dist

notebooks: $(VENV)/.test  ## Execute the notebooks of docs/notebooks again, and keep what they print.
	@$(BIN)/python tools/notebooks.py

bench: $(VENV)/.test $(COMPILERS)/.done  ## Run the benchmarks that need no accelerator; results go to benchmarks/results.
	@for file in $(filter-out $(ON_A_GPU) $(COMPILING) $(DISASSEMBLING),$(wildcard benchmarks/[a-z]*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	@for file in $(COMPILING) $(if $(shell command -v nvdisasm),$(DISASSEMBLING)); do echo "== $$file"; $(COMPILERS)/bin/python $$file || exit 1; done

reliability: $(VENV)/.test  ## Run the long form of every promise of docs/reliability.md, and write its table. About six hours.
	@for file in $(filter-out %/table.py,$(wildcard benchmarks/reliability/[a-z]*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	@$(BIN)/python benchmarks/reliability/table.py

bench-gpu: $(VENV)/.test  ## Run the benchmarks of kernels and train steps on a GPU, JAX for it installed.
	@PYTHON=$(abspath $(BIN))/python benchmarks/gpu/run.sh

clean:  ## Remove what was made here, but for the runs.
	rm -rf .venv .venv-* build site dist *.egg-info plugins/*/*.egg-info .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "axcore needs Python 3.11 or newer, this is %d.%d; try: make PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip
	@grep -vE '^(jax(lib|-cuda.*)?|libtpu|flax)==' constraints.txt > $(VENV)/constraints.txt
	@printf '%s' '$(addprefix jax==,$(filter-out newest,$(OTHER_JAX)))' >> $(VENV)/constraints.txt

$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	@echo "== installing axcore and axl-attention (a minute or so)"
	@$(PIP) install -c $(PINS) -e . -e plugins/axl_attention
	@touch $@

$(VENV)/.test: $(SOURCES) | $(BIN)/python
	@echo "== installing axcore with its test extras, and the plugins: $(PLUGINS) (a minute or two)"
	@$(PIP) install -c $(PINS) -e '.[test]' $(foreach name,$(PLUGINS),-e plugins/axl_$(name))
	@touch $@

$(VENV)/.docs: $(SOURCES) | $(BIN)/python
	@echo "== installing axcore with what builds its documentation (a minute or so)"
	@$(PIP) install -c $(PINS) -e '.[docs]'
	@touch $@

# Three environments see what the suite's own has, and add to it: nothing is installed twice, and nothing
# is written outside of their folders, so that other work runs meanwhile.
define ON_TOP_OF_TEST
@$(PYTHON) -m venv --clear --without-pip $(@D)
@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$(echo $(@D)/lib/python*/site-packages)/suite.pth
endef
ON_TOP_PIP = $(@D)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile

$(PARITY)/.done: $(VENV)/.test tests/parity/torch.txt
	@echo "== installing torch and transformers in $(@D) (4 GB, several minutes)"
	$(ON_TOP_OF_TEST)
	@$(ON_TOP_PIP) --no-deps -r tests/parity/torch.txt
	@$(ON_TOP_PIP) -c $(PINS) 'transformers==5.23.0' 'wandb==0.31.0' 'mlflow-skinny==3.17.2' 'lm_eval[api]==0.4.13' 'langchain-openai==1.7.3' 'litellm==1.83.0' filelock fsspec jinja2 networkx psutil sympy
	@touch $@

$(PARITY)-gguf/.done: $(VENV)/.test
	@echo "== compiling llama.cpp in $(@D) (8 minutes of one processor)"
	$(ON_TOP_OF_TEST)
	@CMAKE_ARGS="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF" $(ON_TOP_PIP) -c $(PINS) 'llama-cpp-python==0.3.36'
	@touch $@

$(COMPILERS)/.done: $(VENV)/.test
	@echo "== installing the compilers for TPUs and GPUs in $(@D) (2 GB, a few minutes)"
	$(ON_TOP_OF_TEST)
	@$(ON_TOP_PIP) -c $(PINS) 'axl-gpu[aot]' 'axl-tpu[aot]'
	@touch $@
