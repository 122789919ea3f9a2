# `make demo` and `make test` are all that a fresh machine needs. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILED := $(shell sed 's|\.|/|g; s|$$|.py|' compiled-modules.txt)

.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-spark test test-long mutants compat-java compat-full docs check format lock proto bench image clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make the virtual environment with everything in it

$(VENV)/.ready: pyproject.toml setup.py compiled-modules.txt constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	SEMEL_INTERPRETED=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable . --group demo --group test --group check --group docs
	touch $@

build: $(VENV)/.built ## Compile the hot modules in place

$(VENV)/.built: $(VENV)/.ready $(COMPILED)
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	touch $@

demo: build ## Run the exactly-once pipeline on real flights, with crashes
	$(BIN)/semel demo

demo-spark: build ## Run an ETL job of Spark on real flights, with crashes
	$(BIN)/python -P -m semel.spark.examples.demo

test: build ## Run all tests that CI runs
	$(BIN)/python -P -m pytest -n auto --dist loadgroup

test-long: build ## Run the long ones: chaos, every crash point, fuzzing, all planted faults
	SEMEL_CHAOS_SECONDS=300 SEMEL_CRASH_POINTS=0 SEMEL_FUZZ_SECONDS=120 SEMEL_MODEL_EXAMPLES=1500 \
		$(BIN)/python -P -m pytest -n 2 --timeout 3000 tests/e2e tests/property tests/compat
	$(BIN)/python -P tests/mutants/run.py

mutants: setup ## Plant the kept faults, and report which live; MUTANTS="P1a T*", SAMPLE=, SEED=, JOBS=, JSON=
	@set -f; $(BIN)/python -P tests/mutants/run.py $(MUTANTS) $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(JSON),--json $(JSON))

compat-java: build ## Run Apache Kafka's own clients and tools against a node (Java 17, Maven)
	$(BIN)/python -P -m pytest --timeout 600 tests/compat/java

compat-full: build ## Run foreign clients' own suites; LIBRDKAFKA=, KAFKA_PYTHON= and so on name checkouts
	$(BIN)/python -P tests/compat/full/run.py --librdkafka "$(LIBRDKAFKA)" --kafka-python "$(KAFKA_PYTHON)" \
		--franz-go "$(FRANZ_GO)" --confluent-kafka-python "$(CONFLUENT_KAFKA_PYTHON)" --aiokafka "$(AIOKAFKA)" \
		--python "$(or $(SUITE_PYTHON),$(abspath $(BIN)/python))" $(if $(ONLY),--only '$(ONLY)')

docs: build ## Make the documentation in build/docs/html; whatever Sphinx warns of is an error
	$(BIN)/python -P -m sphinx --fail-on-warning --keep-going --quiet --jobs 2 --doctree-dir build/docs/doctrees \
		docs build/docs/html

bench: build ## Measure everything; BENCH="--quick", or names of benches
	$(BIN)/python -P bench/run.py $(BENCH)

image: ## Build the container image; BASE_IMAGE= and IMAGE= name others than python:3.11-slim-bookworm and semel:latest
	docker build --file docker/Dockerfile --tag $(or $(IMAGE),semel:latest) \
		$(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) .

check: build ## Lint, format check and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## Take the newest versions of everything into constraints.txt
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	SEMEL_INTERPRETED=1 build/lock/bin/python -m pip install --quiet . --group demo --group test --group check --group docs
	build/lock/bin/python -m pip freeze --exclude semel > constraints.txt

# An old generator on purpose: what it makes runs with every protobuf from 6.30 on.
proto: ## Generate the gRPC code from proto/
	test -x build/proto/bin/python || $(PYTHON) -m venv build/proto
	build/proto/bin/python -m pip install --quiet 'grpcio-tools==1.72.*'
	build/proto/bin/python proto/generate.py

clean: ## Remove what was built
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name '*.so' -not -path './.venv/*' -delete
