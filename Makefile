# Every target does its own set-up: on a machine with Python 3.11 or newer, any of them may be run first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check install bench clean

demo: install
	$(BIN)/memwrap demo

test: install
	$(BIN)/python -m pytest -n 2 -q

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python benchmarks/layer.py
	$(BIN)/python benchmarks/explain.py

install: .venv/installed

# Anew whenever what is to be installed has changed.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"memwrap needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}; say which, as in: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
