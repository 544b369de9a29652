# The two main commands are `make run` (from nothing to measured sharding plans) and `make test` (every check).
# Both set up .venv if it does not exist or is out of date. If the package index offers only CUDA builds of torch, avoid
# downloading them: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make run

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENV ?= base
TEST_WORKERS ?= logical
# The environment cuda needs the CUDA builds of torch and FBGEMM, all others the CPU builds. Each kind has its own virtual
# environment, because the two builds of FBGEMM install a module of the same name.
EXTRA := $(if $(filter cuda,$(ENV)),cuda,cpu)
VENV := .venv$(if $(filter cuda,$(EXTRA)),-cuda)
BIN := $(VENV)/bin
BENCHES := bench-cost-models bench-comm-models bench-search bench-two-hosts
# Where the environment keeps its data: conf/<env>/globals.yml
DATA = $(shell sed -n 's/^data_root: *//p' conf/$(ENV)/globals.yml)
# The newest version of a model, which is a timestamp; empty if there is no version.
newest = $$(ls $(DATA)/06_models/$(1) 2>/dev/null | tail -1)
ifeq ($(wildcard conf/$(ENV)),)
$(error ENV=$(ENV): there is no folder conf/$(ENV); use one of $(filter-out logging.yml local test,$(notdir $(wildcard conf/*))))
endif
ifeq ($(filter same-results,$(MAKECMDGOALS))$(BEFORE),same-results)
$(error BEFORE is missing; name the commit to compare with, as in: make same-results BEFORE=HEAD~1)
endif
comma := ,
# The folders of data/, and of data/<environment>/, that runs write.
LAYERS := 02_intermediate 03_primary 04_feature 06_models 07_model_output 08_reporting
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export KEDRO_DISABLE_TELEMETRY := 1
# With this variable set, each of the many processes of a run or a test would compile again what `install` has not
# compiled, or what has changed since.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run announce test test-kernels bench viz docs docs-serve lint types contracts unit check-pool fit-network gpu-check gpu-campaign same-results shipped-models clean help $(BENCHES)

help:
	@echo "make run    set up, measure this machine, train cost models, search plans, write the report;"
	@echo "            make run ENV=thorough measures more and extends what make run has measured;"
	@echo "            make run ENV=cuda measures this machine's GPUs, with the CUDA builds in .venv-cuda"
	@echo "make test   set up, lint, types, import contracts, tests"
	@echo "make test-kernels  the tests of predictions and searches with the arithmetic of other processors"
	@echo "make bench  all sharders on the same tasks, compared by measured cost (trains cost models first if there are none)"
	@echo "make docs   the documentation, into site/ (make docs-serve: on http://127.0.0.1:8000)"
	@echo "make viz    the lineage in kedro-viz, on http://127.0.0.1:4141"
	@echo "make gpu-check  one minute on a machine with a GPU: a table of what works there, with remedies"
	@echo "make clean  empty the folders that runs of any environment write: 02_intermediate to 08_reporting (01_raw stays)"

# On a GPU, the checks of the machine come first; exit code 2 means that no campaign can run.
run: announce $(VENV)/.run
	$(if $(filter cuda,$(EXTRA)),PYTHONPATH=src $(BIN)/python benchmarks/gpu/gpu_check.py || test $$? -eq 1)
	$(BIN)/kedro run --env $(ENV)

# The first line of `make run`: how long it takes on this machine.
announce:
	@$(PYTHON) src/neuroshard_pipeline/duration.py $(ENV)

# ruff's answer comes at once; the other checks fill the time in which tests wait for processes.
test: $(VENV)/.test lint
	@$(MAKE) --no-print-directory --jobs unit types contracts

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

contracts: $(VENV)/.test
	$(BIN)/lint-imports

# One worker per core, or TEST_WORKERS=<number>, but at most 8. The tests of a file run on one worker, which sets up
# their common fixtures once.
unit: $(VENV)/.test
	$(BIN)/pytest --numprocesses $(TEST_WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations 10

# Processors differ in the last bits of a result. Each combination of environment variables, joined by +, makes OpenBLAS,
# torch, MKL and NumPy compute as on another processor, with one thread or two. Only some processors have AVX-512.
KERNELS := TEST_THREADS=1 TEST_THREADS=2+OPENBLAS_CORETYPE=Haswell+ATEN_CPU_CAPABILITY=avx2+MKL_CBWR=AVX2 \
	TEST_THREADS=1+OPENBLAS_CORETYPE=Sandybridge+ATEN_CPU_CAPABILITY=avx2+MKL_CBWR=AVX+NPY_DISABLE_CPU_FEATURES=X86_V3 \
	TEST_THREADS=1+OPENBLAS_CORETYPE=Nehalem+ATEN_CPU_CAPABILITY=default+MKL_CBWR=COMPATIBLE \
	$(if $(shell grep -sw avx512f /proc/cpuinfo),TEST_THREADS=1+OPENBLAS_CORETYPE=SkylakeX+ATEN_CPU_CAPABILITY=avx512)
NUMERIC := $(addprefix tests/,augment cost_models evaluation lab report search sharders tables torchrec_plan)
test-kernels: $(VENV)/.test
	@for kernels in $(KERNELS); do echo "$$kernels"; \
		env $$(echo $$kernels | tr + ' ') $(BIN)/pytest -q -n $(TEST_WORKERS) --dist loadfile $(NUMERIC) || exit 1; done

# The suites have tasks for more ranks than most machines have cores. Their ranks are virtual unless ENV=... is given, and
# the cost models predict the same network that steps are measured with. One rival is TorchRec's planner, which
# .venv/.test and .venv/.run install. An interrupted benchmark resumes.
ifeq ($(origin ENV),file)
bench: ENV = virtual
endif
bench: $(VENV)/.test
	@test "$(call newest,compute_cost_model)" || $(BIN)/kedro run --env $(ENV) --pipeline pretrain
	@test "$(call newest,dreamshard_policy)" \> "$(call newest,compute_cost_model)" || \
		$(BIN)/kedro run --env $(ENV) --pipeline train_policies
	$(BIN)/kedro run --env $(ENV) --pipeline benchmark $(if $(BENCH),--params $(BENCH))

# With --strict, a broken link or an undocumented name ends the build. docs/reference/parameters.md is generated, not committed.
docs: $(VENV)/.docs
	$(BIN)/python scripts/parameter_reference.py docs/reference/parameters.md
	$(BIN)/zensical build --clean --strict

docs-serve: docs
	$(BIN)/zensical serve

viz: $(VENV)/.run
	$(BIN)/kedro viz run --no-browser --host 127.0.0.1 --port 4141

# With one thread, this benchmark compares the searches and not the threads of the linear algebra library.
bench-search: export OMP_NUM_THREADS := 1

$(BENCHES): bench-%: $(VENV)/.run
	$(BIN)/python benchmarks/*/bench_$(subst -,_,$*).py

check-pool: $(VENV)/.run
	$(BIN)/python benchmarks/tables/check_table_pool.py

# With LOG=<output of nccl-tests> it prints one preset of a modelled network, without LOG all presets.
fit-network: $(VENV)/.run
	@$(BIN)/python scripts/fit_network.py $(LOG) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(COLLECTIVE),--collective $(COLLECTIVE))

# Both targets use the Python that PYTHON=... names, else that of .venv-cuda, else the Python at hand. It needs the CUDA
# builds of torch and fbgemm_gpu; see benchmarks/gpu/gpu_campaign.py.
GPU_PYTHON = $(if $(findstring command,$(origin PYTHON)),$(PYTHON),$(or $(wildcard .venv-cuda/bin/python),$(PYTHON)))
gpu-check:
	@PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu/gpu_check.py $(CHECK)

gpu-campaign:
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu/gpu_campaign.py $(CAMPAIGN)

# This stamp is written last, because an interrupted `venv` leaves a bin/python without pip.
$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "No python3 on the PATH; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}; name one with PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# Installs extras, and compiles their modules on all cores, where pip would use one. A few files of other packages are
# templates that do not compile. A run or a test imports hardly any of the modules that are left out.
UNCOMPILED := /(tests?|networkx|numba/cuda|plotly/(graph_objs|validators)|pygments/lexers|ray/(data|llm|rllib|serve|train|tune)|setuptools|sympy/(physics|stats)|torch/(_inductor|testing)|torchmetrics|mypyc?|debugpy|pip)/
define install
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$(1)]'
	@$(BIN)/python -m compileall -qq -x '$(UNCOMPILED)' -j 0 $(VENV)/lib src benchmarks > /dev/null 2>&1 || true
endef

# torchrec depends on the CUDA build of FBGEMM, whose files would overwrite those of the CPU build.
install_torchrec = $(BIN)/python -m pip install --quiet --no-deps torchrec

$(VENV)/.run: constraints.txt pyproject.toml | $(VENV)/.created
	@echo "Installing into $(VENV), with TorchRec (a minute or two) ..."
	$(call install,$(EXTRA)$(comma)torchrec)
	$(install_torchrec)
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	@echo "Installing the documentation tools into $(VENV) ..."
	$(call install,$(EXTRA)$(comma)torchrec$(comma)docs)
	@touch $@

# All extras in one call, so that pip resolves the versions once.
$(VENV)/.test: constraints.txt pyproject.toml | $(VENV)/.created
	@echo "Installing into $(VENV), with TorchRec, Ray and the development tools (two minutes) ..."
	$(call install,$(EXTRA)$(comma)torchrec$(comma)cluster$(comma)dev$(comma)docs)
	$(install_torchrec)
	@touch $(VENV)/.run $(VENV)/.docs $@

clean:
	@$(PYTHON) scripts/clean.py $(foreach layer,$(LAYERS),$(wildcard data/$(layer) data/*/$(layer)))

# Trains the cost models that the package ships for the modelled GPUs (conf/a100, conf/h100, conf/h200).
shipped-models: $(VENV)/.run
	for gpu in a100 h100 h200; do $(BIN)/kedro run --env $$gpu --pipeline pretrain && \
		$(BIN)/python scripts/ship_models.py $$gpu || exit 1; done

# Checks that predictions and plans are bit-identical to those of the commit BEFORE.
same-results: $(VENV)/.test
	rm -rf .same-results && git worktree prune && git worktree add --detach .same-results $(BEFORE)
	PYTHONPATH=.same-results/src $(BIN)/python benchmarks/search/same_results.py record .same-results/before.json
	$(BIN)/python benchmarks/search/same_results.py record .same-results/after.json
	$(BIN)/python benchmarks/search/same_results.py compare .same-results/before.json .same-results/after.json
