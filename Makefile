# `make demo` and `make test` work on a machine with git, make, a C compiler and
# rustup's stable Rust; what else they need they install or build. All builds are of
# the whole workspace, so that dependencies have the same features in each and
# wasmtime is compiled once.

SHELL := /bin/bash
CARGO ?= cargo
PLUGINS := $(notdir $(wildcard plugins/*))
ENGINE := target/release/engine

.PHONY: demo build engine plugins test lint fmt bench bench-flink flink-cli fuzz faults

demo: build
	@rm -rf target/demo && mkdir -p target/demo
	@target/release/generate nexmark 100000 4 target/demo/events
	@target/release/generate words 20000 4 target/demo/words
	@echo; echo '--- word count: four subtasks count 200,000 words of four files'
	$(ENGINE) submit -p 4 target/plugins/word_count.wasm --input 'target/demo/words-*' --output target/demo/counts
	@echo; echo '--- the five most frequent words'
	@cat target/demo/counts/part-* | sort -t, -k2,2nr -k1,1 | sed -n 1,5p
	@echo; echo '--- Nexmark q2: bids on every 123rd auction, from 100,000 events'
	$(ENGINE) submit -p 4 target/plugins/nexmark.wasm --query q2 --input 'target/demo/events-*' --output target/demo/q2
	@echo; echo '--- the first five of its rows: auction, price'
	@cat target/demo/q2/part-* | LC_ALL=C sort | sed -n 1,5p

build: engine plugins

engine:
	$(CARGO) build --release --workspace

plugins:
	scripts/build-plugins.sh $(PLUGINS)

test: build lint
	$(CARGO) test --release --workspace

# A minimal profile of rustup has neither of the two tools.
lint:
	@$(CARGO) fmt --version > /dev/null 2>&1 && $(CARGO) clippy --version > /dev/null 2>&1 || rustup component add rustfmt clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

fmt:
	$(CARGO) fmt --all

# Criterion's usual eight seconds for each figure would make it half an hour.
BENCH_TIME := --warm-up-time 0.5 --measurement-time 1.5 --sample-size 20

bench: build
	$(CARGO) bench -p engine-benches $(foreach bench,codec local_edge guest_call operator_chain,--bench $(bench)) -- $(BENCH_TIME)
	$(CARGO) bench -p engine-benches $(foreach bench,startup end_to_end latency idle_jobs state_backend keyed_operator state_access windows,--bench $(bench))
	$(CARGO) bench -p engine-benches --bench state_backend -- disk
	benches/checkpoint_cost.py

bench-flink: build
	benches/flink/compare.py

# Apache Flink's own `list` and `cancel` against a cluster.
flink-cli: build
	scripts/flink-cli.sh

# Each target for FUZZ_SECONDS, 60 by default.
fuzz:
	scripts/fuzz.sh

# Kills jobs until FAULTS_KILLS processes were killed, and damages FAULTS_DAMAGES checkpoints.
FAULTS_KILLS ?= 1000
FAULTS_DAMAGES ?= 60
faults: build
	target/release/faults --kills $(FAULTS_KILLS) --damages $(FAULTS_DAMAGES)
