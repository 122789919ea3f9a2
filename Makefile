# `make demo` and `make test` are all that a fresh machine needs. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)-tools
WHEEL := build/wheel
AUDIT := build/audit
PRODUCT := protocol runtime txn_coordinator group_coordinator broker sdk web spark cli src/pyspark_semel
# More than there are cores: a third of the tests' time is waiting.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 2) * 3 // 2)")
COMPILED := $(shell sed 's|\.|/|g; s|$$|.py|' compiled-modules.txt)

# Where it is set, each of the hundreds of processes that tests start would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

COMPAT := compat-java compat-streams compat-flink compat-beam compat-connect compat-python compat-others compat-full

.DEFAULT_GOAL := help
.PHONY: help setup tools build demo demo-cluster demo-diskless demo-spark test test-long test-upgrade test-diskless test-diskless-spark test-s3 test-spark mutants simulate simulate-faults soak record-clients $(COMPAT) docs check audit format wheel lock \
	proto sync-api bench bench-peers bench-page instructions image clean

# What only reads the code needs no Spark, no JDK and no compiled modules: without `.venv` it gets a smaller environment.
ifneq ($(wildcard $(VENV)/.ready)$(filter setup build demo demo-cluster demo-diskless demo-spark test test-long test-upgrade test-diskless test-diskless-spark test-s3 test-spark mutants simulate simulate-faults soak record-clients $(COMPAT) bench bench-peers instructions,$(MAKECMDGOALS)),)
READER := $(VENV)
else
READER := $(TOOLS)
endif

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make the virtual environment with everything in it

$(VENV)/.ready: pyproject.toml setup.py compiled-modules.txt constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	SEMEL_INTERPRETED=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[demo]' --group test --group check --group docs
	touch $@

tools: $(TOOLS)/.ready ## Make the small virtual environment that `docs`, `check` and `format` need

$(TOOLS)/.ready: pyproject.toml setup.py compiled-modules.txt constraints.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	SEMEL_INTERPRETED=1 $(TOOLS)/bin/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[node]' --group tools --group http --group check --group docs
	touch $@

build: $(VENV)/.built ## Compile the hot modules in place

$(VENV)/.built: $(VENV)/.ready $(COMPILED) $(wildcard $(COMPILED:.py=.pxd)) $(wildcard broker/*/*/*.pyx)
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	touch $@

demo: build ## Run the exactly-once pipeline on real flights, with crashes
	$(BIN)/semel demo

demo-cluster: build ## Run it on three nodes that are killed, frozen, cut off and emptied, with PostgreSQL where it is installed
	$(BIN)/semel demo --cluster

demo-diskless: build ## Run it on three nodes that have nothing of their own: S3 has the bytes, and who is killed starts again empty
	$(BIN)/semel demo --diskless

demo-spark: build ## Run an ETL job of Spark on real flights, with crashes
	$(BIN)/python -P -m semel.spark.examples.demo

test: build ## Run all tests that CI runs; WORKERS=3 at once
	$(BIN)/python -P -m pytest -n $(WORKERS) --dist loadgroup --durations 40

test-long: build ## Run the long ones: chaos, every crash point, fuzzing, all planted faults
	EVERY_TEST=1 SEMEL_NEW_EXAMPLES=1 SEMEL_CHAOS_SECONDS=300 SEMEL_CRASH_POINTS=0 SEMEL_FUZZ_SECONDS=120 SEMEL_MODEL_EXAMPLES=1500 SEMEL_UPGRADE_CLIENTS=all \
		$(BIN)/python -P -m pytest -n 2 --timeout 3000 tests/e2e tests/property tests/compat tests/containers tests/simulation tests/unit/cluster
	SEMEL_PLANTED_SEEDS=1500 $(BIN)/python -P -m pytest -n 2 --timeout 7200 tests/simulation/test_planted_faults.py
	$(BIN)/python -P tests/mutants/run.py

test-upgrade: build ## Upgrade nodes of the last older version of the metadata in the history, and have them go back
	SEMEL_UPGRADE_CLIENTS=all $(BIN)/python -P -m pytest -n 2 -rs --timeout 900 tests/e2e/test_rolling_upgrade.py

test-diskless: build ## Run the clients of other projects against nodes whose topics are all diskless, those of the coordinators, too
	@# Without those that compare all of a topic's settings, or each request: a diskless topic has two more, and is led a moment later.
	EVERYTHING_DISKLESS=1 $(BIN)/python -P -m pytest -n 2 --timeout 600 tests/compat --ignore tests/compat/java --ignore tests/compat/connect \
		--ignore tests/compat/test_foreign_admin.py --ignore tests/compat/test_recordings.py

test-diskless-spark: build ## Run the tests with Spark on such nodes; SEMEL_SPARK_LONG=1 for the long ones, too
	EVERYTHING_DISKLESS=1 $(BIN)/python -P -m pytest --timeout 2000 tests/spark

test-s3: build ## Run nodes on S3 servers of other projects, which are killed (SeaweedFS from PyPI; S3Proxy with Java 17 and Maven)
	SEMEL_S3_SERVERS=1 $(BIN)/python -P -m pytest -rs --timeout 900 tests/e2e/test_s3_servers.py

test-spark: build ## Run all tests with Spark, also the long ones: large values, many partitions and tasks, every wrong option
	EVERY_TEST=1 SEMEL_SPARK_LONG=1 $(BIN)/python -P -m pytest --timeout 2000 tests/spark

simulate: build ## Run simulated worlds: SEEDS=1000 FIRST=0 JOBS=, or one with SEED=17, whose faults are shortened; WORLD=cluster or transactions: three nodes; STOP_AT=5 failures
	PYTHONPATH=tests:tests/support/pipelines:tests/support/clients $(BIN)/python -P -m simulation $(if $(WORLD),--world $(WORLD)) $(if $(PATIENCE),--patience $(PATIENCE)) \
		$(if $(JOBS),--workers $(JOBS)) $(if $(STOP_AT),--stop-at $(STOP_AT)) \
		$(if $(SEED),--seed $(SEED) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)),--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0))

simulate-faults: build ## Search seeds that find planted faults: FAULTS="D1b T*", SEEDS=, FIRST=, JOBS=, RECORD=1 writes them down
	@set -f; PYTHONPATH=tests:tests/support/pipelines:tests/support/clients $(BIN)/python -P -m simulation.plant $(FAULTS) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(JOBS),--jobs $(JOBS)) $(if $(RECORD),--record)

record-clients: build ## Record again what real clients send, which the simulated ones follow (Java 17, Maven); CLIENT=librdkafka alone
	PYTHONPATH=tests/support/clients:tests/support/nodes $(BIN)/python -P tests/support/clients/rerecord.py $(CLIENT)

mutants: setup ## Plant the kept faults, and report which live; MUTANTS="P1a T*", SAMPLE=, SEED=, JOBS=, JSON=
	@set -f; $(BIN)/python -P tests/mutants/run.py $(MUTANTS) $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(JSON),--json $(JSON))

compat-java: build ## Run Apache Kafka's own clients and tools against a node (Java 17, Maven)
	$(BIN)/python -P -m pytest --timeout 600 tests/compat/java

compat-others: build ## Run clients of other languages against a node: kafkajs (Node.js), sarama and kafka-go (Go), rdkafka (Rust)
	$(BIN)/python -P -m pytest --timeout 900 -rs tests/compat/others

compat-streams: build ## Run an application of Kafka Streams while it and its node are killed; SEMEL_STREAMS_RECORDS=20000 for more (Java 17, Maven)
	$(BIN)/python -P -m pytest --timeout 3000 tests/compat/streams

compat-flink: build ## Run a job of Apache Flink while it and its node are killed; SEMEL_FLINK_RECORDS=20000 for more (Java 17, Maven)
	$(BIN)/python -P -m pytest --timeout 3000 tests/compat/flink

compat-beam: build ## Run a pipeline of Apache Beam on Flink while it and its node are killed; SEMEL_BEAM_RECORDS=20000 for more (Java 17, Maven)
	$(BIN)/python -P -m pytest --timeout 3000 tests/compat/beam

compat-connect: build ## Run Kafka Connect, MirrorMaker 2, Debezium and Iceberg's sink against a node, and kill them (Java 17, Maven; PostgreSQL)
	$(BIN)/python -P -m pytest --timeout 600 tests/compat/connect

compat-python: build ## Run frameworks from PyPI against a node: their processes and the node are killed; what is fetched is in build/frameworks
	$(BIN)/python -P -m pytest --timeout 900 tests/compat/frameworks

compat-full: build ## Run foreign clients' own suites; LIBRDKAFKA=, KAFKA_PYTHON= and so on name checkouts
	$(BIN)/python -P tests/compat/full/run.py --librdkafka "$(LIBRDKAFKA)" --kafka-python "$(KAFKA_PYTHON)" \
		--franz-go "$(FRANZ_GO)" --confluent-kafka-python "$(CONFLUENT_KAFKA_PYTHON)" --aiokafka "$(AIOKAFKA)" \
		--python "$(or $(SUITE_PYTHON),$(abspath $(BIN)/python))" $(if $(ONLY),--only '$(ONLY)') $(if $(NODES),--nodes $(NODES))

docs: $(READER)/.ready ## Make the documentation in build/docs/html; whatever Sphinx warns of is an error
	$(READER)/bin/python -P -m sphinx --fail-on-warning --keep-going --quiet --jobs 2 --doctree-dir build/docs/doctrees \
		docs build/docs/html

bench: build ## Measure everything; BENCH="--quick", or names of benches
	$(BIN)/python -P bench/run.py $(BENCH)

soak: build ## Run a node under steady load, and see whether anything grows or a record is lost; MINUTES=60
	$(BIN)/python -P bench/soak.py $(if $(MINUTES),--minutes $(MINUTES))

bench-peers: setup ## Get NATS, Redis and their Python clients into build/brokers, for `make bench BENCH=other_brokers` (Go, Debian)
	$(BIN)/python -P bench/other_brokers.py --install

bench-page: $(READER)/.ready ## Make bench/RESULTS.html, plots of what against_kafka, cluster and other_brokers wrote; RUNS= names files
	$(READER)/bin/python -P bench/plots.py $(RUNS)

instructions: build ## Count the instructions of requests and records, and compare (valgrind); RECORD=1 writes them down
	$(BIN)/python -P bench/instructions.py $(if $(RECORD),--record)

image: ## Build the container image; BASE_IMAGE= and IMAGE= name others than python:3.11-slim-bookworm and semel:latest
	docker build --file docker/Dockerfile --tag $(or $(IMAGE),semel:latest) \
		$(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) .

check: $(READER)/.ready ## Lint, format check, types, faults of security, secrets, and whether the sync API is what its generator makes
	$(READER)/bin/ruff check .
	$(READER)/bin/ruff format --check .
	$(READER)/bin/mypy --python-executable $(READER)/bin/python
	$(READER)/bin/python -P -m semel.sdk.sync_api --check
	$(READER)/bin/bandit --quiet --configfile pyproject.toml --recursive --exclude '*_pb2.py,*_pb2_grpc.py' $(PRODUCT)
	$(READER)/bin/python -P tests/support/packaging/committed_secrets.py

audit: $(AUDIT)/.ready ## Look up known faults of security of all dependencies; it needs a network
	$(AUDIT)/bin/python -P tests/support/packaging/audit.py constraints.txt

$(AUDIT)/.ready: pyproject.toml
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(AUDIT)/bin/python -m pip install --quiet --group audit
	touch $@

format: $(READER)/.ready ## Format the code
	$(READER)/bin/ruff format .
	$(READER)/bin/ruff check --fix .

wheel: $(WHEEL)/.ready ## Build wheels and the source archive into dist/, and check them; PYTHONS="python3.11 python3.12"
	rm -rf dist $(WHEEL)/raw
	$(WHEEL)/bin/python -m build --sdist --outdir dist .
	for python in $(or $(PYTHONS),$(PYTHON)); do \
		$(WHEEL)/bin/python -m pip --python "$$(command -v "$$python")" wheel --no-deps --wheel-dir $(WHEEL)/raw dist/*.tar.gz || exit; \
	done
	if [ "$$(uname)" = Linux ]; then \
		PATH="$(WHEEL)/bin:$$PATH" $(WHEEL)/bin/auditwheel repair --strip --wheel-dir dist $(WHEEL)/raw/*.whl; \
	else cp $(WHEEL)/raw/*.whl dist; fi
	$(WHEEL)/bin/python tests/support/packaging/archives.py dist
	$(WHEEL)/bin/check-wheel-contents --toplevel semel,pyspark_semel dist/*.whl
	$(WHEEL)/bin/twine check --strict dist/*

$(WHEEL)/.ready: pyproject.toml
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(WHEEL)/bin/python -m pip install --quiet --group wheel
	touch $@

# Typer 0.29 reads options with pydantic: 0.06 s more for each command, and four packages. It works with both.
lock: ## Take the newest versions of everything into constraints.txt
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	SEMEL_INTERPRETED=1 build/lock/bin/python -m pip install --quiet '.[demo]' 'typer<0.29' --group test --group check --group docs
	build/lock/bin/python -m pip freeze --exclude semel > constraints.txt

# An old generator on purpose: what it makes runs with every protobuf from 6.30 on.
proto: ## Generate the gRPC code from proto/
	test -x build/proto/bin/python || $(PYTHON) -m venv build/proto
	build/proto/bin/python -m pip install --quiet 'grpcio-tools==1.72.*'
	build/proto/bin/python proto/generate.py

sync-api: $(READER)/.ready ## Generate the sync API of the clients from the asyncio one
	$(READER)/bin/python -P -m semel.sdk.sync_api

clean: ## Remove what was built
	rm -rf $(VENV) $(TOOLS) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name '*.so' -not -path './.venv*' -delete
