# Bertline: raw text -> pretrained and fine-tuned BERT -> ONNX -> gRPC server. `make help` lists what there is.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

.PHONY: help
help:  ## this list
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml clients/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; try: make PYTHON=python3.11 ...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -m pip install --quiet -e './clients[cli]' --group training --group export --group serving --group dev -c constraints.txt
	touch $@

## First
.PHONY: setup demo test
setup: $(READY)  ## make .venv and install everything (the other targets do it when needed)
demo: $(READY)  ## the whole line on Python's own documentation: train, export, serve, ask (about 8 minutes on 2 cores)
	$(PY) -m demo
test: $(READY)  ## the tests
	$(PY) -m pytest -m 'not slow'

## Develop
.PHONY: test-slow check format stubs
test-slow: $(READY)  ## the tests that take minutes
	$(PY) -m pytest -m slow
check: $(READY)  ## formatting, lint, types, and whether the stubs fit the protos
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PY) -m grpc_tools.protoc -I protos --python_out=build --pyi_out=build --grpc_python_out=build protos/bertline/v1/encoder.proto
	diff -r -x __init__.py -x __pycache__ build/bertline/v1 clients/bertline/v1
format: $(READY)  ## format the code
	$(VENV)/bin/ruff check --fix --quiet . ; $(VENV)/bin/ruff format .
stubs: $(READY)  ## generate the messages and stubs from protos/
	$(PY) -m grpc_tools.protoc -I protos --python_out=clients --pyi_out=clients --grpc_python_out=clients protos/bertline/v1/encoder.proto
