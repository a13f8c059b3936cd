# Everything happens in this tree: a virtual environment in .venv, compiled files in build. Pip uses its
# configured index; PYTHON=... chooses an interpreter.
#
#   make demo       a gunicorn application on timerd, from nothing, in a few minutes
#   make pipeline   a load test and its report on Spark: 5 million operations, 500,000 of them played; downloads 0.5 GB
#   make broker     a Kafka broker in which timerd does every wait: three clients, faults, and the counts of both sides
#   make test       all tests except the long ones, with lint and types; the first run downloads 0.5 GB for Spark
#   make test-long  the tests that `make test` leaves out: storms, most runs of real servers, whole programs; an hour
#   make test-lowest  quick tests with the lowest versions that pyproject.toml allows, in an environment of their own
#   make test-spark the tests on Spark alone
#   make wheels     a wheel for each CPython that is in the PATH (WHEELS="python3.13 --glibc 2.28"), into dist
#   make docs       the site, from the pages of this tree, into build/site; a dead link or an orphan fails it
#   make test-matrix  the tests on Spark with its oldest and newest version, classic and by Connect; downloads 0.5 GB
#   make test-cluster  Spark Connect, and clusters of several executors, on this machine
#   make soak       simulate the whole system, seed after seed from SEED=0, until you stop it
#   make bench      measure bench/RESULTS.md except its long suites, in some 50 minutes; the machine should be idle
#   make bench-short  shorter runs of the same measurements, in two minutes; results in build/bench
#   make accept-kafka  the Kafka broker's acceptance, in 30 minutes: a storm, a million damaged frames, up to six clients
#   make clients-kafka  install more clients for it, by name: kcat, kafkajs, the Java client, Faust and Quix
#   make sanitize   the core's tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make fuzz       coverage-guided fuzzing of frames, arenas and journals with atheris, a minute each (FUZZ_SECONDS=60)
#   make build      the editable install, after an edit of compiled sources
#   make generate   generate the C header, Cython declarations, LAYOUT.md, parts of docs/, after an edit of declarations
#   make fmt        format the Python sources
#   make lint       lint, types, stubs, generated files, workflows, and the words and links of the pages; some minutes
#   make release    check that this tree can be released, build sdist, wheels and site; print what is left for a person
#   make clean      remove the environments, the compiled files and the caches that these targets have made

# Containers often set PYTHONDONTWRITEBYTECODE. Then each process of a run, of which there are thousands, compiles every
# module that it imports.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
SPARK := .venv-spark
SPARK_OLDEST := 4.2
OLDEST := build/spark-$(SPARK_OLDEST)
LOWEST := build/lowest
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
COMPILED := pyproject.toml timerd/CMakeLists.txt $(wildcard bench/rivals/*.p[yx][xd]) $(shell find timerd client shm_layout -name '*.p[yx][xd]' -o -name '*.h') \
	timerd/compile_python.py timerd/compiled.txt $(addsuffix .py,$(shell cat timerd/compiled.txt))

SANITIZED := $(foreach name,adoption check check_damage client_fast handles commands conditions groups_core ids interleavings journal \
	journal_damage journal_files kafka kafka_664 old_purgatory owners purgatory_model damaged_frames redo batches soundness turn_bounds \
	wheel wheel_of_20,$(wildcard tests/*/test_$(name).py))
CMAKE := --config-settings=cmake.define.TIMERD_FAULTS=ON --config-settings=cmake.define.TIMERD_BENCH=ON

.PHONY: help machine demo broker accept-kafka clients-kafka pipeline test test-rest test-spark-apart test-long test-lowest test-spark test-matrix test-cluster soak bench bench-short sanitize fuzz build generate fmt lint release wheels docs clean

help:
	@sed -n 's/^#   make/make/p' Makefile

machine:
	@sh .ci/machine >/dev/null

# Builds without isolation, so that a rebuild takes seconds. The build's requirements are read from pyproject.toml.
$(VENV)/installed-%: $(COMPILED) | machine
	@echo "setting up $(VENV) ($*); from nothing this takes a minute or two:"
	@[ -x $(VENV)/bin/pip ] || { echo "  an empty virtual environment"; "$$(sh .ci/machine)" -m venv $(VENV); }
	@echo "  the build tools: Cython, scikit-build-core, and CMake if this machine has none"
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		> $(VENV)/build.txt && $(PIP) install -r $(VENV)/build.txt
	@$(PY) -c 'from scikit_build_core.build import get_requires_for_build_editable as r; print(*r({}), sep="\n")' \
		> $(VENV)/build.txt && $(PIP) install -r $(VENV)/build.txt
	@echo "  timerd and its dependencies: the longest step, 20 seconds to two minutes without output"
	@$(PIP) install --no-build-isolation --editable '.[$*]' $(CMAKE)
	@$(PY) -m compileall -q shm_layout client timerd  # now, because a process that may not write .pyc files would compile them each time
	@[ "$(VENV) $*" != ".venv test" ] || $(PY) -m pytest -q -n0 --collect-only >/dev/null || true  # compiles the tests, too
	@touch $@

demo: $(VENV)/installed-demo
	@$(PY) examples/demo/run.py

# Checks the behaviour that clients see, in a minute. accept-kafka also makes the checks `full`, `daemon` and `damaged`
# (see accept.py): a timer daemon that is full, or is stopped and killed while clients wait; damaged frames.
broker: $(VENV)/installed-test
	@$(PY) tests/kafka/acceptance/accept.py --short --clients kafka-python,aiokafka,confluent-kafka \
		--only records,no_wait,stopped,fetch,groups,quota,counts,storm

accept-kafka: $(VENV)/installed-test
	@$(PY) tests/kafka/acceptance/accept.py --json bench/results/kafka.json

# All but kcat, a package of Debian, are in build/kafka-clients. accept-kafka and the long tests use what is installed.
clients-kafka: $(VENV)/installed-test
	@$(PY) tests/kafka/acceptance/install.py

# Continues an interrupted run. To begin again: rm -r build/pipeline. For another size: PIPELINE="--ops 1000000".
PIPELINE :=
pipeline: $(VENV)/installed-test $(SPARK)/installed
	@$(SPARK)/bin/python -m timerd_spark run --out build/pipeline $(PIPELINE)

# Two parts run at once: the first mostly waits, while Spark is set up and computes. If one part fails, the other runs to
# its end. The output of Spark's tests goes to a file, which is printed when they have ended.
test: $(VENV)/installed-test
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=none test-rest test-spark-apart

test-rest:
	@$(PY) -m pytest -n5 -o faulthandler_timeout=700 --durations=40 --durations-min=3 -m 'not long'

test-spark-apart: $(SPARK)/installed
	@mkdir -p build; status=0; \
	$(MAKE) --no-print-directory test-spark > build/test-spark.txt 2>&1 || status=$$?; \
	cat build/test-spark.txt; \
	exit $$status

test-long: $(VENV)/installed-test $(SPARK)/installed
	@status=0; \
	$(PY) -m pytest -m long || status=$$?; \
	$(MAKE) --no-print-directory test-lowest || status=$$?; \
	$(SPARK)/bin/python -m pytest -n2 -m long tests/spark || status=$$?; \
	$(MAKE) --no-print-directory test-matrix || status=$$?; \
	exit $$status

# The last lines name the bounds that were not tested, because pip finds no such version here.
test-lowest: | machine
	@"$$(sh .ci/machine)" .ci/lowest.py $(LOWEST)

# All tests on Spark: on the newest version by Spark Connect, and on the oldest supported version with and without it
# (`make test` tests the newest without it). A server of Spark Connect has a fixed port, so only one runs at a time.
test-matrix: $(VENV)/installed-test $(SPARK)/installed $(OLDEST)/installed
	@status=0; \
	$(SPARK)/bin/python -m pytest -n1 -m 'long or not long' --connect tests/spark || status=$$?; \
	$(OLDEST)/bin/python -m pytest -n2 -m 'long or not long' tests/spark || status=$$?; \
	$(OLDEST)/bin/python -m pytest -n1 -m 'long or not long' --connect tests/spark || status=$$?; \
	exit $$status

$(OLDEST)/installed: pyproject.toml .ci/spark.py .ci/classes.py | $(VENV)/installed-test
	@echo "setting up $(OLDEST): Spark $(SPARK_OLDEST) is another download of 0.5 GB"
	@"$$(sh .ci/machine)" .ci/spark.py $(OLDEST) $(VENV) $(SPARK_OLDEST)
	@touch $@

# -n1, for one JVM: a second one would take 15 s of CPU to start and warm up, beside the other tests of `make test`.
test-spark: $(VENV)/installed-test $(SPARK)/installed
	@$(SPARK)/bin/python -m pytest -n1 -o faulthandler_timeout=700 --durations=25 --durations-min=3 -m 'not long' tests/spark

# Each test starts several JVMs: a minute or two in all.
test-cluster: $(VENV)/installed-test $(SPARK)/installed
	@$(SPARK)/bin/python -m pytest -n0 tests/cluster

# $(SPARK) has Spark, and takes all other packages from $(VENV).
$(SPARK)/installed: pyproject.toml .ci/spark.py .ci/classes.py | $(VENV)/installed-test
	@echo "setting up $(SPARK): Spark is a download of 0.5 GB, and 1.2 GB on the disk; a minute or two without output"
	@"$$(sh .ci/machine)" .ci/spark.py $(SPARK) $(VENV)
	@touch $@

SEED := 0
soak: $(VENV)/installed-test
	@$(PY) tests/support/run.py simulation.engine --seed $(SEED) --soak

bench: $(VENV)/installed-bench
	@$(PY) bench/run.py

bench-short: $(VENV)/installed-bench
	@$(PY) bench/run.py --short

WHEELS :=
wheels: | machine
	@"$$(sh .ci/machine)" .ci/wheels.py $(WHEELS)

# The site needs its own environment: Sphinx imports timerd for the reference.
docs: $(VENV)/installed-docs
	@$(PY) -m sphinx --fail-on-warning --keep-going --quiet -c docs -d build/site/doctrees . build/site/html
	@echo "build/site/html/docs/index.html"

# `make sanitize` has an environment and a build of its own. Python itself is not instrumented, so LD_PRELOAD loads the
# sanitizers before Python. PYTHONMALLOC=malloc allocates each object by itself: otherwise a read beyond a frame would
# stay in a pool of Python, where the sanitizers do not see it.
sanitize: | machine
	@$(MAKE) --no-print-directory VENV=.venv-sanitize CMAKE='$(CMAKE) --config-settings=build-dir=build/sanitize \
		--config-settings=cmake.define.TIMERD_SANITIZE=ON' .venv-sanitize/installed-test
	@LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libubsan.so)" \
		PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		.venv-sanitize/bin/python -m pytest --timeout=1200 -o faulthandler_timeout=1500 --maxfail=3 $(SANITIZED)

FUZZ_SECONDS := 60
fuzz: $(VENV)/installed-test
	@$(PIP) install atheris
	@for target in daemon client arena journal; do $(PY) tests/support/run.py support.fuzz $$target -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 || exit 1; done

build: | machine
	@rm -f $(VENV)/installed-*
	@$(MAKE) --no-print-directory $(VENV)/installed-test

generate: | machine
	@PYTHONPATH=shm_layout "$$(sh .ci/machine)" -m timerd_shm.generate
	@PYTHONPATH=shm_layout:. "$$(sh .ci/machine)" docs/generate_tables.py
	@PYTHONPATH=. "$$(sh .ci/machine)" docs/drawings/draw.py

fmt: $(VENV)/installed-test
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format --quiet .

lint: $(VENV)/installed-test
	@$(PY) -m pytest -q -m 'not long' tests/docs

# Makes no tag and uploads nothing. RELEASE=--check leaves out the builds.
RELEASE :=
release: $(VENV)/installed-test
	@$(PY) .ci/release.py $(RELEASE)

clean:
	rm -rf $(VENV) $(SPARK) .venv-sanitize build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find shm_layout client timerd tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
