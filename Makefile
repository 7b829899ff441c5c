# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both create .venv and install the exact versions of constraints.txt; both are safe to repeat.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# One thread per process: small tensors gain nothing from more, and tests run side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint unit slow readme chromium bench bench-peers docs clean

demo: $(INSTALLED)
	$(BIN)/zoo fit group_horseshoe --data digits --seed 0

test: lint unit

lint: $(INSTALLED) readme
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

unit: $(INSTALLED) chromium
	$(BIN)/pytest -n 2 -m "not slow"

slow: $(INSTALLED)
	$(BIN)/pytest -n 2 -m slow

# The table of methods in the README is made from the registry.
readme: $(INSTALLED)
	$(BIN)/python docs/methods_table.py README.md

# The report is tested in a real browser; without one these tests are skipped and say so.
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
		echo "There is no Chromium: the browser tests are skipped."

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.targets

bench-peers: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e ".[bench]"
	$(BIN)/pip install -q --no-deps -r benchmarks/peers.txt
	$(BIN)/python -m benchmarks.speed --peers

docs: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	$(BIN)/sphinx-build -W -b html docs docs/_build

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

# An interrupted installation leaves no stamp, so the next call starts it again.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@
