# Assumes python3 (3.11 or newer) and make. Every target makes .venv from nothing when it is not there.
PYTHON ?= python3
SEED ?= 1
MINUTES ?= 10
DELIVERY ?= at_least_once
LOAD ?= requests
ROWS ?= 10000
KILLS ?= 2
TRAIN_CSV ?= train.csv

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EVERYTHING := --constraint ops/constraints.txt --editable '.[bench,delta,demo,dev,docs,iceberg,logs,object-stores,otel,parquet,registry,worker]'

# uv compiles nothing at installation: without this, every process of a machine that sets it compiles torch once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test test-gpu check docs figures bench bench-delivery bench-gpu bench-pipeline bench-serve chaos fuzz loop train-head

help:
	@echo 'make demo        classify real messages through a worker on this machine'
	@echo 'make quick       unit tests without the slow ones, the benchmarks and the broker, in a minute'
	@echo 'make test        all unit tests, and the integration tests where Java and Maven are installed'
	@echo 'make test-gpu    the tests that need a CUDA GPU (pip install .[gpu] or .[gpu-cuda13] first)'
	@echo 'make check       ruff and mypy'
	@echo 'make docs        the manual as a site in build/docs'
	@echo 'make bench       the benchmarks of this machine'
	@echo 'make bench-delivery'
	@echo '                 poison, crashes, rolling restarts and the cost of exactly_once; beside a commit: BEFORE='
	@echo 'make bench-gpu   the benchmarks of its GPU'
	@echo 'make bench-pipeline'
	@echo '                 workers behind Kafka, beside the engine alone'
	@echo 'make bench-serve what each batching policy answers in time, through Kafka'
	@echo 'make chaos       faults against brokers, workers and clients, and a check of every record: SEED= MINUTES= DELIVERY= LOAD=routes'
	@echo 'make fuzz        a million inputs to the decoders: SEED='
	@echo 'make loop        PostgreSQL, Debezium, a worker that is killed, the JDBC sink, pgvector: do both tables agree: ROWS= KILLS= SEED='
	@echo 'make figures     the tables of README.md and the notes, from the kept benchmark runs'
	@echo 'make train-head  train the demo head again: make train-head TRAIN_CSV=train.csv'

demo: $(INSTALLED)
	$(BIN)/penstock demo

quick: $(INSTALLED)
	$(BIN)/python -m pytest -p no:logging --numprocesses 2 --dist loadfile --ignore tests/integration --ignore tests/gpu --ignore-glob 'tests/ops/test_bench*' -m 'not slow and not integration' --hypothesis-profile quick

# Integration tests mostly wait: three processes keep two cores busy. In the order of their folders, the long files of
# tests/chaos and tests/integration begin early, and no process is left alone with one of them.
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu tests/gpu

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file ops/mkdocs.yml
	@echo 'Open build/docs/index.html. Search needs a server: python3 -m http.server --directory build/docs'

bench: $(INSTALLED)
	$(BIN)/penstock bench cpu

bench-delivery: $(INSTALLED)
	$(BIN)/penstock bench delivery $(if $(BEFORE),--before $(BEFORE))

bench-gpu: $(INSTALLED)
	$(BIN)/penstock bench gpu

bench-pipeline: $(INSTALLED)
	$(BIN)/penstock bench pipeline

bench-serve: $(INSTALLED)
	$(BIN)/penstock bench serving-kafka

chaos: $(INSTALLED)
	$(BIN)/penstock bench chaos --seed $(SEED) --minutes $(MINUTES) --delivery $(DELIVERY) --load $(LOAD)

fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz.million --seed $(SEED)

loop: $(INSTALLED)
	$(BIN)/python -m penstock.ops.loop --rows $(ROWS) --kills $(KILLS) --seed $(SEED)

figures: $(INSTALLED)
	$(BIN)/python -m penstock.ops.figures

train-head: $(INSTALLED)
	$(BIN)/python -m penstock.ops.demo.train_head $(TRAIN_CSV)

# The file appears last, so that an interrupted installation is taken up again.
$(INSTALLED): pyproject.toml ops/constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo 'penstock needs Python 3.11 or newer: $(PYTHON) was not found.' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "penstock needs Python 3.11 or newer: $(PYTHON) is $$($(PYTHON) -V). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo '$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@echo 'Installing penstock and its tools into $(VENV)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || echo 'uv cannot be installed here; pip takes minutes longer'
	@$(BIN)/uv pip install --quiet --python $(BIN)/python $(EVERYTHING) || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EVERYTHING)
	@touch $@
