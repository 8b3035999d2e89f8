# The verbs of this repository. Whichever is run first makes .venv by itself, from
# requirements.lock; `make help` lists them.

PYTEST_ARGS ?=
# A test spends a third of its time waiting: for a process, a sync, a wake-up. Three workers fill
# two cores.
JOBS ?= 3
# The fault tests wait still more: for kills, stops and slow disks.
FAULT_JOBS ?= 2
# One worker downloads while the other one compiles.
INTEROP_JOBS ?= 2
BENCH ?=
SECONDS ?= 60
TARGETS ?= amqp_frames amqp_messages batches filters recovery requests records websockets
READY := .venv/ready
BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
OPERATIONS ?= 1000000
KILLS ?= 200
SEEDS ?= 5000
SEED ?=
.PHONY: help venv demo campaign test test-faults test-cluster test-browser interop test-inputs fuzz check format format-check lint types bench bench-peers docs site lock wheels release clean

help:  ## list these verbs
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

$(READY): requirements.lock pyproject.toml .ci/make-venv
	@.ci/make-venv .venv
	@touch $@

venv: $(READY)  ## make the environment and nothing else

demo: $(READY)  ## real input from publisher to consumer to Spark; FILE=... publishes a file's lines
	@$(BIN)/holdfast demo --no-wait $(if $(FILE),--file "$(FILE)")

test: $(READY)  ## every test; PYTEST_ARGS="tests/cli -k pull" picks some, JOBS=1 shows them in order
	$(BIN)/pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

# The second tier: what is slow, or needs root, loop devices, strace. What a test lacks, it names
# and skips; `.ci/install-fault-tools` installs it all on Debian.
test-faults: $(READY)  ## real faults: power loss, full disks, failing syncs, storms, hostile input; FAULT_JOBS=1 runs one at a time
	$(BIN)/pytest -m fault -n $(FAULT_JOBS) --dist loadgroup $(PYTEST_ARGS)

# The same Spark job on four kinds of cluster, made from the pip package, one after the other.
test-cluster: $(READY)  ## Spark: local-cluster, standalone and Connect beside one machine
	$(BIN)/pytest -m cluster -s tests/cluster $(PYTEST_ARGS)

# The console in Debian's chromium. What is missing, the tests name and skip;
# `.ci/install-fault-tools` installs it.
test-browser: $(READY)  ## the console in a real browser: views, seeking, keyboard, accessibility
	$(BIN)/pytest -m browser -n $(JOBS) --dist loadgroup tests/browser $(PYTEST_ARGS)

# Clients that generators make of the OpenAPI document, and tools as users type them. What is
# downloaded and built stays in .interop/; a toolchain that is missing skips its tests by name.
interop: $(READY)  ## others' clients against the broker: of HTTP (Go, TypeScript, curl), six of AMQP, 0.1.0's; Prometheus, S3
	$(BIN)/pytest -m interop -n $(INTEROP_JOBS) --dist loadgroup tests/interop $(PYTEST_ARGS)

# Each prints its seed; SEED=... runs that one again.
campaign: $(READY)  ## at length: groups' model and the engine of AMQP through OPERATIONS=1000000, a broker through KILLS=200, simulated crashes with SEEDS=5000, failing calls, every fuzzer
	$(BIN)/python -m tests.groups.campaign $(OPERATIONS) $(SEED)
	$(BIN)/python -m tests.amqp.campaign $(OPERATIONS) $(SEED)
	$(BIN)/python -m tests.crash.restart_campaign $(KILLS) $(SEED)
	TEST_FIRST_SEED=$(or $(SEED),$(shell date +%s)) TEST_SEEDS=$(SEEDS) TEST_SEED_SECONDS=3600 \
	  $(BIN)/pytest -s -m fault tests/faults/test_simulated_crashes.py
	$(BIN)/python -m tests.support.damage.call_faults
	$(MAKE) fuzz SECONDS=120

fuzz: $(READY)  ## fuzz every decoder, SECONDS=60 each; TARGETS="batches filters" picks some
	for target in $(TARGETS); do \
	  $(BIN)/python -m tests.fuzz $$target --seconds $(SECONDS) || exit; \
	done

# Whatever fails here is made a plain test, or an `@example`, in the change that mends it.
test-inputs: $(READY)  ## what hypothesis tests, with new inputs, again and again for SECONDS=60
	end=$$(($$(date +%s) + $(SECONDS))); while [ $$(date +%s) -lt $$end ]; do \
	  $(BIN)/pytest -m "hypothesis and not fault" --hypothesis-profile=new-inputs $(PYTEST_ARGS) \
	    || exit; \
	done

check: format-check lint types test  ## what must pass before a commit

format: $(READY)  ## format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .
	.ci/check-console-types
	.ci/check-site

types: $(READY)
	$(BIN)/mypy

bench: $(READY)  ## measure W1 to W11 and more; BENCH="W4 publish" picks some
	$(BIN)/python -m bench $(BENCH)

bench-peers: $(READY)  ## W1 to W5 beside Redis, NATS, RabbitMQ, Kafka, RocketMQ; installs them first
	bench/peers/install
	$(BIN)/python -m bench.peers $(BENCH)

docs: $(READY)  ## write from the code: docs/configuration.md, the picture in ARCHITECTURE.md, man page, completion, files of the client's wheel
	$(BIN)/holdfast config reference > docs/configuration.md
	$(BIN)/python -m tests.support.tree.picture
	$(BIN)/python -m tests.packaging.man_page > packaging/man/holdfast.1
	$(BIN)/python -m tests.packaging.client_files > packaging/client/files.txt
	cd packaging/completion && export PATH="$(CURDIR)/$(BIN):$$PATH" && \
	  _HOLDFAST_COMPLETE=bash_source holdfast > bash/holdfast && \
	  _HOLDFAST_COMPLETE=zsh_source holdfast > zsh/_holdfast && \
	  _HOLDFAST_COMPLETE=fish_source holdfast > fish/holdfast.fish

site: $(READY)  ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# One lock for Python 3.11 and newer, all extras; no hashes and no addresses, so that it can be
# installed from any mirror.
lock: $(READY)  ## pin the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --upgrade \
	  --no-emit-package holdfast-client --no-annotate --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --output-file requirements.lock

# A stale build folder would add its files to a wheel.
wheels: $(READY)  ## dist/: the wheels holdfast and holdfast-client, which are installed together
	rm -rf build packaging/client/build
	$(BIN)/python -m build --wheel --outdir dist packaging/client
	$(BIN)/python -m build --wheel --outdir dist .

# Asks PyPI for the tools and for known vulnerabilities. Publishes nothing.
release: $(READY)  ## dist/: source archive, both wheels, SBOM, provenance, checksums, all checked; of what is committed
	packaging/release/build $(BIN)/python

clean:  ## remove everything that these verbs made
	rm -rf .venv .interop build packaging/client/build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
