# The front door: every target installs what it needs, builds, runs. See README.md for the list.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
PYTHON ?= python3
SINCE ?= $(shell git rev-parse -q --verify origin/main >/dev/null && echo origin/main || echo HEAD~1)
# Where the CUDA packages put nvcc without telling the shell.
export PATH := $(PATH):/usr/local/cuda/bin
BUILD = cmake --build --preset

.DEFAULT_GOAL := build
.PHONY: build build-all test quick check cuda gpu-test demo dist soak clients wheel wheel-check page bench fuzz oracle shared-check install clean format tidy \
        deps deps-check deps-fuzz deps-page deps-wheel configure-% check-format check-layers check-docs

# One dpkg-query: quick when nothing is missing.
deps:
	@tools/install_deps.sh build
deps-check:
	@tools/install_deps.sh build check
deps-fuzz:
	@tools/install_deps.sh build fuzz
deps-page:
	@tools/install_deps.sh build page
deps-wheel:
	@tools/install_deps.sh build wheel

# Ninja itself notices changed CMakeLists; the presets are ours to watch.
%/build.ninja: CMakePresets.json
	cmake --preset $(if $(filter build,$*),release,$(patsubst build-%,%,$*))
	@touch $@

build: deps
	@$(MAKE) -s --no-print-directory build/build.ninja
	$(BUILD) release -j $(JOBS) --target dsmoe

# Tests, fuzz targets' replay and benches too.
build-all: deps
	@$(MAKE) -s --no-print-directory build/build.ninja
	$(BUILD) release -j $(JOBS)

test: build-all
	ctest --preset release

# While working: unit tests, and the ops on this machine's best tier alone.
quick: deps
	@$(MAKE) -s --no-print-directory build/build.ninja
	$(BUILD) release -j $(JOBS) --target tests_unit ops_test
	ctest --test-dir build -L '^unit$$' -j $(JOBS) --output-on-failure
	DSMOE_QUICK=1 build/tests/ops/ops_test --gtest_brief=1

check-format: deps-check
	tools/check_format.sh

check-layers: deps-check
	tools/check_layers.py --self-test
	tools/check_layers.py

check-docs: deps-check
	tools/check_docs.py --self-test
	tools/check_docs.py

check: check-format check-layers check-docs
	@$(MAKE) -s --no-print-directory build-debug/build.ninja
	$(BUILD) debug -j $(JOBS)
	ctest --preset debug

cuda: deps
	@tools/need.sh cuda nvcc "the CUDA 13 toolkit (nvcc) is not installed or not in PATH"
	@$(MAKE) -s --no-print-directory build-cuda/build.ninja
	$(BUILD) cuda -j $(JOBS) --target gpu_targets

# Needs a GPU. The tests of programs that know CUDA; what runs on a CPU is tested by `make test`.
gpu-test: cuda
	ctest --test-dir build-cuda -L '^gpu$$' --output-on-failure
	ctest --test-dir build-cuda -LE '^(gpu|soak)$$' -R '[cC]uda' --output-on-failure

demo: build
	tools/demo.sh

# Training on ranks: threads, processes of mpirun, and what happens to those that are killed or frozen.
dist: build
	@tools/need.sh dist mpirun "Open MPI (Debian: openmpi-bin, and libopenmpi-dev before the build)"
	tests/train/ranks_command_test.sh build/dsmoe whole

# Stops and kills of training runs, load on the server (its figures at the end), then ThreadSanitizer over the quick suite
# (abuse included) and over half a minute of load.
soak: build-all
	ctest --test-dir build -L soak --output-on-failure
	@grep '^soak:' build/Testing/Temporary/LastTest.log
	@$(MAKE) -s --no-print-directory build-tsan/build.ninja
	$(BUILD) tsan -j $(JOBS)
	ctest --preset tsan
	DSMOE_SOAK_SECONDS=30 TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build-tsan -R '^(Soak\.|serve_attack$$)' --output-on-failure

clients: build
	PYTHON=$(PYTHON) tests/clients/run.sh

# dist/*.whl; scikit-build-core and nanobind come from PyPI, into environments under build/.
wheel: deps
	PYTHON=$(PYTHON) JOBS=$(JOBS) python/make_wheel.sh

# Each wheel in an empty environment: tests, import time, size, old processors. EXTRAS=1: with PyTorch and transformers.
wheel-check: deps-wheel wheel
	PYTHON=$(PYTHON) python/check_wheel.sh

# The page in headless Chromium, against a mock and against the server.
page: deps-page build
	tests/web/run.sh

bench: build
	bench/run.sh

fuzz: deps-fuzz
	@$(MAKE) -s --no-print-directory build-fuzz/build.ninja
	$(BUILD) fuzz -j $(JOBS) --target fuzz_targets
	tools/fuzz.sh $(FUZZ_SECONDS)

oracle:
	PYTHON=$(PYTHON) oracle/run.sh

shared-check: build-all
	@tools/need.sh shared-check ../shared "there is no ../shared folder beside this checkout"
	tests/shared/run.sh ../shared

install: build
	cmake --install build --prefix "$(PREFIX)"

format: deps-check
	tools/check_format.sh --fix

# What differs from SINCE (origin/main, or the last commit where there is none); `make tidy ALL=1`: everything.
tidy: deps-check build
	tools/tidy.sh $(if $(ALL),--all,--since $(SINCE))

clean:
	rm -rf build build-debug build-tsan build-cuda build-fuzz build-wheel-* dist
