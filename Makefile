# Needs only make and python3 (3.11 or newer, with venv); everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all lint format bench handler docs clean

# One line "driver version, compute capability" per NVIDIA GPU. A container may lack nvidia-smi and
# still have the GPU, or show its host's kernel module without having the GPU: hence /dev.
NVIDIA_SMI := nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader
MODULE := sed -n 's/^NVRM.*  \([0-9][0-9.]*\)  .*/\1, 7.5/p' /proc/driver/nvidia/version
GPUS := { $(NVIDIA_SMI) | grep '^[0-9]' || { ls /dev/nvidia[0-9]* >&2 && $(MODULE); }; } 2>/dev/null

# JAX's CUDA 13 wheels need driver 580 and compute capability 7.5, its CUDA 12 wheels driver 525.
# Of several GPUs, the one that can do least decides; sort puts it first.
CUDA := ($$1+0 >= 580 && $$2+0 >= 7.5) ? "cuda13" : ($$1+0 >= 525) ? "cuda12" : "cpu"
ifndef ACCELERATOR
  DETECTED := $(shell $(GPUS) | awk -F, '{ print $(CUDA) }' | sort | head -n 1)
  ACCELERATOR := $(or $(DETECTED),cpu)
endif
ifeq ($(filter cpu cuda12 cuda13,$(ACCELERATOR)),)
  $(error ACCELERATOR=$(ACCELERATOR) is not one of cpu, cuda12, cuda13)
endif

# Where there is no GPU, a process of tests for each core; on a GPU the first would take most of its memory.
WORKERS := $(if $(filter cpu,$(ACCELERATOR)),auto,0)

# Compiling is most of the time of the quick tests. There LLVM does not optimize, and XLA emits fusions without MLIR,
# whose passes take two thirds of a compilation. `make test-all` runs all tests on programs as users get them.
LESS := --xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters
QUICK_XLA := $(if $(filter cpu,$(ACCELERATOR)),$(LESS))

comma := ,
WHEELS := $(addprefix $(comma),$(filter cuda%,$(ACCELERATOR)))
CREATED := $(VENV)/.created-for-$(ACCELERATOR)
RUNNABLE := $(VENV)/.runnable
INSTALLED := $(VENV)/.installed

help:
	@echo 'make demo     solve a Poisson problem of a million unknowns, here and by SciPy: demo.png'
	@echo 'make test     run the quick tests       PYTEST_ARGS="-k cg" passes options to pytest'
	@echo 'make test-all run all tests: those and the deep ones'
	@echo 'make lint     ruff and pyright          make format lets ruff repair what it can'
	@echo 'make bench    time the products         BENCH_ARGS="--help" passes options to it'
	@echo 'make docs     build the site into build/docs/html'
	@echo 'make venv     only install into $(VENV)'
	@echo 'make clean    remove $(VENV) and caches'
	@echo
	@echo 'PYTHON=python3.12               the interpreter to build $(VENV) with; now $(PYTHON)'
	@echo 'ACCELERATOR=cpu|cuda12|cuda13   the JAX wheels to install; now $(ACCELERATOR)'

venv: $(INSTALLED)

demo: $(RUNNABLE)
	$(BIN)/jaxsparse demo --plot demo.png $(DEMO_ARGS)

test: $(INSTALLED)
	XLA_FLAGS="$(QUICK_XLA) $$XLA_FLAGS" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# pyproject.toml leaves the deep tests out by -m "not deep"; an empty -m takes them all.
test-all: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m '' $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks spmv $(BENCH_ARGS)

# What XLA calls on a CPU, as text for LLVM, without what depends on this machine or on Clang's version. Needs Clang 19.
HANDLER := jaxsparse_fmt/kernels/cpu/handler
HEADERS = $(shell $(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')
CLANG := clang-19 -O1 -fno-inline -fno-strict-aliasing -fno-stack-protector -fno-unwind-tables \
    -fno-asynchronous-unwind-tables -fno-discard-value-names -Wall -Wextra -S -emit-llvm -o -
ATTRIBUTES := noundef|nocapture|readonly|nonnull|unnamed_addr|local_unnamed_addr|dso_local|range\([^)]*\)|\#[0-9]+

handler: $(INSTALLED)
	echo "; of handler.c, BLAKE2b $$(b2sum -l 128 $(HANDLER).c | cut -d' ' -f1)" > $(HANDLER).ll
	$(CLANG) -I $(HEADERS) $(HANDLER).c | grep -v '^target\|^attributes\|^source_filename\|^;\|^!\|llvm.lifetime\|^$$' \
	    | sed -E 's/ ($(ATTRIBUTES))([ ,)]|$$)/\2/g; s/ ($(ATTRIBUTES))([ ,)]|$$)/\2/g; s/, !llvm.loop ![0-9]+//; s/ +; preds.*//' >> $(HANDLER).ll

# The site has an environment of its own, so that the tests' does not grow.
SITE := build/docs
SITE_INSTALLED := $(SITE)/.installed

# Its programs take little time to run, so XLA compiles them with less effort.
docs: $(SITE_INSTALLED)
	JAX_PLATFORMS=cpu XLA_FLAGS="$(LESS) $$XLA_FLAGS" $(SITE)/venv/bin/python docs/assemble.py $(SITE)/source
	$(SITE)/venv/bin/sphinx-build -W --keep-going -q -c docs $(SITE)/source $(SITE)/html
	$(SITE)/venv/bin/python docs/check_links.py $(SITE)/html
	@echo 'The site begins at $(SITE)/html/index.html'

$(SITE_INSTALLED): pyproject.toml
	$(PYTHON) -m venv --clear $(SITE)/venv
	$(SITE)/venv/bin/python -m pip install --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Wheels for different accelerators do not mix: a change of accelerator starts with an empty .venv.
$(CREATED):
	@$(PYTHON) -c '' || { echo 'No working $(PYTHON). Install Python 3.11 or newer, or name one:' \
	  'PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "$$($(PYTHON) -V 2>&1) is too old. Install 3.11 or newer, or name one:" \
	  'PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) lacks venv or' \
	  'ensurepip. On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@[ '$(DETECTED)' != cpu ] || echo 'The NVIDIA driver is older than 525, which JAX needs at' \
	  'least: installing for the CPU. After an update of the driver, run make again.'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# A stamp comes last, so that an interrupted installation is taken up again. The demo needs less than the tests.
$(RUNNABLE): $(CREATED) pyproject.toml
	@echo 'Installing jaxsparse with JAX for $(ACCELERATOR) into $(VENV)'
	$(BIN)/python -m pip install --editable '.[plot$(WHEELS)]'
	@touch $@

$(INSTALLED): $(RUNNABLE)
	$(BIN)/python -m pip install --editable '.[dev$(WHEELS)]'
	@touch $@
