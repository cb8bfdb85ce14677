# Both main targets set a fresh machine up by themselves; only Python 3.11 or newer is needed.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# Set in many containers: each of the tests' hundreds of processes would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check lint types typed audit coverage docs fuzz package clean

# Shows the command to type, and runs it.
TYPED_COMMAND = @printf '\n$$ nvtx-kernels %s\n\n' '$(1)' && $(PY) -m nvtx_kernels $(1)
H200 := tests/data/h200_train_fp32.sqlite

demo: $(INSTALLED)  ## rank a report of an H200, make a page of it, then record training steps here and rank them
	@mkdir -p build
	$(call TYPED_COMMAND,rank $(H200) --per-step)
	$(call TYPED_COMMAND,page $(H200) -o build/page.html)
	$(call TYPED_COMMAND,run --size tiny --record build/demo.sqlite)
	$(call TYPED_COMMAND,rank build/demo.sqlite --per-step --top 5)
	@printf '\nTo type these yourself: . $(VENV)/bin/activate\n'

# Where a worker is lost, the run ends and names its test; with another in its place, pytest-xdist waits for ever.
PYTEST := $(PY) -m pytest -q -n auto --dist loadfile --max-worker-restart=0 --durations=20 --durations-min=1

# Tests marked slow run in `make test-all`, and where CI is set.
QUICK = $(if $(CI),,-m 'not slow')

test: $(INSTALLED)  ## run the tests; without CI=1, leave out the slow ones
	$(PYTEST) $(QUICK)

test-all:  ## run all tests
	CI=1 $(MAKE) test

coverage: $(INSTALLED)  ## run the tests and hold the floor of covered lines
	$(PYTEST) --cov --cov-report=term:skip-covered

check: lint types audit test-all  ## everything a change must pass

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# The type checker finds nvtx_kernels.analysis and the like as the import system does: laid out as one package.
TYPED := build/typed/nvtx_kernels

types: $(INSTALLED) typed
	$(VENV)/bin/mypy

typed:
	mkdir -p $(TYPED)
	for part in nvtx_kernels/* analysis model profiling; do ln -sfn $(CURDIR)/$$part $(TYPED)/; done

docs: $(INSTALLED) typed  ## build the documentation; a warning is an error
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet

audit: $(INSTALLED)  ## look the pinned versions up among known vulnerabilities; skipped where nothing answers
	-$(VENV)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

fuzz: $(INSTALLED)  ## try two hundred thousand changed inputs; the tests try a fixed few
	$(PY) -m tests.fuzzing --cases 200000 --coverage

package: $(INSTALLED)  ## build wheel and source distribution in build/dist, check both, run every command of each
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --group package
	$(PY) -m tests.packaged -o build/dist

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing the tested versions into $(VENV); the first time takes minutes"
	@$(PYTHON) -m venv $(VENV)
	@{ $(PY) -m pip install --disable-pip-version-check 'pip>=25.1' && \
		$(PY) -m pip install -c constraints.txt -e '.[profiling,cluster,mcp,plot]' --group dev; } \
		>$(VENV)/install.log 2>&1 || { cat $(VENV)/install.log; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
