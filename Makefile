# make run    set up, measure this machine, write report.html
# make test   the tests that a user runs (under 6 minutes on 2 cores)
# make check  linters, types, floors
# make help   the rest

PYTHON  ?= python3
VENV    ?= .venv
PROFILE ?= quick
TARGET  ?= residency-lab
BIN     := $(VENV)/bin
NATIVE  := probes/native probes/native/decode probes/native/gemm probes/native/network probes/native/storage k3gate/model/checkpoint/native
SOURCES := pyproject.toml CMakeLists.txt $(wildcard $(NATIVE:%=%/*))

.DEFAULT_GOAL := help
.PHONY: help run test test-long check format bench clean preflight

help:
	@grep -E '^# make' Makefile | sed 's/^# //'
	@echo "make test-long  every test, also the slow ones, with Chromium and a cross compiler where they are found"
	@echo "make format     rewrite the sources as make check wants them"
	@echo "make bench      the speed lines, as paired ratios with intervals"
	@echo "make clean      remove what the other targets made, but never a stored run"

preflight:
	@$(PYTHON) tools/preflight.py

$(VENV)/.installed: $(SOURCES) | preflight
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing k3gate and its kernels into $(VENV) (a minute or two, once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[pyperf]'
	@touch $@

$(VENV)/.developing: $(SOURCES) | preflight
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing k3gate, its kernels and what tests and linters need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

run: $(VENV)/.installed
	@$(BIN)/k3gate run --profile $(PROFILE) --target $(TARGET) --report report.html

test: $(VENV)/.developing
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not long and not browser and not network" $(ARGS)

test-long: $(VENV)/.developing
	@$(BIN)/python -m pytest -q $(ARGS)

check: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run --Werror $(wildcard $(NATIVE:%=%/*.[ch]pp) probes/native/*/*.inl) tests/native/*.cpp
	$(BIN)/python tools/tidy.py

format: $(VENV)/.developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(wildcard $(NATIVE:%=%/*.[ch]pp) probes/native/*/*.inl) tests/native/*.cpp

bench: $(VENV)/.developing
	$(BIN)/python benchmarks/read_bandwidth.py
	$(BIN)/python benchmarks/store_bandwidth.py
	$(BIN)/python benchmarks/expert_reads.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/loaded_bandwidth.py
	$(BIN)/python benchmarks/gemm.py
	$(BIN)/python benchmarks/replay_factors.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/physics.py
	$(BIN)/python benchmarks/checksums.py
	$(BIN)/python benchmarks/conversions.py
	$(BIN)/python benchmarks/client.py
	$(BIN)/python benchmarks/inspections.py
	$(BIN)/python benchmarks/monitor.py
	$(BIN)/python benchmarks/storage.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/command_times.py

clean:
	rm -rf $(VENV) build dist report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
