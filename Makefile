# The verbs: each makes the environment it needs. PYTHON chooses the interpreter, VENV where the environment is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch first and alone: a range that another package asks for would otherwise bring gigabytes of CUDA libraries.
# --no-compile: Python compiles what is imported when it is imported; most of what is installed never is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Tests start several hundred processes; where bytecode may not be kept each of them would parse all of torch again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train test test-all pytest pytest-triton native bench lint links docs browser isaaclab physx clean

help:
	@echo "make train   set up and train a G1 for at most 12 minutes; the report is in runs/first-steps"
	@echo "make test    set up, lint, native tests, Python tests, Triton kernels in the interpreter"
	@echo "make test-all also what takes long: matrices of versions, loops in real time, sweeps"
	@echo "make bench   benchmark the kernels against eager torch, torch.compile and the GEMMs alone"
	@echo "make lint    ruff and mypy"
	@echo "make browser install Chromium for the viewer's test, as root on Debian or Ubuntu; make test tries it by itself"
	@echo "make isaaclab fetch Isaac Lab's sources for the checks of its engine (Python 3.11); make test tries it by itself"
	@echo "make physx   Isaac Lab's engine on NVIDIA's PhysX on a CPU, and its checks; asks you to accept NVIDIA's licence first"
	@echo "make docs    build the site of the documentation, with the API reference, into build/site; warnings are errors"

# The native extension, in place, is compiled while packages are fetched and unpacked: .tools is what compiling needs.
# Compilers are nice to pip, which has one core at most and which everything else waits for.
PARALLEL := --no-print-directory --jobs=3 --output-sync=target
SOURCES := setup.py CMakeLists.txt $(wildcard csrc/*.h csrc/*.cpp csrc/cpu/* csrc/cuda/*)
$(VENV)/.ready: constraints.txt pyproject.toml $(SOURCES)
	@$(MAKE) $(PARALLEL) $(VENV)/.packages $(VENV)/.native
	@touch $@

$(VENV)/.tools: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) setuptools pybind11 cmake ninja
	@touch $@

$(VENV)/.packages: $(VENV)/.tools pyproject.toml setup.py
	$(PIP) torch
	P3_NATIVE=off $(PIP) --no-build-isolation -e ".[dev]"
	@touch $@

# What the compilers say is shown where they fail. Ninja is not told of make's jobs, whose pipe it does not get.
$(VENV)/.native: $(VENV)/.tools $(SOURCES)
	PATH="$(abspath $(BIN)):$$PATH" MAKEFLAGS= P3_REQUIRE_NATIVE=1 nice $(BIN)/python setup.py --quiet build_ext --inplace \
	  >$(VENV)/native.log 2>&1 || { cat $(VENV)/native.log; exit 1; }
	@touch $@

# A first run, short enough to watch. Longer: p3 train --help.
RUN ?= runs/first-steps
train: $(VENV)/.ready
	@if [ -e $(RUN)/config.json ]; then \
	  $(BIN)/p3 train --run-dir $(RUN) --resume; \
	else \
	  $(BIN)/p3 train --task g1-flat --iterations 390 --max-minutes 12 --run-dir $(RUN); \
	fi

# On WORKERS processes, each file in one of them but for the last ones. passive: spinning OpenMP threads make small tests
# very slow where other processes share the cores.
WORKERS ?= 2
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q --dist worksteal
test:
	@$(MAKE) $(PARALLEL) $(VENV)/.packages $(VENV)/.native $(VENV)/.imported browser native isaaclab lint links
	@$(MAKE) --no-print-directory --jobs=2 pytest pytest-triton

# Side by side: tests of processes mostly wait, and the interpreter never does. What it says is shown when it has ended.
pytest:
	$(PYTEST) -n $(WORKERS) --ignore=tests/triton
pytest-triton:
	@TRITON_INTERPRET=1 $(PYTEST) -n $$((($(WORKERS) + 1) / 2)) tests/triton >$(VENV)/triton.log 2>&1; \
	code=$$?; cat $(VENV)/triton.log; exit $$code

# Python compiles here what tests import, once, beside the compilers; or each of their processes would do it at its start.
$(VENV)/.imported: $(VENV)/.packages
	@$(BIN)/python -m pytest -q --collect-only tests >$(VENV)/imported.log 2>&1 || { cat $(VENV)/imported.log; exit 1; }
	@touch $@

# The native code that tests execute, with sanitizers and the CUDA shim.
native: native-address native-thread native-cuda_shim
native-%: $(VENV)/.tools
	MAKEFLAGS= nice $(BIN)/python tests/helpers/native_build.py $*

# What takes many minutes, marked `sweep`: matrices of versions, loops in real time, long sweeps.
test-all: test
	P3_TEST_ALL=1 $(PYTEST) -n $(WORKERS) -m sweep --ignore=tests/triton
	P3_TEST_ALL=1 TRITON_INTERPRET=1 $(PYTEST) -n $(WORKERS) -m sweep tests/triton
	$(BIN)/python tools/triton_versions.py oldest newest --arch sm_90

bench: $(VENV)/.ready
	$(BIN)/p3 bench

lint: $(VENV)/.packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Every link, heading and file that the pages name exists: the part of `make docs` that needs no mkdocs.
links: $(VENV)/.tools
	$(BIN)/python tools/check_links.py

# An environment of its own: the pages are made from sources, without importing them, and need nothing else.
$(VENV)-docs/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  "mkdocs" "mkdocs-material" "mkdocstrings[python]" "ruff"
	@touch $@

# Not --quiet: it would take away the warnings that --strict counts.
docs: $(VENV)-docs/.ready
	$(VENV)-docs/bin/python tools/check_links.py
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict
	@echo "build/site/index.html"

# The page of `p3 play` is tested in a real browser where there is one. Never a reason to fail: without it, without root
# or without a network that test is skipped and says so. P3_BROWSER=no leaves the machine as it is.
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$(P3_BROWSER)" != no ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Chromium for the test of the viewer's page"; \
	  (timeout 60 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -qq -y \
	    --no-install-recommends chromium) >/dev/null 2>&1 || echo "could not: that test will be skipped"; \
	else echo "no Chromium: the test of the viewer's page will be skipped"; fi

# Isaac Lab's sources, without Isaac Sim and without their dependencies, for tests/trainer/engines/test_isaaclab.py. Never a reason to
# fail: where they cannot be had, those tests are skipped and say so.
isaaclab: $(VENV)/isaaclab/.ready
$(VENV)/isaaclab/.ready: tests/trainer/engines/isaaclab_checks/requirements.txt | $(VENV)/.tools
	@echo "fetching Isaac Lab's sources for the checks of its engine"
	@rm -rf $(VENV)/isaaclab
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target $(VENV)/isaaclab -r $< \
	  >$(VENV)/isaaclab.log 2>&1; then touch $@; \
	else rm -rf $(VENV)/isaaclab; echo "could not (see $(VENV)/isaaclab.log): those tests will be skipped"; fi

# Isaac Lab on NVIDIA's standalone PhysX, on a CPU. Not part of anything else: NVIDIA's licence is the user's to accept.
define OMNIVERSE_LICENCE
make physx fetches ovphysx 0.4.13, 185 MB, into $(VENV)/physx. It is NVIDIA's and not free software: its LICENSE.txt names
  https://www.nvidia.com/en-us/agreements/enterprise-software/nvidia-software-license-agreement/
  https://www.nvidia.com/en-us/agreements/enterprise-software/product-specific-terms-for-omniverse
and says "By downloading or using ovphysx, you agree to the NVIDIA Omniverse terms." It is never redistributed here. Read
them, also for what they say about publishing results (docs/engines.md). If you agree:
  make physx P3_ACCEPT_OMNIVERSE_LICENSE=yes
endef
export OMNIVERSE_LICENCE
physx: $(VENV)/.ready
	@if [ "$(P3_ACCEPT_OMNIVERSE_LICENSE)" != yes ]; then echo "$$OMNIVERSE_LICENCE" >&2; exit 1; fi
	@$(MAKE) --no-print-directory isaaclab $(VENV)/physx/.ready
	$(BIN)/python tests/trainer/engines/physx_checks/run.py
$(VENV)/physx/.ready: tests/trainer/engines/physx_checks/requirements.txt
	@rm -rf $(VENV)/physx
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/physx -r $<
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info p3kernels/*.so
