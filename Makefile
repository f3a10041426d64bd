# `make` alone lists what there is. Needs make and Python 3.11 or newer with its venv module; no root, nothing else.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
WORKERS ?= $(shell expr $$(nproc) + 1)
ARGS ?=
ADDRESS ?=
UPGRADE ?=
KILLS ?= 1000
CUTS ?= 200
MINUTES ?= 10
POLLS ?= 10000
FUZZ ?= 1000000
SCREENS ?= 10000
MUTANTS ?= 2000
SAMPLES ?= 1.92e9
FOLDER ?= tachograph-month
DAY ?= gpu-day-results
# a Monday shortly after midnight, the last second of an hour, a leap day, both changes of the clock in Berlin; all later
# than now, as files keep the time of the kernel
MOMENTS ?= 2027-06-07_00:20:00 2027-06-07_13:59:59 2028-02-29_12:00:00 2027-03-28_01:59:50 2027-10-31_02:59:50

CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11 python3
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Bytecode is written where a module is first imported: that of all packages, most of them never imported, takes a minute.
INSTALL := $(PIP) install --quiet --no-compile
COMPILE := $(BIN)/python -m uv --quiet pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes \
	--no-annotate --no-header --no-emit-index-url $(UPGRADE)
# Bytecode is kept, also where containers forbid it: thousands of tests start processes.
export PYTHONDONTWRITEBYTECODE :=
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --benchmark-disable
# that of the machine with the GPU, which has PyTorch; else ours, for a rehearsal
DAY_PYTHON = $(or $(PYTHON),$(wildcard $(BIN)/python),python3)
BENCHMARKS := $(sort $(wildcard benchmarks/*.py))

help: ## list the targets
	@while read -r line; do case $$line in \
		[a-z]*:*" ## "*) printf '  make %-12s %s\n' "$${line%%:*}" "$${line#* \#\# }" ;; \
	esac; done < Makefile

setup: $(VENV)/dev.stamp ## set up .venv for development
demo: $(VENV)/run.stamp ## simulate a cluster, analyze it, show the findings (ARGS=... is passed on)
	$(BIN)/tachograph demo $(ARGS)

serve-demo: $(VENV)/run.stamp ## serve pages of the demo, which is made first (ADDRESS=127.0.0.1:8265)
	$(BIN)/tachograph demo --serve $(ADDRESS)

test: $(VENV)/dev.stamp ## run the tests but for those marked slow (WORKERS=3, ARGS='-k name')
	$(PYTEST) -m 'not slow' $(ARGS)

test-all: $(VENV)/dev.stamp ## run all tests (ARGS='-m slow': those that `make test` leaves out)
	$(PYTEST) $(ARGS)

test-times: $(VENV)/dev.stamp $(VENV)/real_waits.so ## run the fast tests at each of MOMENTS, in another order (needs faketime, cc; ARGS='tests/act tests/report')
	@for moment in $(MOMENTS); do \
		TZ=Europe/Berlin DONT_FAKE_MONOTONIC=1 faketime "$${moment%_*} $${moment#*_}" \
			sh -c 'LD_PRELOAD="$(CURDIR)/$(VENV)/real_waits.so $$LD_PRELOAD" exec "$$@"' sh \
			$(MAKE) test ARGS="-m 'not slow and not file_times' --order-seed=$$moment $(ARGS)" || exit 1; \
	done

$(VENV)/real_waits.so: tests/real_waits.c | $(BIN)/python
	$(CC) -shared -fPIC -o $@ $< -ldl

lint: $(VENV)/dev.stamp ## style, format, types, layers, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

counts: $(VENV)/dev.stamp ## write the work of the main paths anew, which a test compares (calls, files, bytes)
	$(BIN)/python tests/cli/work_counts.py

bench: $(VENV)/dev.stamp ## measure; each benchmark prints its numbers as JSON
	@for script in $(BENCHMARKS); do echo "$$script" >&2; $(BIN)/python "$$script" || exit 1; done

month: $(VENV)/dev.stamp ## ingest, analyze and draw SAMPLES=1.92e9 of 7,168 GPUs in FOLDER (50 GB, hours; continues)
	$(BIN)/python benchmarks/month.py --samples $(SAMPLES) --folder $(FOLDER) $(ARGS)

chaos: $(VENV)/dev.stamp ## kill every command KILLS=1000 times, fill its disk, and compare (half an hour and more)
	$(BIN)/python tests/chaos/kills.py --kills $(KILLS)
	$(BIN)/python tests/chaos/disks.py

chaos-serve: $(VENV)/dev.stamp ## kill the server and its writer of images 100 times, page through a lake that changes (10 minutes)
	$(BIN)/python tests/chaos/serving.py

power-cuts: $(VENV)/dev.stamp ## cut the power of a lake on ext4 CUTS=200 times, mount what is left, compare (root; half an hour)
	$(BIN)/python tests/chaos/power_cuts.py --cuts $(CUTS)

readers: $(VENV)/dev.stamp ## run one writer and ten readers on a lake for MINUTES=10
	$(BIN)/python tests/chaos/readers.py --minutes $(MINUTES)

polls: $(VENV)/dev.stamp ## collect POLLS=10000 times from good and bad exporters; memory, files, threads and log must stay
	$(BIN)/python tests/chaos/polls.py --polls $(POLLS)

upgrade-test: $(VENV)/dev.stamp ## read, analyze and compact lakes that earlier versions wrote (a minute)
	$(PYTEST) tests/upgrade $(ARGS)

fuzz: $(VENV)/dev.stamp ## try wide examples of every property, then FUZZ=1000000 mutations of recorded inputs (stopped, these go on)
	$(PYTEST) -m 'hypothesis and not slow' --hypothesis-profile=wide
	$(BIN)/python tests/fuzz/fuzz.py --mutations $(FUZZ) --state .fuzz.json

screens: $(VENV)/dev.stamp ## draw SCREENS=10000 screens of exporters with faults at random (a quarter of an hour and more)
	$(BIN)/python tests/live_faults/screens.py --screens $(SCREENS) $(ARGS)

mutants: $(VENV)/dev.stamp ## change the core at MUTANTS=2000 places; which do the tests notice? (an hour; stopped, it goes on)
	$(BIN)/python research/mutants.py --mutants $(MUTANTS) --state .mutants.jsonl $(ARGS)

calibrate: $(VENV)/dev.stamp ## measure this machine's GPU for the advice on sharing (ARGS='-o h200.toml'; --rehearse needs no GPU)
	$(BIN)/python research/calibrate.py $(ARGS)

gpu-day: ## measure in ten minutes what needs a GPU, in steps that are resumed (DAY=folder, ARGS=--rehearse); no network, no setup
	$(DAY_PYTHON) research/gpu-day/gpu_day.py --out $(DAY) $(ARGS)

gpu-day-pack: $(VENV)/dev.stamp ## pack wheels and sources for gpu-day on another machine (ARGS='--python-version 3.12')
	$(BIN)/python research/gpu-day/day_pack.py $(ARGS)

docs: $(VENV)/dev.stamp ## write the generated pages anew, and what commands print into the others
	$(BIN)/python docs/generate.py
	$(BIN)/python tests/doc_pages.py

site: $(VENV)/dev.stamp ## build the documentation with search into site/ (site/index.html); broken links fail
	$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs -d .doctrees . site

man: $(VENV)/run.stamp ## write the manual page, tachograph.1
	$(BIN)/tachograph help --man > tachograph.1

dist: $(VENV)/dev.stamp ## build the wheel and the source distribution into dist/
	rm -rf dist
	$(BIN)/python -c "from flit_core import buildapi as b; print(b.build_sdist('dist'), b.build_wheel('dist'))"

installs: dist ## install the wheel and each extra with locked versions, run the commands (PYTHON=python3.13; minutes)
	$(or $(PYTHON),$(BIN)/python) tests/project/installs.py dist/*.whl $(ARGS)

lock: $(VENV)/dev.stamp ## compile requirements/*.txt anew (UPGRADE=--upgrade for newer versions)
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(PIP) install --quiet uv
	$(COMPILE) --extra all --group dev --output-file requirements/dev.txt
	$(COMPILE) --extra all --group build --constraint requirements/dev.txt --output-file requirements/run.txt

clean: ## remove .venv, caches and the demo
	rm -rf $(VENV) dist site .doctrees tachograph.1 tachograph-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find src tests benchmarks docs research -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup demo serve-demo test test-all test-times lint counts bench month chaos chaos-serve power-cuts readers polls upgrade-test fuzz screens mutants calibrate gpu-day gpu-day-pack docs site man dist lock clean

# A candidate counts once it runs (a version manager's stand-in may not), is new enough and can make environments.
$(BIN)/python:
	@chosen=; reason='no Python found'; \
	for name in $(CANDIDATES); do \
		version=$$($$name -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
		if ! $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
			reason="$$name is Python $$version"; \
		elif ! $$name -c 'import venv, ensurepip' 2>/dev/null; then \
			reason="$$name lacks the venv module (Debian, Ubuntu: apt-get install python$$version-venv)"; \
		else chosen=$$name; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
		echo "make: Python 3.11 or newer with venv is needed: $$reason; or name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	echo "setting up $(VENV) with $$chosen" >&2; \
	$$chosen -m venv --clear $(VENV)

# pip is quiet for minutes
NOTE = @echo "setting up $(VENV): the packages of $< are downloaded, some minutes the first time" >&2

$(VENV)/run.stamp: requirements/run.txt pyproject.toml | $(BIN)/python
	$(NOTE)
	$(INSTALL) --require-hashes -r requirements/run.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt pyproject.toml | $(BIN)/python
	$(NOTE)
	$(INSTALL) --require-hashes -r requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(VENV)/run.stamp $@
