# Everything a developer or a first-time user runs. `make help` prints what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
SOURCES := $(shell find proxy observers -name '*.p[xy]*' -not -name '*.pyc')

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): deploy/locks/dev.txt deploy/locks/uv.txt deploy/locks/zig.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "make: needs Python 3.11 or newer as $(PYTHON) (found: $$($(PYTHON) --version 2>&1)); try: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "[setup] virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "make: $(PYTHON) cannot create a virtual environment; install its venv module (Debian: python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement deploy/locks/uv.txt || \
	  { echo "make: cannot install uv; is the package index reachable from here?" >&2; exit 1; }
	@echo "[setup] packages of deploy/locks/dev.txt (about 600 MB when nothing is cached)"
	@$(BIN)/uv pip sync --require-hashes deploy/locks/dev.txt || \
	  { echo "make: cannot install the locked packages; see the line above, then run make again" >&2; exit 1; }
	@test -n "$${CC:-}" || command -v cc gcc clang >/dev/null || \
	  { echo "[setup] no C compiler on PATH (cc, gcc, clang): taking the one of the package ziglang, 90 MB"; \
	    $(BIN)/uv pip install --quiet --require-hashes --requirement deploy/locks/zig.txt; }
	@touch $@

# Modules are compiled from .pyx files, and from some .py files (proxy/compiled/build.py). `uv pip sync` removes the
# project itself, whose installation has then nothing left to compile.
$(COMPILED): $(READY) $(SOURCES)
	@echo "[setup] compiled modules (about a minute when none is there)"
	@$(BIN)/python -m proxy.compiled.build
	@test -x $(BIN)/brokerside || $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(COMPILED) ## Create .venv and install the locked packages
	@$(BIN)/python -m proxy.local.jars fetch

.PHONY: demo
demo: setup ## From a real broker to a table: run everything once and compare the numbers (KEEP=1 leaves it running)
	@$(BIN)/brokerside demo $(if $(filter-out 0,$(KEEP)),--keep)

.PHONY: check
check: $(COMPILED) ## Static checks: format, lint, types, import contracts, the table of ProtocolVersions, promises, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.tools.import_circles
	$(BIN)/python -m tests.tools.protocol_seals
	$(BIN)/python -m tests.tools.promises
	$(BIN)/python -m tests.tools.reference --check

.PHONY: test
test: setup ## What the docs promise, once, against real Kafka and real Spark, 7 minutes (ARGS="-n 0 tests/unit": in one process, and those)
	$(BIN)/python -m pytest -n 3 -m "not slow" $(ARGS)

.PHONY: test-all
test-all: setup ## All tests: also clusters of three brokers, kills by the dozen, clients of other languages, 30 minutes
	$(BIN)/python -m pytest -n 3 $(ARGS)

.PHONY: deploy-test
deploy-test: setup ## Build, boot and run everything of deploy/, some minutes (as root: images and systemd, too)
	$(BIN)/python -m pytest tests/deploy --deploy $(ARGS)

.PHONY: bench
bench: setup ## Measure the sidecar beside other proxies, 35 minutes (ARGS=--quick: everything small, 6 minutes)
	@$(BIN)/python -m tests.tools.bench $(ARGS)

.PHONY: conformance
conformance: setup ## The same connects to a real broker and to the sidecar, compared, 7 minutes (ARGS=--quick: 1 minute)
	@$(BIN)/python -m tests.tools.conformance $(ARGS)

.PHONY: hostile
hostile: setup ## Every known attack at once beside honest clients, 11 minutes (ARGS: --seconds, --only)
	@$(BIN)/python -m tests.tools.hostile $(ARGS)

.PHONY: interop
interop: setup ## Clients of other languages through the sidecar, with TLS and without (needs node and go)
	$(BIN)/python -m pytest tests/interop --interop-tls $(ARGS)

.PHONY: fuzz
fuzz: $(COMPILED) ## Hostile bytes for everything that reads a peer's, a million inputs (ARGS: --inputs, --seed, --seconds)
	@$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: fuzz-sanitized
fuzz-sanitized: $(COMPILED) ## make fuzz with AddressSanitizer and UndefinedBehaviorSanitizer in the compiled modules (needs gcc)
	@$(BIN)/python -m tests.tools.sanitized tests.fuzz $(ARGS)

PYTHONS ?= $(shell for minor in 11 12 13 14; do python3.$$minor --version >/dev/null 2>&1 && echo python3.$$minor; done; true)

.PHONY: wheels
wheels: $(READY) ## Build dist/*.whl for every CPython from 3.11 to 3.14 on PATH (PYTHONS="python3.12 ...": for those)
	@rm -rf build/wheels dist/*.whl
	@for python in $(PYTHONS); do \
	  echo "[wheels] $$($$python --version)"; \
	  $(BIN)/uv build --quiet --wheel --python $$python --build-constraints deploy/locks/dev.txt --require-hashes --out-dir build/wheels; \
	done
	@test -x build/auditwheel/bin/auditwheel || { $(BIN)/uv venv --quiet build/auditwheel && \
	  $(BIN)/uv pip install --quiet --python build/auditwheel --require-hashes --requirement deploy/locks/wheels.txt; }
	@PATH="$(CURDIR)/build/auditwheel/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheels/*.whl 2>&1 | grep "Fixed-up"

.PHONY: format
format: $(READY) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: docs
docs: $(COMPILED) ## Write the generated reference pages again
	$(BIN)/python -m tests.tools.reference

.PHONY: lock
lock: $(READY) ## Resolve the dependencies of pyproject.toml again
	echo 'uv==$(shell $(BIN)/uv --version | cut -d" " -f2)' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header - --output-file deploy/locks/uv.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev --generate-hashes --no-emit-index-url --custom-compile-command "make lock" pyproject.toml --output-file deploy/locks/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --constraint deploy/locks/dev.txt --extra coordinator pyproject.toml --output-file deploy/locks/runtime.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra spark --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --constraint deploy/locks/dev.txt pyproject.toml --output-file deploy/locks/jobs.txt
	printf 'auditwheel\npatchelf\n' | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" - --output-file deploy/locks/wheels.txt
	echo ziglang | $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --custom-compile-command "make lock" - --output-file deploy/locks/zig.txt
	printf 'focus-validator==1.0.0\nmultimethod<2\n' | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" - --output-file deploy/locks/focus.txt
	printf 'check-jsonschema\ncyclonedx-bom\nkubernetes-validate\n' | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" - --output-file deploy/locks/deploy.txt
	printf 'moto[s3]\nflask\nflask-cors\n' | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock" - --output-file deploy/locks/s3.txt

.PHONY: sbom
sbom: $(COMPILED) ## Write what ships as CycloneDX documents again, after make lock
	$(BIN)/python -m tests.tools.sbom

.PHONY: clean
clean: ## Remove the virtual environment and every cache inside the project
	rm -rf $(VENV) .brokerside .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find proxy observers -name "*.so" -delete
