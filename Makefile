# The door: `make help` lists the verbs. tools/matrix makes what they need and has the table of the tests; the machine
# needs only python3 (>= 3.10, with venv).
PYTHON ?= python3
MPI ?= openmpi
NP ?= 2
FRAMEWORK ?= paddle
PROGRAM ?= dlrm
OPS ?= all_reduce
LEVELS ?= table transport dense rpc servers model
T ?= tests/ranks/core/test_broadcast.py
export SECONDS ?= 60
.DEFAULT_GOAL := help

MATRIX := @$(PYTHON) tools/matrix
RANKS_OF = $(MATRIX) ranks
IN = $(MATRIX) in
CHECK = $(IN) verify,tools tools/verify.py
BENCH = python -m paddlempi bench
MPIS_HERE := openmpi mpich $(if $(filter x86_64,$(shell uname -m)),impi)
comma := ,

# Try it
## train train the example on real data: FRAMEWORK=paddle (torch), NP=2 ranks under MPI=openmpi (mpich, impi); 15 minutes from nothing on 2 cores
train:
	$(RANKS_OF) $(MPI):example-$(FRAMEWORK) $(NP) python examples/train$(if $(filter torch,$(FRAMEWORK)),_torch).py
## train-ps train on 2 trainers, 2 servers and a master, beside one process: PROGRAM=dlrm (words, ratings, layers)
train-ps:
	@mkdir -p build
	$(IN) $(MPI):example-$(ps_framework) examples/train_ps_$(PROGRAM).py --out build/train-ps.json
	$(RANKS_OF) $(MPI):example-$(ps_framework) 5 python -m paddlempi run --roles trainer:2,pserver:2,master:1 \
		examples/train_ps_$(PROGRAM).py --beside build/train-ps.json
ps_framework = $(if $(filter words,$(PROGRAM)),paddle,torch)
## plan measure this machine (build/machine.json), say what a step would take on NODES=1 x RANKS=2, and train on NP=2
plan: build/machine.json
	$(IN) $(MPI):example-torch -m paddlempi plan examples/plan_mlp.py --machine $< \
		--nodes $(or $(NODES),1) --ranks $(or $(RANKS),2)
	$(RANKS_OF) $(MPI):example-torch $(NP) python examples/plan_mlp.py --plan auto --machine $<
build/machine.json:
	@mkdir -p build
	$(RANKS_OF) $(MPI):example-torch $(NP) $(BENCH) --calibrate $@

# Test
## test what everybody runs before a change is sent: 20 minutes on 2 cores, from nothing
## test-quick the tests that break first: 4 minutes
## test-ci what .ci/run adds to make test: every MPI, hosts, CUDA on a fake driver, programs of others, wheels: 20 minutes
## test-all everything: hours
## test-NAME one group of the table below, or one family
test-quick test-ci test-all: test-%: ; $(MATRIX) test $*
test: ; $(MATRIX) test test
test-%: ; $(MATRIX) test $*
## try one test: T=tests/ranks/core/test_broadcast.py (also FILE::NAME), on NP=2 ranks under MPI=openmpi (node: none)
try: ; $(MATRIX) try "$(T)" $(MPI) $(NP)
## soak for SECONDS=60: property tests with other examples each time, and whether a long job holds more and more
soak: ; $(MATRIX) test soak
## fuzz for FUZZ_SECONDS=3600 in all: every reader of what another process wrote, with inputs that Go makes up
fuzz: export FUZZ_SECONDS ?= 3600
fuzz: ; $(MATRIX) test fuzz
## fuzz-jobs for FUZZ_SECONDS=3600: random jobs of ranks on several nodes with accidents; test-go tries some
fuzz-jobs: FUZZ_SECONDS ?= 3600
fuzz-jobs:
	$(IN) tools tools/go.py test ./gocore/group -run TestRandomJobsOverNodes\$$ -count 1 -jobs-for $(FUZZ_SECONDS)s -timeout 0
## faults the whole matrix of faults (MPIS="openmpi mpich ..."); writes docs/faults.md
faults: FAULTS = $(or $(MPIS),$(MPIS_HERE))
faults:
	$(IN) openmpi:torch$(foreach mpi,$(FAULTS),$(comma)$(mpi):tests) tests/jobs/faults/page.py $(FAULTS)
## faults-ps all 220 cells of the parameter servers' faults
faults-ps: ; $(MATRIX) test faults-ps-all
## mutants how many of the stored mutants of Go, C and Python the tests catch; goes on where it stopped
mutants: ; $(IN) openmpi:torch,mpich:tests,tools,fake-cuda tools/mutants $(MUTANTS)
## budget which groups of the last run took more than the table gives them
budget: ; @$(PYTHON) tools/results.py --budget
## environments all that make test and .ci/run need, without running a test
environments: ; $(MATRIX) make openmpi:programs mpich:tests impi:tests tools verify

# Change it
## verify lint, and check that generated files are up to date: 2 minutes
## lint gofmt, go vet, staticcheck, ruff, mypy, a typed program with mypy and pyright, clang-format
## format let ruff, gofmt and clang-format change the files as lint wants them
## generate write what is generated from tables: operations, rooms, layouts, exports, settings, gRPC, licenses, kernels, the tests' table
verify lint format generate: ; $(CHECK) $@
## ptx the text of the device's kernels, to read, in build/ptx
ptx: ; $(IN) verify,tools tools/ptx/ptx.py --texts build/ptx
## way trace some calls on 2 ranks, and write docs/way.md: the files that they pass through (as root)
way: ; $(IN) tools,openmpi:torch tools/way/way.py
## docs the site of the documents, in build/site: no link or anchor is dead, every public name is documented
docs: export NO_MKDOCS_2_WARNING := 1
docs: ; $(IN) docs -m mkdocs build

# Publish it
## build the wheel and, for C programs, libpaddlempi.so, in dist/: 1 to 2 minutes
build:
	$(IN) tools -m pip wheel --no-deps -w dist .
	$(IN) tools tools/build/core.py dist/libpaddlempi.so
## wheels what is published, in dist/published: wheels for x86-64 and aarch64, and the source they are made of; checked
wheels:
	$(IN) wheels,published tools/wheels.py --check dist/published
	@ls dist/published
## release-check from a clean clone: both wheels, an environment for each MPI without a compiler, docs' programs, examples
release-check: ; @$(PYTHON) tools/release.py $(MPIS_HERE)

# Measure it, on NP=2 ranks under MPI=openmpi
## figures measure what docs/benchmarks.md shows, and write it: 15 minutes, alone on 2 CPUs; ONLY=call,step
figures: ; $(IN) openmpi:programs,tools,psgrpc,jax:jax benchmarks/figures.py $(if $(ONLY),--only $(ONLY))
## bench all_reduce (OPS="all_reduce broadcast", all), against plain MPI, mpi4py and gloo
bench: ; $(RANKS_OF) $(MPI):tests $(NP) $(BENCH) $(OPS) --max 64M --against mpi,mpi4py,gloo
## bench-torch torch.distributed over MPI and over gloo, and the steps of DDP and FSDP2
bench-torch:
	$(RANKS_OF) $(MPI):torch $(NP) $(BENCH) $(OPS) --framework torch --max 64M --against gloo
	$(RANKS_OF) $(MPI):torch $(NP) $(BENCH) step ddp fsdp2 --against gloo
## bench-paddle paddle.distributed over MPI and over gloo, and the steps of DataParallel
bench-paddle:
	$(RANKS_OF) $(MPI):tests $(NP) $(BENCH) $(OPS) --framework paddle --max 64M --against gloo
	$(RANKS_OF) $(MPI):tests $(NP) $(BENCH) step paddle --against gloo
## bench-hosts a table of operations and steps for 2 hosts x 1 and 2 ranks (namespaces) under every MPI; as root
bench-hosts:
	$(IN) openmpi:torch,mpich:tests$(if $(filter impi,$(MPIS_HERE)),$(comma)impi:tests) \
	  benchmarks/on_hosts.py --mpi "$(or $(MPIS),$(MPIS_HERE))" --json $(CURDIR)/build/hosts.json
## bench-ps tables and servers, against fbgemm, gRPC, Redis, torch's RPC and TorchRec (LEVELS="table transport ...")
bench-ps: $(LEVELS:%=bench-ps-level-%) ;
bench-ps-level-%:
	@mkdir -p build/bench-ps
	$(if $(filter table,$*),$(IN) torchrec:torchrec$(comma)psgrpc -m paddlempi bench,$(RANKS_OF) \
		torchrec:torchrec$(comma)psgrpc $(if $(filter servers,$*),5,2) $(BENCH)) ps --level $* --rounds 40 \
		--grpc-program build/psgrpc --json build/bench-ps/$*.json
## bench-ps-programs what the DLRM of train-ps reaches in each mode, and when
bench-ps-programs: ; $(IN) $(MPI):example-torch benchmarks/ps_programs.py --program $(PROGRAM)
## bench-c what an all_reduce costs beyond the MPI call that it makes, in C
bench-c: ; $(RANKS_OF) $(MPI):tests,tools $(NP) python benchmarks/overhead.py
## bench-windows a put into another rank's window, against MPI in C, mpi4py and memcpy; as root also on 2 hosts
bench-windows:
	$(RANKS_OF) $(MPI):tests,tools 2 python benchmarks/windows.py --computing 1
	$(if $(filter 0,$(shell id -u)),$(IN) $(MPI):tests$(comma)tools benchmarks/on_hosts.py --program benchmarks/windows.py \
		--mpi $(MPI) --shape 2x1 -- --computing 1)
## bench-halo a halo exchange of 128^3 float32 against MPI's derived types in C
bench-halo: ; $(RANKS_OF) $(MPI):tests $(NP) python benchmarks/halo.py $(HALO)
## bench-prepared a prepared call against the plain one, and start and wait against async_op
bench-prepared: ; $(RANKS_OF) $(MPI):tests $(NP) python benchmarks/prepared.py
## bench-jax all_reduce in compiled functions of JAX, against psum over gloo, under MPICH
bench-jax: ; $(RANKS_OF) jax:jax $(NP) python benchmarks/jax_primitives.py
## bench-cuda tensors in GPU memory, compared with the bus, the memory, MPI and NCCL
bench-cuda: ; $(RANKS_OF) $(MPI):tests $(NP) python benchmarks/cuda.py

# Tidy up
## clean remove all files that make has made
clean: ; rm -rf .made .venv-* .debian-* .test-results build dist python/paddlempi/_core.abi3.so
## help this list
help: ; $(MATRIX) help

H := \#\#
.PHONY: $(patsubst $H%,%,$(filter $H%,$(subst $H ,$H,$(file <Makefile))))
