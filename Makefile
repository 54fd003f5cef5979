# One-word commands; `make help` lists them. Everything runs in .venv: `run` makes it with what a run needs, `install` with all.

PYTHON ?= python3
BIN := .venv/bin
BASE := .venv/.base
INSTALLED := .venv/.installed
# what Python compiles is kept for all that follows, whatever the caller's shell says
export PYTHONDONTWRITEBYTECODE :=
# compiled files come later: pip would compile thousands that nothing imports, on one core
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: help install run test test-slow simulate mutations chaos goodput soak lint format types bench bench-gpu bench-peers race docs docs-serve clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

install: $(INSTALLED)  ## make .venv with all extras (minigrid excepted) and the tools of the tests, or bring it up to date

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

$(BASE): setup.cfg pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP_INSTALL) --editable .
	touch $(BASE)

$(INSTALLED): $(BASE)
	$(PIP_INSTALL) --editable '.[dev]'
	$(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true  # some packages ship templates that are no Python
	touch $(INSTALLED)

run: $(BASE)  ## train ACER to a solved CartPole; a minute of set-up, seconds of training
	$(BIN)/apex-acer train cartpole

# three tests at once keep two cores busy, because a test often waits; a worker without tests takes over half of another's
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal

test: lint types  ## lint, types and a test of every behaviour; about 8 minutes on two cores
	$(PYTEST)

test-slow: install  ## what `make test` leaves out: learning and other whole runs, pages, wheels, browsers; about 10 minutes
	$(PYTEST) -m slow --timeout 600

SCHEDULES ?= 20000

simulate: install  ## SCHEDULES=20000 whole runs with faults, simulated under a seed each; ten minutes
	$(BIN)/python -m tests.simulation 0 $(SCHEDULES)

mutations: install  ## see that the tests of `make test` notice hundreds of faults; half an hour
	$(BIN)/python -m checks.mutations

chaos: install  ## kill, freeze, signal and feed it garbage, hundreds of times
	$(BIN)/python -m pytest -m chaos --timeout 3600

goodput: install  ## what CartPole and Pong lose by a kill a minute; half an hour, best alone
	$(BIN)/python -m checks.goodput

MINUTES ?= 30

soak: install  ## train for MINUTES=30 and see that no process's memory or open files grow
	$(BIN)/python -m checks.chaos.soak --minutes $(MINUTES)

lint: install  ## style and spelling, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $$(git ls-files)

format: install  ## style, mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install  ## strict types
	$(BIN)/mypy

bench: install  ## how near a run comes to what this machine allows; 8 minutes, best alone
	$(BIN)/python -m checks.benchmarks.bench

bench-gpu: install  ## the same beside a GPU, for the larger network too; under 10 minutes
	$(BIN)/python -m checks.benchmarks.bench --device cuda --ratios 1 4 --seconds 45 --out build/bench-gpu.json
	$(BIN)/python -m checks.benchmarks.bench --device cuda --preset atari --ratios 4 --seconds 45 --out build/bench-gpu-atari.json

# the third race, --task lunarlander-continuous, takes hours
bench-peers: install  ## race known trainers on CartPole and Pendulum, and compare rates; up to two hours, best alone
	$(BIN)/python -m checks.benchmarks.peers --task cartpole
	$(BIN)/python -m checks.benchmarks.peers --task pendulum
	$(BIN)/python -m checks.benchmarks.peer_rates --task pong
	$(BIN)/python -m checks.benchmarks.peer_rates --task continuous --rounds 3

TASK ?= pong
race: install  ## scores after 10, 30 and 60 minutes of TASK=pong (halfcheetah, …), ours and others'; an hour each, best alone
	$(BIN)/python -m checks.benchmarks.race --task $(TASK)

docs: install  ## write the reference pages that come from the code, and the site into build/site
	$(BIN)/python -m docs.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

docs-serve: install  ## show the site on http://127.0.0.1:8000, anew whenever a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --config-file docs/site/mkdocs.yml --dev-addr 127.0.0.1:8000 --watch docs

clean:  ## remove what the commands made, runs excepted
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
