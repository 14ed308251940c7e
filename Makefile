# Two commands: `make demo` and `make test`. Both set up what they need in .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev
OLDEST := .venv-oldest
JOBS ?= 2
SHARE ?= whole
PLATFORMS ?= linux win32 darwin
SECONDS ?=

# where this is set, every process would compile torch and transformers again: ten seconds each
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install dev demo test trust oldest lint types format docs bench clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(INSTALLED)  ## Set up .venv with citeweave and what the demo and the explorer need

dev: $(INSTALLED_DEV)  ## Add every other feature, and what tests, style and types need

$(INSTALLED): pyproject.toml constraints/newest.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"citeweave needs Python 3.11 or later, found {v.major}.{v.minor}: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv .venv
	constraints/install.sh .venv newest --editable '.[explore]'
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	constraints/install.sh .venv newest --editable '.[all,dev]'
	@touch $@

demo: install  ## 2,000 real articles: import, train, evaluate before and after, ask, map (some minutes)
	@$(BIN)/python examples/demo.py

test: dev  ## Run all tests, in JOBS processes (2)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 20 --ignore tests/faults/counted

trust: dev  ## Count what survives kills, full disks, corrupted files, ... (hours; SHARE=quick: minutes)
	CITEWEAVE_TRUST=$(SHARE) CITEWEAVE_TRUST_SECONDS=$(SECONDS) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/faults/counted

oldest: $(OLDEST)/.installed  ## Run a share of the tests with the oldest dependencies that pyproject.toml allows
	NUMBA_CACHE_DIR=$(CURDIR)/$(OLDEST)/numba $(OLDEST)/bin/python -m pytest -n $(JOBS) --dist worksteal $(OLDEST_TESTS)

# compiled code has a cache of its own, since either numba throws the other's away; docs/cli.md is as the newest click words it
OLDEST_TESTS := src/citeweave tests/corpus tests/encoders tests/vectors/test_bm25.py tests/vectors/test_formats.py \
	tests/search/test_index.py tests/search/test_words.py tests/cli/test_index.py tests/cli/test_corpus.py \
	--deselect tests/cli/test_corpus.py::test_cli_page_is_up_to_date

$(OLDEST)/.installed: pyproject.toml constraints/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	constraints/install.sh $(OLDEST) oldest --only-binary :all: --editable '.[minilm,lora,serve]' pytest pytest-xdist hypothesis httpx
	@touch $@

lint: dev  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev  ## Check types, as on Linux, Windows and macOS (PLATFORMS)
	@for platform in $(PLATFORMS); do echo "mypy --platform $$platform"; \
	    $(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform || exit 1; done

format: dev  ## Repair style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: dev  ## Write the generated pages anew and build the site of the docs into site/
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_design.py
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_stub.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: dev  ## Run the benchmarks (several minutes each)
	$(BIN)/python benchmarks/run_all.py

clean:  ## Remove .venv and what demo and tests left
	rm -rf .venv $(OLDEST) demo site examples/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
