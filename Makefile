# Bertline: raw text -> pretrained and fine-tuned BERT -> ONNX -> gRPC server. `make help` lists what there is.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# Tests wait for servers and processes a quarter of the time, hence one worker more than cores; 4 at most.
TEST_WORKERS := $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 3 ? n + 1 : 4)))
# Compiled modules are kept: the tests and the demo start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
# What only slow tests need, 800 MB: Ray, MTEB, schemathesis, and playwright, which drives an installed Chromium.
SLOW_READY := $(VENV)/.ready-slow
DOCS_READY := $(VENV)/.ready-docs
# Stubs run with the protobuf they were made for and newer, so they are made with an older one, in a venv of its own.
STUBS_READY := $(VENV)/stubs/.ready
PROTOC := $(VENV)/stubs/bin/python -m grpc_tools.protoc -I protos
# Into the first folder what clients need, into the second what only the server speaks.
define generate
	$(PROTOC) --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) bertline/v1/encoder.proto
	$(PROTOC) --python_out=$(2) --pyi_out=$(2) open_inference/v2/service.proto
endef

# What a user of the retraining targets changes. ARGS adds any flag of the stage (`make pretrain ARGS=--help`).
DATA ?=
DEV ?=
TOKENIZER ?= build/tokenizer
CORPUS ?= build/corpus
DEV_CORPUS ?=
VOCAB_SIZE ?= 30522
RECIPE ?= mini
TASK ?= classification
MODE ?= unsupervised
TEACHER ?= $(error give TEACHER=..., the checkpoint to learn from; see make help)
RUN ?= runs/$(@F)
# A directory, or a repository of the Hugging Face hub: org/name or org/name@revision.
CHECKPOINT ?= runs/pretrain/checkpoint
MODEL ?= models/my-model/1
PRECISION ?= fp32
# `make serve HUB=org/name`: a folder of models for each repository, revision and precision.
HUB ?=
HUB_MODELS = build/hub/$(HUB)/$(PRECISION)
HUB_MODEL = $(HUB_MODELS)/$(notdir $(firstword $(subst @, ,$(HUB))))/1
EXPORT_ARGS ?=
MODELS ?= $(if $(HUB),$(HUB_MODELS),models)
PORT ?= 50051
METRICS_PORT ?= 9090
# Models that `make retrieval-scores` compares with BM25, and a running server that has them.
NAMES ?= embed rerank
TARGET ?=
RUNTIME ?= cpu
# HTTP API and the page to try the models in; empty for none.
HTTP_PORT ?= 8080
NPROC ?= 1
ARGS ?=
LAUNCH = -m$(if $(filter-out 1,$(NPROC)), training.launch $(NPROC))
NEED_DATA = $(if $(DATA)$(ARGS),,$(error give DATA=..., the file to read; see make help))

export TOKENIZERS_PARALLELISM ?= false

.PHONY: help
help:  ## this list
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml clients/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Python 3.11 or newer is needed, this is {v[0]}.{v[1]}; say which: make PYTHON=python3.12 ...")'
	@echo 'Installing into $(VENV): takes minutes and 2 GB, several more where PyTorch comes with CUDA'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet -e './clients[cli]' --group training --group export --group serving --group dev -c constraints.txt
	@touch $@

$(SLOW_READY): $(READY)
	$(PY) -m pip install --quiet --group ray --group mteb --group schemathesis --group browser -c constraints.txt
	@touch $@

$(DOCS_READY): $(READY)
	$(PY) -m pip install --quiet --group docs -c constraints.txt
	@touch $@

$(STUBS_READY): $(READY)
	$(PY) -m venv $(VENV)/stubs
	$(VENV)/stubs/bin/python -m pip install --quiet 'grpcio-tools==1.81.1' 'protobuf==6.33.6'
	@touch $@

## First
.PHONY: setup demo test
setup: $(READY)  ## make .venv and install everything (the other targets do it when needed)
	@echo 'Ready. Next: make serve (serves the models in models/), or make demo (trains, exports and serves a small model).'
demo: $(READY)  ## the whole pipeline on Python's own documentation: train, export, serve, score (about 10 minutes on 2 cores)
	$(PY) -m recipes.demo
test: $(READY)  ## the tests (6 minutes on 2 cores)
	$(PY) -m pytest -m 'not slow' -n $(TEST_WORKERS) --dist loadfile

## Retrain: each stage takes what the one before wrote; ARGS='...' adds flags, ARGS=--help lists them (--run-dir is RUN, --train and --data are DATA)
.PHONY: vocab corpus pretrain finetune contrastive distil grid ablations evaluate report export serve models retrieval-scores
vocab: $(READY)  ## DATA='text files or folders' TOKENIZER=folder to write, VOCAB_SIZE=30522
	$(NEED_DATA)$(PY) -m training.vocab --data $(DATA) --out $(TOKENIZER) --vocab-size $(VOCAB_SIZE) $(ARGS)
corpus: $(READY)  ## DATA='text files or folders' TOKENIZER=folder CORPUS=folder to write
	$(NEED_DATA)$(PY) -m training.corpus --data $(DATA) --tokenizer $(TOKENIZER) --out $(CORPUS) $(ARGS)
pretrain: $(READY)  ## CORPUS=folder DEV_CORPUS=folder RECIPE=tiny|mini|small|medium|base|large|modern RUN=folder NPROC=processes
	$(PY) $(LAUNCH) training.pretrain $(RECIPE) --corpus $(CORPUS) $(if $(DEV_CORPUS),--dev-corpus $(DEV_CORPUS)) --run-dir $(RUN) $(ARGS)
finetune: $(READY)  ## TASK=classification|spans|regression|multiple-choice|tagging CHECKPOINT='folder or org/name' DATA=train file DEV=dev file RUN=folder NPROC=processes
	$(NEED_DATA)$(PY) $(LAUNCH) training.finetune $(TASK) --checkpoint $(CHECKPOINT) --train $(DATA) $(if $(DEV),--dev $(DEV)) --run-dir $(RUN) $(ARGS)
contrastive: $(READY)  ## vectors of texts: MODE=unsupervised|supervised CHECKPOINT='folder or org/name' DATA='texts, or pairs' DEV=pairs with numbers RUN=folder NPROC=processes
	$(NEED_DATA)$(PY) $(LAUNCH) training.contrastive $(MODE) --checkpoint $(CHECKPOINT) --train $(DATA) $(if $(DEV),--dev $(DEV)) --run-dir $(RUN) $(ARGS)
distil: $(READY)  ## a small network learns from a large one: TASK=embedding|classification|spans|... TEACHER='folder or org/name' CHECKPOINT=student DATA='train file, or texts' DEV=dev file RUN=folder NPROC=processes
	$(NEED_DATA)$(PY) $(LAUNCH) training.distill $(TASK) --teacher $(TEACHER) --checkpoint $(CHECKPOINT) --train $(DATA) $(if $(DEV),--dev $(DEV)) --run-dir $(RUN) $(ARGS)
grid: $(READY)  ## as finetune, with several learning rates and seeds: a table of all, the best on dev, and what pretraining is worth
	$(NEED_DATA)$(PY) $(LAUNCH) training.grid $(TASK) --checkpoint $(CHECKPOINT) --train $(DATA) $(if $(DEV),--dev $(DEV)) --run-dir $(RUN) $(ARGS)
ablations: $(READY)  ## DATA=folder of text and labelled data: the paper's tables 5, 6, 8 and figure 5, in small (hours on 2 cores; ARGS='--scale full' on a GPU)
	$(NEED_DATA)$(PY) $(LAUNCH) recipes.ablations $(if $(DATA),--data $(DATA)) --run-dir $(RUN) $(ARGS)
evaluate: $(READY)  ## CHECKPOINT='folder or org/name' DATA=dev file (vectors: pairs with numbers)
	$(NEED_DATA)$(PY) -m training.evaluate $(CHECKPOINT) --data $(DATA) $(ARGS)
report: $(READY)  ## RUN=folder DATA='files to show predictions for' (default: the dev data); writes RUN/report.html
	$(PY) -m training.report $(RUN) $(if $(DATA),--data $(DATA)) $(ARGS)
export: $(READY)  ## CHECKPOINT='folder or org/name' MODEL=models/<name>/<version> PRECISION=fp32|fp16|int8
	$(PY) -m export $(CHECKPOINT) $(MODEL) --precision $(PRECISION) $(ARGS)
models: $(READY)  ## DATA=folder of text and labelled data: make bertline-mini (hours on 2 cores) and the shipped models (minutes on a GPU, days on 2 cores) anew; resumes
	$(NEED_DATA)$(PY) -m recipes.mini $(if $(DATA),--data $(DATA)) $(ARGS)
serve: $(READY)  ## MODELS=folder of models (default: models/, those of this repository), or HUB=org/name PRECISION=fp32|fp16|int8; PORT=50051 METRICS_PORT=9090 HTTP_PORT=8080
	$(if $(HUB),test -f $(HUB_MODEL)/manifest.json || $(PY) -m export $(HUB) $(HUB_MODEL) --precision $(PRECISION) $(EXPORT_ARGS))
	$(PY) -m serving $(MODELS) --port $(PORT) --metrics-port $(METRICS_PORT) $(if $(HTTP_PORT),--http-port $(HTTP_PORT)) $(ARGS)
retrieval-scores: $(READY)  ## which models search better than BM25: DATA=folder in BEIR's layout NAMES='embed rerank' MODELS=folder to serve, or TARGET=host:port
	$(NEED_DATA)$(PY) -m benchmarks.retrieval_scores $(DATA) --names $(NAMES) $(if $(TARGET),--target $(TARGET),--models $(MODELS)) $(ARGS)

## Develop
.PHONY: test-slow check format dist stubs docs
test-slow: $(SLOW_READY)  ## the tests that take minutes
	$(PY) -m pytest -m slow
check: $(STUBS_READY)  ## formatting, lint, types, and whether the stubs fit the protos
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	@rm -rf build/stubs && mkdir -p build/stubs
	$(call generate,build/stubs,build/stubs)
	diff -r -x __init__.py -x __pycache__ build/stubs/bertline/v1 clients/bertline/v1
	diff -r -x __init__.py -x __pycache__ build/stubs/open_inference/v2 serving/open_inference/v2
format: $(READY)  ## format the code
	$(VENV)/bin/ruff check --fix --quiet . ; $(VENV)/bin/ruff format .
dist: $(READY)  ## the wheels of the clients and the server, in dist/; RUNTIME=cpu|gpu
	$(PY) deploy/wheels/build.py --out dist --runtime $(RUNTIME)
	@ls dist
docs: $(DOCS_READY)  ## the documentation as a site, in build/site; writes the reference pages anew
	$(PY) docs/reference/generate.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict
	@echo 'Open build/site/index.html'
stubs: $(STUBS_READY)  ## generate the messages and stubs from protos/
	$(call generate,clients,serving)
