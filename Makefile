# Targets for building, testing and installing; `make help` lists them. Cargo does the work.

CARGO ?= cargo
TBCCL := target/release/tbccl
# Folder that `make install` installs into.
PREFIX ?= /usr/local
# Operation and numbers of ranks of `make bench`. To override: make bench OP=all_gather RANKS="2 3"
OP ?= all_reduce
RANKS ?= 2 4

# The software RDMA device builds only on Linux.
SKIP := $(if $(filter Linux,$(shell uname -s)),,--exclude tbccl-softrdma)

.PHONY: help bench simulation agreement test test-rust test-python model model-deep miri tsan fuzz endurance
.PHONY: faults engines check-deep lint build wheel install tools test-tools crates wheels archive deb book
.PHONY: packages semver quick-start macos

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

bench: build ## Measure collectives between processes on this machine, every element checked
	@for ranks in $(RANKS); do \
	  $(TBCCL) bench $(OP) --ranks $$ranks -b 4 -e 64M -f 4 || exit $$?; \
	done

simulation: build ## Make the pictures and tables of docs/simulation.md
	$(TBCCL) plan simulate --figures docs/img

agreement: build ## Compare simulations with measurements on slow software devices (Linux)
	$(CARGO) build --release -p tbccl-cli -p tbccl-softrdma --lib --bins --examples
	tools/agreement target/release

# Runs each part even if one before it failed, so that one run reports all failures.
test: test-tools ## Run all tests
	@failed=; for part in test-rust test-python model; do \
	  $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; \
	if [ -n "$$failed" ]; then echo "make test: failed:$$failed" >&2; exit 1; fi

# Most tests wait for processes and time limits rather than compute.
TEST_THREADS ?= $(shell expr 2 '*' "$$(getconf _NPROCESSORS_ONLN)")

test-rust: test-tools ## Test the Rust crates and the C library
	RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --workspace $(SKIP) --no-fail-fast

# Runs in virtual environments below target/, which it makes if they are missing.
test-python: test-tools ## Build the Python package and test it, with numpy, PyTorch and MLX
	tools/test-python

# Have a target folder of their own, since their flags would make cargo rebuild everything else.
MODEL := RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_LTO=off timeout 1800 $(CARGO) test --lib --release \
  --target-dir target/loom

model: ## Check the software device's queues and locks under all interleavings
	$(if $(SKIP),,$(MODEL) -p tbccl-softrdma loom_)

model-deep: ## Check rings, boards, locks and handles under all interleavings, and count them
	$(MODEL) -p tbccl-transport -p tbccl -p tbccl-ffi loom_ -- --nocapture --test-threads 1

# Miri, ThreadSanitizer and the fuzz targets need a nightly toolchain, and name what is missing.
miri: ## Look for undefined behavior in unsafe code (Miri)
	tools/miri $(MIRI)

tsan: ## Look for data races in the multi-thread tests (ThreadSanitizer)
	tools/tsan $(TSAN)

# To override: make fuzz FUZZ="--seconds 300 verbs_messages"
fuzz: ## Feed parsers of outside bytes with inputs that reach new code
	tools/fuzz $(FUZZ)

endurance: ## Run the tests that `make test` ignores because they take minutes
	$(CARGO) test --workspace $(SKIP) --no-fail-fast -- --ignored --nocapture

engines: test-tools ## Test programs that train with PyTorch, Ray and Slurm over tbccl
	tools/install-missing engines
	PYTHON_ENVS=engines tools/test-python

# To override: make faults RUNS=100
RUNS ?= 10
faults: ## Inject each fault into running jobs, and print the longest gaps in traffic
	FAULT_RUNS=$(RUNS) $(CARGO) test --test verbs -- --ignored --nocapture --test-threads 1 fault_gaps

# Runs each part even if one before it failed, as `test` does.
check-deep: ## Run the checks that take too long for `make test`
	@failed=; for part in model-deep miri tsan fuzz endurance engines packages semver; do \
	  $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; \
	if [ -n "$$failed" ]; then echo "make check-deep: failed:$$failed" >&2; exit 1; fi

lint: test-tools ## Check format, lints and documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace $(SKIP) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace $(SKIP) --no-deps

build: tools ## Build the command line, optimized
	$(CARGO) build --release

wheel: tools ## Build the Python package, optimized, below target/wheels
	PATH="$$(tools/python-env plain)/bin:$$PATH" \
	  pip wheel -q --no-deps --no-build-isolation --wheel-dir target/wheels .

install: tools ## Install the command line, the C library and the libraries for MLX
	$(CARGO) build --profile dist -p tbccl-cli -p tbccl-ffi -p tbccl-mpi-shim -p tbccl-jaccl
	ffi/install.sh target/dist "$(PREFIX)" "$(DESTDIR)"

# To package only, in seconds: make crates CRATES=--no-verify
# One target folder and equal settings for all packages, so that cargo compiles their dependencies once.
UNOPTIMIZED := $(foreach name,opt-level package.tbccl-collectives.opt-level package.tbccl-kernels.opt-level \
  debug,--config profile.dev.$(name)=0)
crates: ## Package the Rust crates as for publishing, and build each from its package
	CARGO_TARGET_DIR=target/crates $(CARGO) publish --dry-run --workspace --allow-dirty $(UNOPTIMIZED) $(CRATES)

# To override: make wheels WHEELS=linux-x86_64
wheels: ## Build and check wheels for Linux (x86_64, aarch64) and macOS (arm64), on Linux
	tools/wheels $(WHEELS)

# To save the build of a program that writes the man pages: make archive PROGRAM=target/dist/tbccl
archive: ## Build and check the archive for Macs and its Homebrew formula, on Linux
	tools/archive $(PROGRAM)

deb: tools ## Build the Debian package, and test it unpacked
	tools/deb

book: ## Make the book of the documentation in target/book/html (mdBook)
	tools/book

# To override: make packages PAGES="c rust". Exit status 75 means that they can't be tried here.
packages: ## Try the packages and the quick starts in clean systems (Debian, as root)
	tools/wheels linux-$$(uname -m)
	$(MAKE) --no-print-directory deb
	$(MAKE) --no-print-directory crates CRATES=--no-verify
	tools/prove-packages $(PAGES) || [ $$? = 75 ]

# Exit status 75 means that one can't be tried here. Those for Python take the wheel of `make test-python`.
quick-start: test-tools ## Try the quick starts in a system like this one (as root)
	$(MAKE) --no-print-directory crates CRATES=--no-verify
	$(CARGO) build -q --workspace $(SKIP) --lib --bins --features tbccl/test-driver
	tools/prove-packages --here || [ $$? = 75 ]

macos: test-tools ## Link for Macs, on Linux, and check the files; that for MLX against MLX's own
	tools/macos
	tools/check-jaccl target/aarch64-apple-darwin/debug/libjaccl.dylib

semver: ## Compare the interface of the crate tbccl with the last version's
	tools/semver || [ $$? = 75 ]

tools: ## Install missing build tools
	@tools/install-missing build

test-tools: ## Install missing test tools
	@tools/install-missing test
