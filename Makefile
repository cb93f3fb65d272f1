# Every target sets up what it needs. `make help` lists them.
#
#   PYTHON=...   the Python to build .venv with (default: the first of 3.11 or later that is found)
#   ARGS=...     more arguments for pytest, the benchmark or the demo

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
.DELETE_ON_ERROR:

# A PYTHONPATH left over from other tools would shadow what the locks install.
unexport PYTHONPATH PYTHONHOME

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check --no-input
ARGS ?=

# Stamps live inside the environment, so that they go when it goes.
MADE := $(VENV)/.made
RUNTIME := $(VENV)/.runtime-installed
LAKEHOUSE := $(VENV)/.lakehouse-installed
DEV := $(VENV)/.dev-installed
PACKAGE := $(VENV)/.package-installed
BENCH := $(VENV)/.bench-installed

# The second lane of the lakehouse has another Spark, and so an environment of its own.
ICEBERG_VENV := .venv-iceberg
ICEBERG_PY := $(ICEBERG_VENV)/bin/python
ICEBERG_PIP := $(ICEBERG_PY) -m pip --quiet --disable-pip-version-check --no-input
ICEBERG := $(ICEBERG_VENV)/.package-installed

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ------------------------------------------------------------------------------------- set-up

$(MADE):
	@python=$$(PYTHON='$(PYTHON)' sh scripts/find-python) || exit 1; \
	echo "setup: creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV)
	@touch $@

$(RUNTIME): requirements/runtime.lock $(MADE)
	@echo "setup: installing what omnirelay needs to run"
	@$(PIP) install --require-hashes -r requirements/runtime.lock
	@touch $@

$(LAKEHOUSE): requirements/lakehouse.lock $(MADE)
	@echo "setup: installing what omnirelay needs to run, and Spark (half a gigabyte, once)"
	@$(PIP) install --require-hashes -r requirements/lakehouse.lock
	@touch $(RUNTIME) $@

$(DEV): requirements/dev.lock $(MADE)
	@echo "setup: installing the development tools"
	@$(PIP) install --require-hashes -r requirements/dev.lock
	@touch $(RUNTIME) $(LAKEHOUSE) $@

$(PACKAGE): pyproject.toml src/omnirelay/_version.py $(DEV)
	@echo "setup: installing omnirelay from this tree"
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(BENCH): requirements/bench.lock $(DEV)
	@echo "setup: installing the clients of the systems to compare with"
	@$(PIP) install --require-hashes -r requirements/bench.lock
	@touch $@

$(ICEBERG): requirements/iceberg.lock pyproject.toml src/omnirelay/_version.py
	@python=$$(PYTHON='$(PYTHON)' sh scripts/find-python) || exit 1; \
	echo "setup: creating $(ICEBERG_VENV) with $$("$$python" --version), for Iceberg"; \
	"$$python" -m venv $(ICEBERG_VENV)
	@$(ICEBERG_PIP) install --require-hashes -r requirements/iceberg.lock
	@$(ICEBERG_PIP) install --no-deps --no-build-isolation --no-index --editable .
	@touch $@

.PHONY: setup
setup: $(PACKAGE) ## create .venv with the locked development tools and this package
	@:

# -------------------------------------------------------------------------------------- using

# The demo runs from the tree: it needs what the package needs and Spark, not the development tools.
.PHONY: demo
demo: $(LAKEHOUSE) ## a data fabric with workers that crash, a zombie and a kill -9; then its log as tables and a report
	@PYTHONPATH=src $(PY) -m examples.demo $(ARGS)

.PHONY: bench
bench: setup ## measure the kernel
	@$(PY) -m benchmarks.kernel $(ARGS)

.PHONY: bench-http
bench-http: setup ## measure a node over HTTP beside a bare application
	@$(PY) -m benchmarks.http $(ARGS)

.PHONY: bench-gates
bench-gates: setup ## measure what the gates cost, with core plain and compiled
	@$(PY) -m benchmarks.gates $(ARGS)

.PHONY: bench-replication
bench-replication: setup servers ## measure every sink beside the log, and what callers notice of it
	@$(PY) -m benchmarks.replication $(ARGS)

.PHONY: bench-lakehouse
bench-lakehouse: setup ## measure the way from segments to tables, and every reader (ARGS=--quick: in a minute)
	@$(PY) -m benchmarks.lakehouse $(ARGS)

.PHONY: bench-peers
bench-peers: setup $(BENCH) ## measure a node beside Redis, PostgreSQL and beanstalkd
	@sh scripts/install-peers
	@$(PY) -m benchmarks.peers $(ARGS)

# ----------------------------------------------------------------------------------- checking

# What the tests of the sinks write to; a moment when they are there.
.PHONY: servers
servers:
	@sh scripts/install-servers

.PHONY: kafka
kafka:
	@sh scripts/fetch-kafka

.PHONY: test
test: setup servers ## run the test suite
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

# The same tests against the hot path as mypyc compiles it.
COMPILED := build/compiled

$(COMPILED)/.made: hatch_build.py $(shell find src -name "*.py") $(PACKAGE)
	@echo "setup: compiling the hot path"
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	@$(PY) hatch_build.py $(COMPILED)
	@touch $@

.PHONY: test-compiled
test-compiled: $(COMPILED)/.made servers ## run the tests of core, engine and service with the hot path compiled
	@PYTHONPATH=$(COMPILED) OMNIRELAY_EXPECT_COMPILED=1 \
		$(PY) -m pytest -n 2 --dist worksteal tests/unit tests/property tests/integration $(ARGS)

.PHONY: crash-test
crash-test: setup servers ## kill the process hundreds of times and check what it recovers
	@OMNIRELAY_LONG=1 $(PY) -m pytest -n 2 --dist worksteal tests/crash $(ARGS)

.PHONY: replication-test
replication-test: setup servers kafka ## kill nodes and what their sinks write to, and test with Kafka (long form)
	@OMNIRELAY_LONG=1 $(PY) -m pytest -n 2 --dist worksteal tests/crash/test_replication*.py \
		tests/integration/test_replication*.py tests/integration/test_sink*.py \
		tests/integration/test_golden_next_version.py $(ARGS)

.PHONY: spark-test
spark-test: setup ## test with Spark, also on the packaged Java and through Spark Connect (long form)
	@OMNIRELAY_LONG=1 $(PY) -m pytest tests/spark $(ARGS)

.PHONY: pipeline-crash-test
pipeline-crash-test: setup ## kill the pipeline twenty times and compare its tables with those of one clean run
	@OMNIRELAY_LONG=1 $(PY) -m pytest tests/spark/test_pipeline_kills.py $(ARGS)

.PHONY: test-iceberg
test-iceberg: $(ICEBERG) ## test the lakehouse with Iceberg, and with Delta on the same Spark, in .venv-iceberg
	@OMNIRELAY_LANE=iceberg $(ICEBERG_PY) -m pytest -o timeout=1200 tests/iceberg $(ARGS)

.PHONY: disk-test
disk-test: setup ## cut the power at every write and fail every write and flush (long form)
	@OMNIRELAY_LONG=1 $(PY) -m pytest -n 2 --dist worksteal tests/powerloss $(ARGS)

.PHONY: model-test
model-test: setup ## run the state machines against their models for long
	@OMNIRELAY_LONG=1 $(PY) -m pytest -n 2 --dist worksteal tests/property $(ARGS)

.PHONY: lint
lint: setup ## check style, types and the import contracts
	@echo "lint: ruff check"
	@$(PY) -m ruff check .
	@echo "lint: ruff format"
	@$(PY) -m ruff format --check .
	@echo "lint: mypy"
	@$(PY) -m mypy
	@echo "lint: import contracts"
	@$(VENV)/bin/lint-imports --no-logo

.PHONY: format
format: setup ## format the code and fix what can be fixed safely
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

.PHONY: wheel-test
wheel-test: setup ## build the wheels, install each into a fresh environment and use it there
	@sh scripts/wheel-test $(PY) plain
	@sh scripts/wheel-test $(PY) compiled
	@sh scripts/wheel-test $(PY) fallback

# ------------------------------------------------------------------------------------- upkeep

.PHONY: schemas
schemas: setup ## write anew what is made of the definition of the events: the .proto file and its page
	@PYTHONPATH=src $(PY) -m scripts.make_schemas

LOCK = "$$work/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-config --no-emit-index-url --custom-compile-command 'make lock' $(ARGS)

.PHONY: lock
lock: $(MADE) ## write requirements/*.lock anew (ARGS=--upgrade: with the newest versions)
	@set -eu; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PY) -m venv "$$work"; \
	"$$work/bin/python" -m pip --quiet --disable-pip-version-check --no-input install uv; \
	echo "lock: requirements/runtime.lock"; \
	$(LOCK) -o requirements/runtime.lock requirements/runtime.in >/dev/null; \
	echo "lock: requirements/dev.lock"; \
	$(LOCK) -c requirements/runtime.lock -o requirements/dev.lock requirements/dev.in >/dev/null; \
	echo "lock: requirements/lakehouse.lock"; \
	$(LOCK) -c requirements/dev.lock -o requirements/lakehouse.lock requirements/lakehouse.in >/dev/null; \
	echo "lock: requirements/bench.lock"; \
	$(LOCK) -c requirements/dev.lock -o requirements/bench.lock requirements/bench.in >/dev/null; \
	echo "lock: requirements/iceberg.lock"; \
	sed -n -e '/^pyspark==/d' -e 's/^\([A-Za-z0-9].*==.*\) \\$$/\1/p' requirements/dev.lock >"$$work/constraints"; \
	$(LOCK) --no-annotate -c "$$work/constraints" -o requirements/iceberg.lock requirements/iceberg.in >/dev/null; \
	if grep -n '://' requirements/*.lock; then echo "error: a lock names a host" >&2; exit 1; fi

.PHONY: clean
clean: ## remove .venv, .venv-iceberg, builds and caches
	@rm -rf $(VENV) $(ICEBERG_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
