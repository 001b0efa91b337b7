# The front door. CMakePresets.json has the builds behind these targets.
JOBS ?= $(shell nproc)
PYTHON ?= /usr/bin/python3
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# $(call build,preset[,targets[,options]])
define build
	@echo "building build/$(1)"
	@mkdir -p build/$(1)
	@cmake --preset $(1) $(3) >build/$(1)/configure.log 2>&1 || { cat build/$(1)/configure.log; exit 1; }
	@deploy/build.sh cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2))
endef

# $(call check,preset): every test, then what ran, what was skipped and why.
define check
	@ctest --preset $(1) -j $(JOBS) --no-label-summary --output-junit $(CURDIR)/build/$(1)/ctest.xml \
	   --test-output-size-passed 1000000 --test-output-size-failed 1000000; status=$$?; \
	 $(PYTHON) -B tests/checks/summary.py build/$(1)/ctest.xml || status=1; \
	 exit $$status
endef

.PHONY: demo
demo: ## train on real data through a daemon of its own, for each hook
	@deploy/install-packages.sh build
	$(call build,release,,-DGRADWIRE_CUDA=OFF)
	@client/examples/demo.sh build/release

.PHONY: test
test: ## build and run every test
	@deploy/install-packages.sh build test parity python
	$(call build,dev,,-DGRADWIRE_CUDA_ARCHITECTURES=90 $$(client/python/make-venv.sh build/venv))
	$(call check,dev)

.PHONY: test-torch
test-torch: ## the Python tests with the current torch, accelerate and lightning (gigabytes from PyPI)
	@deploy/install-packages.sh build python
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) client/python/test-torch.sh build/venv-torch

.PHONY: test-asan test-tsan
test-asan test-tsan: test-%: ## the tests under the address and undefined-behaviour, or the thread sanitizer
	@deploy/install-packages.sh build test parity
	$(call build,$*)
	$(call check,$*)

.PHONY: test-cuda
test-cuda: ## compile the CUDA library for all GPUs with the compiler that PyPI has; its tests that need no GPU
	@deploy/install-packages.sh build test python
	$(call build,cuda,gradwire_cuda cuda_emulation_test cuda_device_test cuda_library_test cuda_hooks_test,-DGRADWIRE_NVCC=$$(deploy/cuda-toolkit.sh build/cuda-toolkit))
	@ctest --preset cuda -L cuda -j $(JOBS) --no-label-summary

.PHONY: test-page
test-page: ## the status page in headless Chromium; build/page has screenshots
	@deploy/install-packages.sh build test browser
	$(call build,dev,gradwired gradwire_test_member)
	@$(PYTHON) -B tests/page/check_page.py build/dev/bin build/page

.PHONY: test-attacks
test-attacks: ## attack a daemon while a session trains: its memory, its step times (needs root; 9 minutes on an idle machine)
	@deploy/install-packages.sh build test
	$(call build,dev,gradwired gradwire_test_member)
	@$(PYTHON) -B tests/attacks/check_attacks.py build/dev/bin $(ATTACKS)

.PHONY: chaos
CHAOS_MINUTES ?= 10
chaos: ## kill the daemon under a training session, again and again: CHAOS_MINUTES=10 CHAOS="--every 60 --unix"
	@deploy/install-packages.sh build test
	$(call build,dev,gradwired gradwire_test_member)
	@$(PYTHON) -B tests/chaos/chaos.py build/dev/bin --minutes $(CHAOS_MINUTES) $(CHAOS)

.PHONY: chaos-cycles
CYCLES ?= 1000
chaos-cycles: ## kill one process in each of CYCLES short sessions and start it again: CYCLES=1000 CHAOS="--seed 7"
	@deploy/install-packages.sh build test
	$(call build,dev,gradwired gradwire_test_member)
	@$(PYTHON) -B tests/chaos/cycles.py build/dev/bin --cycles $(CYCLES) $(CHAOS)

.PHONY: test-doctor
test-doctor: ## what gradwirectl doctor predicts over 100 Mbit/s, beside what is measured (needs root)
	@deploy/install-packages.sh build test network
	$(call build,dev,gradwired gradwirectl)
	@$(PYTHON) -B tests/doctor/check_doctor.py build/dev/bin

benches := kernels low_rank ladder allreduce members locks tls options
bench_json := $(addprefix build/bench/,$(addsuffix .json,$(benches) python_hook python_steps compare_gloo))

.PHONY: bench
bench: ## measure everything against memcpy, raw sockets, plain gRPC and torch + gloo; build/bench has JSON and a plot
	@deploy/install-packages.sh build test parity python bench
	$(call build,dev,$(addsuffix _bench,$(benches)) join_bench steps_member $$(test -e build/venv/packages && echo gradwire_python_package),$$(client/python/make-venv.sh build/venv))
	@mkdir -p build/bench
	@set -e; for name in $(benches); do build/dev/bin/$${name}_bench --json build/bench/$$name.json; done
	@build/dev/bin/join_bench
	@tests/bench/python_hook.sh build/dev build/venv build/bench/python_hook.json
	@tests/bench/python_steps.sh build/dev build/venv build/bench/python_steps.json
	@tests/bench/compare_gloo.sh build/dev build/venv build/bench/compare_gloo.json
	@$(PYTHON) -B tests/bench/plot.py build/bench/members.json build/bench/throughput.png
	@$(PYTHON) -B tests/bench/merge.py build/bench/results.json $(bench_json)

.PHONY: bench-sweep
bench-sweep: ## the measurements behind the daemon's channel settings
	@deploy/install-packages.sh build test parity bench
	$(call build,dev,ladder_bench,$$(client/python/make-venv.sh build/venv))
	@build/dev/bin/ladder_bench --sweep

.PHONY: bench-net
bench-net: ## communication over limited links, Gradwire beside torch + gloo (needs root; half an hour; NET="--rates 100mbit --hooks no,fp16")
	@deploy/install-packages.sh build test python parity bench
	$(call build,dev,gradwired $$(test -e build/venv/packages && echo gradwire_python_package),$$(client/python/make-venv.sh build/venv))
	@tests/bench/net.sh build/dev build/venv net $(NET)

.PHONY: bench-convergence
bench-convergence: ## time to a quality over limited links, for each hook (needs root; an hour; CONVERGENCE="--tasks digits --seeds 1")
	@deploy/install-packages.sh build test python parity bench text
	$(call build,dev,gradwired $$(test -e build/venv/packages && echo gradwire_python_package),$$(client/python/make-venv.sh build/venv))
	@tests/bench/net.sh build/dev build/venv convergence $(CONVERGENCE)

.PHONY: wheel
wheel: ## build the Python wheel with its libraries in it, and try it with another Python
	@deploy/install-packages.sh build python
	@wheel=$$(CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) client/python/build-wheel.sh) && \
	   echo "$$wheel" && client/python/tests/wheel_smoke.sh "$$wheel"

.PHONY: deb
deb: ## Debian packages of the daemon, the C++ client and the Python package, in build/release/packages (CUDA=ON: with GPU sums)
	@deploy/install-packages.sh build deb
	$(call build,release,,-DGRADWIRE_CUDA=$(or $(CUDA),OFF) $$(client/python/make-venv.sh build/venv) \
	  $(if $(filter ON,$(CUDA)),-DGRADWIRE_NVCC=$$(deploy/cuda-toolkit.sh build/cuda-toolkit)))
	@rm -rf build/release/packages
	@cd build/release && cpack >cpack.log 2>&1 || { cat cpack.log; exit 1; }
	@rm -rf build/release/packages/_CPack_Packages && ls build/release/packages/*.deb

.PHONY: dist
dist: deb wheel ## sources, packages, wheels and image of this version in build/dist, with SHA256SUMS
	@deploy/dist.sh "$$(sed -n 's/^project(gradwire VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"

.PHONY: test-deploy
test-deploy: deb ## check everything under deploy/: packages on a bare Debian, images in containers, manifests (needs root)
	@deploy/install-packages.sh manifests deploy
	@tests/deploy/make-tools.sh build/deploy-tools
	@$(PYTHON) -B tests/deploy/run.py $(DEPLOY)

.PHONY: fuzz
fuzz: ## run each libFuzzer target for FUZZ_SECONDS (60)
	@deploy/install-packages.sh build test clang
	$(call build,fuzz)
	@tests/checks/run_fuzzers.sh build/fuzz/bin tests/fuzz/corpus $(or $(FUZZ_SECONDS),60)

.PHONY: lint
lint: ## format, clang-tidy with lock analysis, layering and the other source checks
	@deploy/install-packages.sh build test lint python
	@tests/checks/format.sh --check
	@$(PYTHON) -B tests/checks/checks.py --self-test
	@$(PYTHON) -B tests/checks/checks.py
	$(call build,dev,gradwire_proto gradwire_grpc_services_generated,$$(client/python/make-venv.sh build/venv))
	@tests/checks/tidy.sh build/dev $(JOBS)

.PHONY: format
format: ## rewrite the sources in the project's format
	@deploy/install-packages.sh lint
	@tests/checks/format.sh

.PHONY: clean-room
clean-room: ## make demo and make test on a bare Debian (needs root)
	@deploy/install-packages.sh clean-room
	@deploy/clean-room.sh

.PHONY: clean
clean: ## remove everything built
	rm -rf build

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 24
