# Both main targets set a fresh machine up by themselves; only Python 3.11 or newer is needed.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo test check lint types audit fuzz clean

demo: $(INSTALLED)  ## record a training step without nsys or a GPU, rank it, then rank a report of an H200
	mkdir -p build
	$(PY) -m profiling.run --size small --steps 2 --record build/demo.sqlite
	$(PY) -m analysis.kernels build/demo.sqlite
	$(PY) -m analysis.kernels tests/data/h200_train_fp32.sqlite

test: $(INSTALLED)  ## run the tests
	$(PY) -m pytest -q

check: lint types audit test  ## everything a change must pass

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(INSTALLED)
	$(VENV)/bin/mypy

audit: $(INSTALLED)  ## look the pinned versions up among known vulnerabilities; skipped where nothing answers
	-$(VENV)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

fuzz: $(INSTALLED)  ## try a hundred thousand changed reports; the tests try a fixed few
	$(PY) -m tests.fuzzing --cases 100000

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[profiling,dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
