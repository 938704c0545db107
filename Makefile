# The command menu. Every target does its own set-up.
SHELL := /bin/bash
WATTHERD := .venv/bin/wattherd
DEMO := runs/demo
DEMO_PACK := runs/demo-pack
DEMO_JOBS := runs/demo-jobs
POLICIES := wattherd,fgd,pwr+fgd:0.1,best-fit,gpu-packing,random
JOBS ?= 2
# What a test's module sets up is set up once: a worker takes half of what the other has left.
TESTS := .venv/bin/pytest -n $(JOBS) --dist worksteal
# What has real clocks waits half of its time: twice as many at a time keep the cores busy.
WAITING := .venv/bin/pytest -n $(shell expr 2 \* $(JOBS)) --dist worksteal
# A file's tests share a control plane: each worker has one at a time.
PLANES := .venv/bin/pytest -n $(JOBS) --dist loadfile
# Hundreds of programs are started by tests: they load what is compiled, whatever an image says.
unexport PYTHONDONTWRITEBYTECODE
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-adaptive demo-pack demo-schedule test kernels search-kernels quick test-all test-python test-torch test-slow test-kube test-servers kube-binaries mutation lint type format golden bench reproduce lock docs clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/.demo: pyproject.toml scripts/venv.sh
	@echo "setting up .venv (once; about half a minute from a warm package cache)"
	@scripts/venv.sh .demo fast

.venv/.live: pyproject.toml sdk/pyproject.toml scripts/venv.sh
	@echo "setting up .venv (once; about half a minute from a warm package cache)"
	@scripts/venv.sh .live server

.venv/.dev: pyproject.toml scripts/venv.sh
	@echo "setting up .venv with the development tools (once)"
	@scripts/venv.sh .dev all dev

setup: .venv/.dev ## everything a developer needs, in .venv

demo: .venv/.live ## real trainings under a budget that is cut midway; leaves runs/demo/report.html
	@$(WATTHERD) demo --out $(DEMO)

demo-adaptive: .venv/.live ## ten elastic trainings under fifo, aiturbo and ours, a budget cut midway
	@$(WATTHERD) demo --adaptive --out runs/demo-adaptive

demo-pack: .venv/.demo ## placement under fragmentation and power on a generated cluster
	@rm -rf $(DEMO_PACK) && mkdir -p $(DEMO_PACK)
	@$(WATTHERD) traces generate --family default --nodes 1213 --seed 1 --out $(DEMO_PACK)/input >/dev/null
	@$(WATTHERD) sim pack --nodes $(DEMO_PACK)/input/nodes.csv --pods $(DEMO_PACK)/input/pods.csv \
	  --policy $(POLICIES) --load 1.3 --seed 1..3 --out $(DEMO_PACK)
	@$(WATTHERD) report $(DEMO_PACK)

demo-schedule: .venv/.demo ## training jobs under a power budget that is cut by a quarter
	@rm -rf $(DEMO_JOBS) && mkdir -p $(DEMO_JOBS)
	@$(WATTHERD) traces generate-jobs --jobs 600 --gpus 64 --load 1.5 --longest 4h --seed 1 \
	  --power-profiles resnet50,bert-squad,deepspeech2,shufflenet --out $(DEMO_JOBS)/jobs.csv >/dev/null
	@$(WATTHERD) sim run --jobs $(DEMO_JOBS)/jobs.csv --format native --preset none \
	  --cluster 8x8:V100M16 --policy fifo-backfill,srtf,tiresias,capacity,gandiva \
	  --budget 0:12kW,6h:9kW --out $(DEMO_JOBS)
	@$(WATTHERD) report $(DEMO_JOBS)

test: .venv/.dev ## lint, types and quick tests: needs nothing but Python; says what it leaves out
	@$(MAKE) --no-print-directory --keep-going -j2 lint search-kernels type kernels
	@$(MAKE) --no-print-directory quick

kernels: .venv/.dev # what places pods is compiled once, and not by each worker for itself
	@mkdir -p runs/kernels
	@$(WATTHERD) traces generate --family default --nodes 8 --seed 1 --out runs/kernels/input --force >/dev/null
	@$(WATTHERD) sim pack --nodes runs/kernels/input/nodes.csv --pods runs/kernels/input/pods.csv \
	  --policy fgd --out runs/kernels >/dev/null

search-kernels: .venv/.dev # and what Pollux searches with: a minute, beside types
	@.venv/bin/python scripts/search_kernels.py

quick: .venv/.dev # tests in milliseconds
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} \
	  $(TESTS) -m "not slow and not long and not kube" $(PYTEST)

test-all: .venv/.dev test-servers lint type ## all that CI runs: real servers, and a control plane where it is built
	@$(WAITING) -m "not slow and not kube" $(PYTEST)
	@$(PLANES) -m "not slow and kube" $(PYTEST)

test-python: ## quick tests with another Python, in an environment of its own: PYTHON=python3.13
	@scripts/test-python.sh "$(PYTHON)" $(JOBS) $(PYTEST)

test-torch: runs/torch/.torch ## examples that need PyTorch and stable-baselines3, in an environment of their own (5 GB)
	@runs/torch/bin/python -m pytest -n 1 -m "not slow and not kube" tests/service/test_sb3_example.py \
	  tests/service/test_torch_jobs.py $(PYTEST)

runs/torch/.torch: pyproject.toml scripts/venv.sh
	@mkdir -p runs
	@VENV=runs/torch scripts/venv.sh .dev all dev
	@runs/torch/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --group torch
	@touch $@

test-slow: .venv/.dev ## what takes long: every published bin of every trace
	@$(TESTS) -m "slow and not kube"

test-kube: .venv/.dev ## on a real control plane only, the slow ones included
	@$(PLANES) -m kube

kube-binaries: ## etcd, Kubernetes, KWOK and helm for these tests: built from Go modules, once
	@scripts/kube-binaries.sh

test-servers: .venv/.dev ## servers that tests talk to (Debian packages, as root)
	@scripts/test-servers.sh

mutation: .venv/.dev ## change the core in one place at a time: do quick tests notice? (MINUTES=10)
	@.venv/bin/python scripts/mutation.py --minutes $(or $(MINUTES),10) $(MODULES)

lint: .venv/.dev ## ruff, spelling and the import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/codespell *.md docs src sdk/src scripts deploy
	@.venv/bin/lint-imports --no-logo 2>/dev/null | tail -n 1 | grep '0 broken'

type: .venv/.dev ## mypy --strict
	@.venv/bin/mypy

format: .venv/.dev ## rewrite the sources in the house style
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

docs: .venv/.dev ## the documentation as a site in runs/docs/site; a dead link is an error
	@.venv/bin/python scripts/site.py

bench: .venv/.dev ## speed and memory, as in docs/speed.md
	@.venv/bin/python benchmarks/run.py --svg docs/img/cost-per-arrival.svg

reproduce: .venv/.dev ## both placement papers, every figure (about ten minutes)
	@$(WATTHERD) reproduce fgd-atc23
	@$(WATTHERD) reproduce pwr-ccgrid25

lock: .venv/.dev ## renew requirements.lock: every version and hash, resolved by uv
	@.venv/bin/uv lock --upgrade
	@.venv/bin/uv export --quiet --all-extras --all-groups --no-group torch --no-emit-project --no-emit-package wattherd-train \
	  --format requirements-txt --output-file requirements.lock

clean: ## remove what these targets made
	@rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
