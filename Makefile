# Every target installs what it needs: on a machine with Python 3.11 or newer, any of them may be run first.
PYTHON ?= python3
BIN := .venv/bin
# How long `make fuzz` attacks, and with which cases.
MINUTES ?= 10
SEED ?= 0

.PHONY: demo test test-slow test-all fuzz check docs install bench clean

demo: install
	$(BIN)/memwrap demo

test: install
	$(BIN)/python -m pytest -n 2 -q -m "not slow"

# Tests in a browser, with killed processes and full disks.
test-slow: install
	$(BIN)/python -m pytest -n 2 -q -m slow

test-all: test test-slow

# Changed images, zips, runs, reports and settings; what goes wrong is printed, and kept in fuzz/findings.
fuzz: install
	$(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Not --quiet: that would hide the warnings from --strict, such as those of dead links.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install
	$(BIN)/python benchmarks/layer.py
	$(BIN)/python benchmarks/explain.py

install: .venv/installed

# Again whenever what is to be installed has changed.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"memwrap needs Python 3.11 or newer, but $(PYTHON) is {sys.version.split()[0]}; choose another, as in: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,docs]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
