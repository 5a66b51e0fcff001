# Two commands do everything: `make run` builds and serves, `make test` builds and tests. All of it stays in .venv and build.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# PYTHON=python3.12 make run  chooses another interpreter (3.10 or later)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := tests/requirements.txt
ARGS ?=
# Tests wait more than they compute, so more of them than cores; WORKERS=0: one after the other, as plain pytest does
WORKERS ?= 5
PARALLEL = -n $(WORKERS) --dist loadscope --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without byte code each process of a test takes twice the CPU to start, and each worker rewrites the assertions of all tests
unexport PYTHONDONTWRITEBYTECODE

SOURCES := $(shell find src -path src/kbroker/_core -prune -o \( -name '*.pyx' -o -name '*.pxd' -o -name '*.h' \
    -o -path '*/messages/*.json' -o -path '*/common/errors.py' -o -path '*/protocol/batch_format.py' -o -path '*/protocol/compression.py' \) -print) # setup.py reads the last four
# A strict editable install links single files by their whole paths, so a new or renamed one needs an install too, and so does a
# copy of this folder, which would run the files of the first one: this list changes then.
TREE := $(shell { pwd -P; find src -type f \( -name '*.py' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.json' -o -name '*.properties' -o -name '*.h' -o -path '*/templates/*' -o -path '*/assets/*' \); } | LC_ALL=C sort | cksum | tr ' ' -)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

.PHONY: run
run: $(VENV)/.built ## build what is missing and serve a broker on 127.0.0.1:9092; ARGS="..." goes to `kbroker serve`
	@exec $(BIN)/kbroker serve $(ARGS)

.PHONY: build
build: $(VENV)/.built ## compile into .venv

.PHONY: test
test: $(VENV)/.built $(VENV)/.locked spark-classes build/kafka-classes ## the whole suite: what any change can break
	$(BIN)/python -m pytest -m "not soak" --benchmark-disable $(PARALLEL) $(ARGS)

# It saves each start of Spark 3 s of CPU. The tests do without it where there is no Java; only CI demands that it can be made.
# A JVM ignores without a word an archive that was written in another folder, so that the folder is in the name.
CLASSES := build/spark-classes-$(shell pwd -P | tr -d '\n' | sha256sum | cut -c 1-8).jsa
.PHONY: spark-classes
spark-classes: $(CLASSES)
$(CLASSES): $(LOCK) tests/spark/class_archive.py tests/spark/write_class_archive.py | $(VENV)/.built $(VENV)/.locked
	@if command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" > /dev/null; then \
	  $(BIN)/python -m tests.spark.write_class_archive $@ || [ -z "$$KBROKER_REQUIRE_ALL" ]; fi

# The same for Apache Kafka: a start takes 1.4 s of CPU and not 2.5, and no test writes an archive, for which a node takes 3 s
build/kafka-classes: $(addprefix tests/support/kafka/,pom.xml jars.py write_class_archive.py) | $(VENV)/.built $(VENV)/.locked
	@if command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" > /dev/null; then mkdir -p build && \
	  { $(BIN)/python -m tests.support.kafka.write_class_archive && touch $@ || [ -z "$$KBROKER_REQUIRE_ALL" ]; }; fi

# What each worker of a fresh clone would do first: rewrite the assertions of all tests, and wait for compiled modules
.PHONY: collected
collected: | $(VENV)/.built $(VENV)/.locked
	@mkdir -p build && $(BIN)/python -m pytest -q --collect-only > build/collected || { tail -50 build/collected; exit 1; }
	@$(BIN)/python bench/purgatory/build.py > /dev/null

# The linters beside the tests, two at a time; each one's lines stay together
.PHONY: check
check: $(VENV)/.built $(VENV)/.locked ## what to run while one works: linters, unit and property tests
	@$(MAKE) --no-print-directory -j 2 --output-sync=target lint quick

.PHONY: quick
quick: $(VENV)/.built $(VENV)/.locked
	$(BIN)/python -m pytest -q -m "not soak and not slow" --benchmark-disable $(PARALLEL) $(ARGS) \
	  --ignore=tests/unit/test_design_rules.py tests/unit tests/property # the design rules are in lint

# What the ranges of pyproject.toml touch: every optional package, and Spark behind Connect, on tables, stores and pages
RANGE_TESTS = tests/unit tests/property tests/integration/test_cli_broker.py tests/integration/test_console.py \
  tests/integration/test_metrics_port.py tests/integration/test_pytest_plugin.py tests/integration/test_request_log.py \
  tests/integration/test_top.py tests/integration/test_quota_clients.py tests/clients/test_everyday.py \
  $(addprefix tests/spark/,test_connect.py test_jobs.py test_report.py test_session.py test_source_batch.py test_source_stream.py \
  test_table_readers.py test_table_stores.py test_watch.py)

.PHONY: oldest
oldest: ## chosen tests with the oldest version that each range of pyproject.toml allows, apart in build/ranges
	tests/lint/ranges.sh oldest $(PYTHON) $(if $(ARGS),$(ARGS),$(PARALLEL) $(RANGE_TESTS))

.PHONY: newest
newest: ## the same with the newest versions
	tests/lint/ranges.sh newest $(PYTHON) $(if $(ARGS),$(ARGS),$(PARALLEL) $(RANGE_TESTS))

.PHONY: soak
soak: $(VENV)/.built $(VENV)/.locked ## the long tests: more than 1,000 kills with -9, long fuzzing
	KBROKER_SOAK=1 $(BIN)/python -m pytest -m "soak or slow" --timeout=3600 --benchmark-disable $(ARGS)

.PHONY: soak-long
soak-long: $(VENV)/.built $(VENV)/.locked ## mixed load for eight hours, every record checked; SECONDS=3600 makes it an hour
	KBROKER_LOAD_SECONDS=$(if $(filter command line,$(origin SECONDS)),$(SECONDS),28800) $(BIN)/python -m pytest -m soak -s $(ARGS) tests/integration/test_long_load.py

# A target each, the longest first: `make -j 2 --output-sync=target lint` runs two at a time, which takes half as long
LINTERS := lint-types build/cython-lint build/site/index.html lint-rules lint-sources lint-documents
.PHONY: lint $(filter lint-%,$(LINTERS))
lint: $(LINTERS) ## formatters, linters, types, stubs, layers, links of the documentation

$(LINTERS): | $(VENV)/.built $(VENV)/.locked $(VENV)/.docs

lint-types:
	$(BIN)/python -m mypy -p kbroker
	$(BIN)/python -m mypy --explicit-package-bases tests bench
	$(BIN)/python tests/lint/stubs.py

lint-rules:
	$(BIN)/python -m pytest -q tests/unit/test_design_rules.py

lint-sources:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/zizmor --offline --quiet .github/workflows
	if command -v actionlint > /dev/null; then actionlint; fi # no package for pip carries it: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

lint-documents:
	$(BIN)/python docs/generators/configuration.py --check
	$(BIN)/python docs/generators/authorization-checks.py --check
	$(BIN)/python docs/generators/metrics.py --check
	$(BIN)/python tests/lint/words.py

# Of 14 s of CPU only what changed since the last success; a declaration and its module are judged together
CYTHON_FILES := $(shell find src tests/native bench/purgatory/native -path src/kbroker/_core -prune -o -name '*.py[xd]' -print)
build/cython-lint: $(CYTHON_FILES) pyproject.toml $(LOCK)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint $(if $(filter pyproject.toml $(LOCK),$?),$(CYTHON_FILES),$(sort \
	  $(wildcard $(foreach file,$(basename $?),$(file).pyx $(file).pxd)))) # calls pycodestyle by name
	@mkdir -p build && touch $@

.PHONY: format
format: $(VENV)/.locked ## rewrite Python sources in the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: java
java: # before minutes of building, not after
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" > /dev/null || { echo "this needs Java 17 or later, on the PATH or named by JAVA_HOME; on Debian: apt-get install openjdk-17-jre-headless" >&2; exit 1; }

.PHONY: demo
demo: java $(VENV)/.built $(VENV)/.locked ## a broker, three clients of which one misbehaves, the Spark pipeline, an HTML report; needs Java 17
	$(BIN)/python examples/demo/demo.py $(ARGS)

.PHONY: bench
bench: $(VENV)/.built $(VENV)/.locked $(VENV)/.bench ## benchmarks of the cores, then loads beside peers; Apache Kafka needs Java 17 and Maven
	$(BIN)/python -m pytest bench/bench_codec.py bench/bench_queues.py bench/bench_sensors.py bench/bench_timing_wheel.py -p no:cacheprovider \
	  --benchmark-disable-gc --benchmark-max-time=0.5 --benchmark-group-by=group --benchmark-columns=median,iqr,ops \
	  --benchmark-json=build/bench-cores.json
	if $(BIN)/python -c "import matplotlib" 2> /dev/null; then plot="--plot build/loads/results"; fi; \
	  $(BIN)/python bench/loads/run.py --quick --markdown build/loads/results.md $$plot $(ARGS)

.PHONY: docs
docs: $(VENV)/.built $(VENV)/.docs build/site/index.html ## this documentation and the reference as a site in build/site, with a search
	@echo "build/site/index.html"

# A broken link or an unknown name fails; of 5 s of CPU none where no page, docstring or stub changed since the last success
SITE_SOURCES := $(shell find docs README.md .github mkdocs.yml src -type f -not -name '*.so' -not -path '*/__pycache__/*') \
  $(shell find bench examples tests -mindepth 1 -type d -not -path '*/.*' -not -name __pycache__) # files come and go, to which pages have links
build/site/index.html: $(SITE_SOURCES) $(LOCK)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: sanitize
sanitize: $(VENV)/.built $(VENV)/.locked ## the unit tests under ASan with UBSan, then under TSan
	tests/lint/sanitize.sh address,undefined $(BIN)/python
	tests/lint/sanitize.sh thread $(BIN)/python

.PHONY: fuzz
fuzz: $(VENV)/.built $(VENV)/.locked ## ten million mutated frames of all APIs, under ASan with UBSan
	KBROKER_SOAK=1 tests/lint/sanitize.sh address,undefined $(BIN)/python tests/property/test_mutated_frames.py

.PHONY: dist
dist: $(VENV)/.locked ## an sdist and a wheel, in dist
	$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > /dev/null
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

.PHONY: wheel
wheel: dist build/.tools ## a wheel, repaired by auditwheel, tried where there is no compiler
	build/tools/bin/python tests/lint/wheel.py $$(ls -t dist/kbroker-*-linux_*.whl | head -1)

.PHONY: cross
cross: $(VENV)/.built build/.tools ## compile the generated C++ for macOS, musl and Windows; print what cibuildwheel would build
	build/tools/bin/python tests/lint/cross_compile.py $(ARGS)
	for system in linux macos windows; do build/tools/bin/cibuildwheel --print-build-identifiers --platform $$system . || exit 1; done

.PHONY: clean
clean: ## remove all that was built
	rm -rf build dist $(VENV) src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -not -path 'src/kbroker/_core/*' -delete

$(VENV)/.python:
	@.ci/prerequisites $(PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The build tools and the run-time dependencies, at the versions of the lock; no build isolation, so that objects are kept.
$(VENV)/.tools: $(VENV)/.python $(LOCK)
	$(BIN)/python -m pip install -q -c $(LOCK) setuptools Cython click cramjam numpy
	@touch $@

$(VENV)/.built: $(VENV)/.tools $(SOURCES) setup.py pyproject.toml build/tree-$(TREE)
	@.ci/prerequisites $(BIN)/python
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

build/tree-$(TREE):
	@mkdir -p build && rm -f build/tree-* && touch $@

# Tools that are large or of one target only stay out of .venv.
build/.tools: $(VENV)/.python tests/lint/requirements.txt
	@mkdir -p build && $(BIN)/python -m venv build/tools
	build/tools/bin/pip install -q -r tests/lint/requirements.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.locked docs/site/requirements.txt
	$(BIN)/python -m pip install -q -c $(LOCK) -r docs/site/requirements.txt
	@touch $@

# What is measured beside the cores, and what draws: a machine without them still measures the rest.
$(VENV)/.bench: $(VENV)/.locked bench/requirements.txt
	-$(BIN)/python -m pip install -q -c $(LOCK) -r bench/requirements.txt
	@touch $@

# Byte code of the modules that are imported only: pip would compile all 1.6 GB of packages on one core.
# Tests install packages elsewhere by pip's option --python, which that of Python 3.10 lacks.
$(VENV)/.locked: $(VENV)/.tools $(LOCK)
	$(BIN)/python -m pip install -q --no-compile "pip>=22.3" -r $(LOCK)
	@touch $@
