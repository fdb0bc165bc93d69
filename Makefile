# make demo    set up and run the whole pipeline on the embedded target
# make test    set up and run the tests
# make check   lint, format, types, import contracts and tests
# make pictures the pictures of the documentation, anew, from the run of `make demo`
#
# PYTHON=python3.12    another interpreter (3.11 or newer)
# PIP_ARGS="..."       for pip, for example --extra-index-url https://download.pytorch.org/whl/cpu (torch without CUDA)
# PYTEST_ARGS="..."    for pytest, for example --slow, or -n 0 to run all tests in one process
# PICTURES_ARGS="..."  for docs/pictures.py, for example --root DIR or --only bench wiring

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
PICTURES_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
SOURCES := eagle3ops jobs screens assets tests docs

.PHONY: demo test lint format types imports check pictures clean
.DELETE_ON_ERROR:

demo: $(VENV)/stamp-run
	$(BIN)/eagle3ops --job pipeline --root demo; code=$$?; \
	report=$$(ls -d demo/runs/*/artifacts/report/report.html 2>/dev/null | tail -n 1); \
	if [ -n "$$report" ] && { [ $$code -eq 0 ] || [ $$code -eq 3 ]; }; then echo "report: $(CURDIR)/$$report"; fi; \
	exit $$code

# Half of a test is waiting. A file stays in one process, as its tests share what was expensive to make.
test: $(VENV)/stamp-dev
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/stamp-dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/stamp-dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

types: $(VENV)/stamp-dev
	$(BIN)/mypy

imports: $(VENV)/stamp-dev
	$(BIN)/lint-imports

check: lint types imports test

pictures: $(VENV)/stamp-dev
	$(BIN)/python docs/pictures.py --root demo $(PICTURES_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp stands for a finished installation; it is made anew when what is to be installed has changed.
$(VENV)/stamp-run: pyproject.toml constraints.txt | venv
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[train,gguf]' -c constraints.txt
	@touch $@

$(VENV)/stamp-dev: pyproject.toml constraints.txt | venv
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[train,gguf,dev]' -c constraints.txt
	@touch $@ $(VENV)/stamp-run

.PHONY: venv
venv:
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; Python 3.11 or newer is needed: make PYTHON=python3.12" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$$($(PYTHON) --version) is too old; Python 3.11 or newer is needed: make PYTHON=python3.12" >&2; exit 1; }; \
	  echo "setting up $(VENV)"; \
	  rm -rf $(VENV); \
	  $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	fi
