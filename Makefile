# Pulse. `make help` lists what can be done; every target works in a fresh clone.

SHELL = /bin/sh
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PULSE_HOME ?= $(CURDIR)/.pulse
export PULSE_HOME
# Some machines set it: then each of the many processes here compiles every module again, three seconds of a core.
unexport PYTHONDONTWRITEBYTECODE

BIN = .venv/bin
TESTS_AT_ONCE ?= 3
PACKAGES = .venv/.packages
READY = .venv/.ready
# Both `python -m venv --clear` and `pip install --editable` would change the folder that a link leads to.
OWN_VENV = if [ -L .venv ]; then echo "make: .venv is a link to $$(readlink .venv), which set-up would change: remove the link" >&2; exit 1; fi

.DEFAULT_GOAL = help
.PHONY: help setup demo up down status test test-times test-room test-room-down chromium test-fast test-slow rck trino conformance promtool docs lint format lock chaos harm hosts helm bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  Options for the program behind a target: make demo ARGS=--all"

setup: $(READY) ## Make .venv with the exact versions of requirements.lock

demo: setup ## Start everything and run real flights through it (ARGS=--all for the whole year)
	@$(BIN)/pulse demo $(ARGS)

up: setup ## Start Postgres, Kafka, MinIO, Spark, the HTTP API and Dagster on this machine
	@$(BIN)/pulse up $(ARGS)

down: setup ## Stop them; data stays in .pulse
	@$(BIN)/pulse down

status: setup ## Show what runs, where, and how much memory it takes
	@$(BIN)/pulse status $(ARGS)

# Three files at a time, each beside a stack of its own (3 GB): with four on two cores a run took an eighth longer.
# A process that dies ends the run: with --dist loadfile, xdist waits for ever for what was left of its file.
test: lint chromium ## Check style and types, then run the tests against real services
	$(BIN)/pytest --numprocesses $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 20 $(ARGS)

test-times: setup ## The same, then show where the time went: files, fixtures and tests, with processor time
	@rm -rf .pytest_times
	@$(MAKE) test ARGS="$(ARGS) --times=.pytest_times"; code=$$?; \
		PYTHONPATH=tests $(BIN)/python -m support.times .pytest_times; exit $$code

chromium: ## Install the browser that one test uses the Dagster UI with, where this account may
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing chromium" \
			&& apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null; } \
		|| echo "There is no Chromium: the test of the UI will be skipped"

test-room: setup ## The tests of one folder beside a stack that keeps running (ROOM=ingest; then: make test-room-down)
	PULSE_TEST_HOME="$(CURDIR)/.pulse-tests" $(BIN)/pytest tests/$(ROOM) $(ARGS)

test-room-down: setup ## Stop the stack of `make test-room`, and remove its data
	@PULSE_HOME="$(CURDIR)/.pulse-tests" $(BIN)/pulse down
	@rm -rf .pulse-tests

test-fast: setup ## Only tests that start no services and take no seconds, with half of the random cases
	$(BIN)/pytest --numprocesses 2 --hypothesis-profile fast -m "not (stack or long or slow)" $(ARGS)

test-slow: setup ## What `make test` leaves out for its time: more kills and cases of the same kinds, all random cases
	$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile whole $(ARGS)

rck: setup ## Iceberg's REST Compatibility Kit against the catalog; the first time it fetches 150 MB of jars
	$(BIN)/pytest -m slow tests/lake/test_rck.py -s $(ARGS)

trino: setup ## Trino with nothing but a tenant's key; the first time it fetches 540 MB
	$(BIN)/pytest -m slow tests/lake/test_trino.py tests/lake/test_trino_writes.py $(ARGS)

conformance: setup ## Random schemas and events, judged by another validator than Pulse's (CONFORMANCE_ROUNDS=20)
	CONFORMANCE_ROUNDS=$(or $(CONFORMANCE_ROUNDS),20) $(BIN)/pytest -m slow tests/validation/test_conformance.py $(ARGS)

promtool: setup ## Build what tests the alerts of docker/observability: promtool, with Go, some minutes, once
	@PYTHONPATH=tests $(BIN)/python -m support.promtool

docs: ## Build the pages as a site with search in site/, and check every link and anchor
	@[ -x .venv-docs/bin/mkdocs ] || { $(PYTHON) -m venv --clear .venv-docs && \
		.venv-docs/bin/python -m pip install --quiet mkdocs==1.6.1; }
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --clean
	@echo "Open site/index.html, or read along while you write: .venv-docs/bin/mkdocs serve"

lint: setup ## Check style (ruff) and types (mypy --strict)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## Rewrite the code in the house format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

chaos: setup ## Break it in every way it promises to survive, for hours (ARGS="run --only kafka" for a part)
	$(BIN)/python -m chaos $(or $(ARGS),run --page)

harm: setup ## Attack it as tenants and strangers could, beside a neighbour (ARGS="--only preview" for a part)
	$(BIN)/python -m chaos harm $(or $(ARGS),--page)

hosts: setup ## Pulse over hosts made of namespaces, which go and come back (ARGS="-k gone" for a part)
	$(BIN)/pytest -s -m slow tests/test_over_hosts.py $(ARGS)

helm: setup ## The chart: build helm with Go (minutes, once), render it, judge manifests, run its services on hosts
	@PYTHONPATH=tests $(BIN)/python -m support.helm
	$(BIN)/pytest -m "slow or not slow" tests/deploy/test_chart*.py $(ARGS)

bench: setup ## Compare Pulse with its peers and with the goals (ARGS=--help: what else is measured)
	$(BIN)/python -m benchmarks $(or $(ARGS),throughput)

lock: ## Resolve requirements.lock anew from pyproject.toml
	@$(PYTHON) -m venv --clear .venv-lock
	@.venv-lock/bin/python -m pip install --quiet uv
	@.venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
		--extra local --extra dev --no-emit-index-url --no-header \
		--output-file requirements.lock pyproject.toml
	@rm -rf .venv-lock
	@git diff --stat -- requirements.lock

clean: ## Stop the stack and DELETE its data, the caches and .venv (downloads stay in ~/.cache/pulse)
	@if [ -x $(BIN)/pulse ]; then $(BIN)/pulse down; fi
	@for each in postgres kafka minio; do \
		if [ -L "$(PULSE_HOME)/$$each" ]; then rm -rf "$$(readlink -f "$(PULSE_HOME)/$$each")"; fi; done
	@rm -rf "$(PULSE_HOME)" .venv .mypy_cache .ruff_cache .pytest_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Once for each lock: other clones of this account link what is in ~/.cache/pulse.
# pip compiles one module after the other, tests too: a third of its time, which all cores share here.
# It says nothing or far too much: this prints a line now and then, and errors in full.
$(PACKAGES): requirements.lock
	@$(OWN_VENV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m pulse_resources.local.minio_program </dev/null >/dev/null 2>&1 &
	@if $(PYTHON) -m pulse_resources.local.environment take .venv; then \
		echo "Linked the packages of requirements.lock into .venv, from the cache"; \
	else \
		echo "Installing $$(grep -c '==' requirements.lock) packages into .venv (some minutes the first time; MinIO is built meanwhile)"; \
		$(PYTHON) -m venv --clear .venv && \
		{ $(BIN)/python -m pip install --no-compile --progress-bar off -r requirements.lock 2>&1 || echo "ERROR: pip failed"; } | awk ' \
			/^ERROR|^error:/ { print; bad = 1; next } bad { print; next } \
			/^Collecting/ { if (++n % 20 == 0) { print "  " n " collected"; fflush() } } \
			/^Installing collected/ { print "  " n " collected, unpacking"; fflush() } \
			END { exit bad }' && \
		echo "  compiling them on $$(getconf _NPROCESSORS_ONLN) cores" && \
		{ $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib; \
			$(PYTHON) -m pulse_resources.local.environment keep .venv || true; }; \
	fi
	@touch $@

$(READY): $(PACKAGES) pyproject.toml
	@$(OWN_VENV)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
