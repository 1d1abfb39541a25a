# Headrace. Two commands do everything on a fresh machine: `make run` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
export PYTHONDONTWRITEBYTECODE :=  # tests and the processes they start are compiled once, not by each of them

.PHONY: help run test check static types part-1 part-2 part-3 part-4 format conformance crossed chaos chaos-spark crash delay simulate mutate fuzz bench bench-spark bench-kinesis docs generate clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run:  ## start Headrace, stream a year of flights into it, run a Spark pipeline on them, show the result
	@$(PYTHON) tools/prepare.py run
	@$(BIN)/headrace demo $(ARGS)

check:  ## lint, types, import contracts, generated files, unit and property tests (under two minutes)
	@$(PYTHON) tools/prepare.py test
	@$(MAKE) --no-print-directory -j 6 --output-sync=target static types $(PARTS) MARKED="not slow"

static:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_messages.py --check
	$(BIN)/python tools/generate_protocol_support.py --check
	$(BIN)/python tools/generate_reference.py --check
	$(BIN)/python tools/generate_client_properties.py --check
	$(BIN)/python tools/generate_hazards.py --check
	$(BIN)/python tools/draw_parts.py --check
	$(BIN)/python tools/generate_blocking_clients.py --check

types:
	$(BIN)/mypy

# Each part imports only its own files; workers of xdist would import all. More parts than cores: there are always tests that wait.
PARTS := part-1 part-2 part-3 part-4

$(PARTS): part-%:
	$(PYTEST) --part $*/4 $(if $(MARKED),-m "$(MARKED)") tests/unit tests/property tests/cost tests/simulation tests/model tests/mutations tests/benchmarks

ifdef PACKAGE
test:
	@$(PYTHON) tools/prepare.py test
	@tests=$$($(BIN)/python -m tests.suites "$(PACKAGE)") && set -x && $(PYTEST) -n 3 --dist loadfile $$tests
else
test:  ## everything that needs no special hardware (about twenty-five minutes); PACKAGE=core/log: what concerns one package
	@$(PYTHON) tools/prepare.py test
	@$(MAKE) --no-print-directory -j 6 --output-sync=target static types $(PARTS)
	$(PYTEST) -n 2 tests/fuzz
# The longest files come first, and each is one worker's; else a few of them would be left when the other workers are done.
# Most of these tests wait for other processes, so there are three times as many workers as cores.
	$(PYTEST) -n 6 --dist loadfile --no-loadscope-reorder tests/chaos tests/integration/spark tests/crash \
		tests/integration/kinesis tests/integration/zookeeper tests/acceptance tests/conformance tests/docs
	HEADRACE_ACCEL=0 $(PYTEST) -n 2 -m "not slow" tests/unit/records tests/unit/clients tests/property/test_records.py
endif

conformance:  ## the client suites alone; TARGET is kafka, kafka-3.9, headrace-secured (TLS, users, rights), or cluster (three brokers)
	@$(PYTHON) tools/prepare.py test
	$(PYTEST) tests/conformance $(if $(TARGET),--target $(TARGET))

crossed:  ## every setting of topics with every client and command, all pairs of them (two minutes)
	@$(PYTHON) tools/prepare.py test
	HEADRACE_CROSSED=1 $(PYTEST) -n 2 tests/conformance/crossed

chaos:  ## pipelines under kill -9 of workers and broker, members on a silent network, for MINUTES (10); HEADRACE_CHAOS_SEED
	@$(PYTHON) tools/prepare.py test
	HEADRACE_CHAOS_SECONDS=$$((60 * $(or $(MINUTES),10))) $(PYTEST) -s tests/chaos/test_pipeline.py tests/chaos/faulty_workers.py \
		tests/chaos/test_network_silence.py
	HEADRACE_INTERRUPT_ROUNDS=$$((200 * $(or $(MINUTES),10))) \
		$(PYTEST) tests/conformance/life/test_interrupted_clients.py --timeout 7200

chaos-spark:  ## Spark's source, sink, pipelines, archive under kill -9 of driver, worker, broker: ROUNDS (30) of each
	@$(PYTHON) tools/prepare.py test
	HEADRACE_SPARK_PIPELINES=1 $(PYTEST) tests/integration/spark/test_declarative_pipelines.py
	HEADRACE_SPARK_PLANS=1 HEADRACE_SPARK_VALUES=20000 \
		$(PYTEST) tests/integration/spark/test_pipeline_plans.py \
		tests/integration/spark/test_round_trips.py
	HEADRACE_SPARK_ROUNDS=$(or $(ROUNDS),30) $(PYTEST) -s tests/integration/spark/chaos

crash:  ## power cuts at thousands of points of recorded servers, then many cycles of kill -9 under load
	@$(PYTHON) tools/prepare.py test
	@rm -f .cache/crash/results.txt
	HEADRACE_CRASH_CHAINS=20 HEADRACE_TRUNCATION_CHAINS=20 HEADRACE_CRASH_IMAGES=100 $(PYTEST) -n 2 tests/crash --timeout 900
	HEADRACE_REFUSAL_STRIDE=1 HEADRACE_EXTREMES=5000 $(PYTEST) -n 2 tests/property/test_refused_files.py \
		tests/property/test_extremes.py --timeout 3600
	@cat .cache/crash/results.txt
	HEADRACE_KILL_CYCLES=500 $(PYTEST) tests/conformance/server/test_kill_nine.py --timeout 3600

delay:  ## a million scheduled records with kill -9, then with power cuts: each is delivered once, in time (RECORDS=n; ten minutes)
	@$(PYTHON) tools/prepare.py test
	HEADRACE_DELAYED_RECORDS=$(or $(RECORDS),1000000) \
		$(PYTEST) tests/conformance/server/test_delayed_records.py --timeout 1800 -s
	HEADRACE_DELAY_SEEDS=3000 $(PYTEST) tests/property/test_delayed_delivery_crashes.py --timeout 1800

simulate:  ## ten thousand simulation runs of broker, network, disk and clients (an hour; an interrupted run goes on); SEEDS=n
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.simulation.leases --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.simulation.groups --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.simulation.log --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.simulation.replicas --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.simulation.brokers --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.model
	HEADRACE_GROUP_ROUNDS=$(or $(ROUNDS),1000) HEADRACE_WORKER_ROUNDS=$(or $(ROUNDS),1000) \
		HEADRACE_SUBSCRIPTION_ROUNDS=$(or $(ROUNDS),1000) \
		$(PYTEST) -n 2 tests/property/test_group_rounds.py tests/property/test_worker_rounds.py \
		tests/property/test_subscription_liveness.py

mutate:  ## remove one defence after the other and see that a test fails (half an hour); PART=ACL: one area
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python -m tests.mutations $(if $(PART),"$(PART)")

fuzz:  ## damaged messages, batches and files for FUZZ_SECONDS (300), then expensive requests of a user and of an administrator (forty minutes)
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.cost --thorough
	$(BIN)/python -m tests.cost --thorough --requests-only --admin

bench:  ## measure against Apache Kafka on this machine (twenty minutes); ARGS=--page rewrites docs/reports/performance.md
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python -m benchmarks.macro.compare_kafka $(ARGS)

bench-spark:  ## measure Spark's source, sink, archive against its own Kafka connector (half an hour); ARGS=--quick, --page
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python -m benchmarks.macro.spark $(ARGS)

bench-kinesis:  ## measure Kinesis consumers (ten minutes); ARGS="--peer PYTHON" names an environment with async-kinesis[dynamodb]
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python -m benchmarks.macro.compare_kinesis $(ARGS)

docs:  ## build the documentation as a site with search into .cache/site; a broken link fails (half a minute)
	@$(PYTHON) tools/prepare.py docs
	$(BIN)/python tools/build_docs.py

generate:  ## write the generated files again
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python tools/generate_messages.py
	$(BIN)/python tools/generate_protocol_support.py
	$(BIN)/python tools/generate_reference.py
	$(BIN)/python tools/generate_client_properties.py
	$(BIN)/python tools/generate_blocking_clients.py
	$(BIN)/python tools/generate_hazards.py
	$(BIN)/python tools/draw_parts.py

format:  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what the targets made, the environment included
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache headrace-demo
