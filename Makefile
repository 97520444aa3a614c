# Every target makes the environment it needs; from a bare clone nothing else has to be typed.
#
#   make demo    convert, verify, load and train on generated photos, in a minute; two diagnoses in demo-out/
#   make test    the tests of the day, a few minutes on two cores
#   make test-all   all tests, several times as long    make test-night   those alone that `make test` leaves out
#   make setup   the environment of a contributor, with everything that tests, checks and documentation need
#   make cpu-kinds   the tests of pixels, decoding and parity under several kinds of CPU: two minutes on two cores;
#                   CPU_KINDS_ARGS=--record writes benchmarks/results/cpu-kinds.json
#   make docs    the documentation as a site in site/; a broken link, anchor or piece of code fails
#   make lint    ruff, format    make types      mypy --strict
#   make bench   all benchmarks, docs/benchmarks.md and the README's picture (hours: close other programs)
#   make gpu-check       the GPU check, on a machine with an NVIDIA GPU (benchmarks/gpu/README.md)
#   make gpu-check-dry   the same lines on the CPU, over tiny images (a minute or two)
#   make fuzz    a million damaged files of every format that others write (an hour; FUZZ_ARGS="--inputs 10000" for fewer)
#   make versions   the tests on Python 3.11 to 3.14 with the newest torch, and on the lowest versions allowed (network, 10 GB, hours);
#                   VERSIONS_ARGS="3.14 lowest" for those alone, UV_TORCH_BACKEND=cpu in the environment for small builds of torch
#   make arm     convert and load on an emulated ARM CPU (network; see .ci/arm)
#   make resolve does pip find a consistent set for each extra? (network)
#   make constraints   pin anew what CI runs (TORCH=... and TORCHVISION=... to move those two)
#   make check-wheel   wheel and sdist from a clean clone, checked; the quick start in an empty environment with that wheel
#   make check-clean   is the work tree as committed?
#
# PYTHON=... chooses the interpreter (3.11 or newer), VENV=... the environment's place, PIP_ARGS=... further
# arguments for pip, such as --index-url, or `--extra-index-url https://download.pytorch.org/whl/cpu`
# for the small build of torch on a machine without a GPU.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
PIP_ARGS ?=
# Tests often wait for processes of theirs, so there is one worker more than cores; two more by night.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 8)))
NIGHT_JOBS ?= $(shell echo $$(($(JOBS) + 1)))
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?= --inputs 1000000
VERSIONS_ARGS ?=
CPU_KINDS_ARGS ?=
GPU_PYTHON ?= $(BIN)/python
GPU_ARGS ?=
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
CUDF ?= pylibcudf-cu13==26.10.2 rmm-cu13==26.10.0

# Tests start some hundred processes; without bytecode each of them would compile the packages again.
test test-all test-night cpu-kinds versions: export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
NEEDS := pyproject.toml constraints.txt
EXTRAS := cpu nvimgcodec remote lmdb tokens video nvdec audio video,tokens,remote code ray dali-cu12 dali-cu13 cudf-cu12 cudf-cu13 gpu-cu12 gpu-cu13 train bench docs release dev

.PHONY: setup demo test test-all test-night cpu-kinds versions arm docs lint types bench fuzz gpu-check gpu-check-dry resolve constraints check-wheel check-clean

setup: $(VENV)/.installed-dev $(VENV)/.installed-docs

demo: $(VENV)/.installed-demo
	$(BIN)/datapipe demo $(DEMO_ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not nightly' $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(NIGHT_JOBS) --dist worksteal $(PYTEST_ARGS)

test-night: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(NIGHT_JOBS) --dist worksteal -m nightly $(PYTEST_ARGS)

cpu-kinds: $(VENV)/.installed-dev
	$(BIN)/python -m tests.run_cpu_kinds $(CPU_KINDS_ARGS)

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

types: $(VENV)/.installed-dev
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.images --set photos $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.images --set 256 $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.images --set raw $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.images --set dali $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.images --set dali-uint8 $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.images --set from-torch $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.images --set any-dataset
	$(BIN)/python -m benchmarks.scaled
	$(BIN)/python -m benchmarks.containers
	$(BIN)/python -m benchmarks.cache
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.large_table
	$(BIN)/python -m benchmarks.conversations
	$(BIN)/python -m benchmarks.remote
	$(BIN)/python -m benchmarks.convert
	$(BIN)/python -m benchmarks.convert_sources
	$(BIN)/python -m benchmarks.million
	$(BIN)/python -m benchmarks.open_large
	$(BIN)/python -m benchmarks.gil
	$(BIN)/python -m benchmarks.stages --set photos
	$(BIN)/python -m benchmarks.video_stages
	$(BIN)/python -m benchmarks.stages --set 256
	$(BIN)/python -m benchmarks.parity
	$(BIN)/python -m benchmarks.attach_cost
	$(BIN)/python -m benchmarks.monitor_cost
	$(BIN)/python -m benchmarks.diagnostics virtual
	$(BIN)/python -m benchmarks.diagnostics real
	$(BIN)/python -m benchmarks.diagnostics.scripts
	$(BIN)/python -m benchmarks.diagnose_picture
	$(BIN)/python -m benchmarks.table

# The machine's own Python is meant, with its own torch: GPU_PYTHON=python3. Nothing is installed.
gpu-check:
	$(GPU_PYTHON) -m benchmarks.gpu all $(GPU_ARGS)

gpu-check-dry: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu all --dry-run $(GPU_ARGS)

fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz.py $(FUZZ_ARGS)

versions: $(VENV)/.installed-uv
	$(BIN)/python -m benchmarks.versions --jobs $(JOBS) --environments $(VENV)-versions $(VERSIONS_ARGS)

arm: $(VENV)/.installed-uv
	PATH="$(abspath $(BIN)):$$PATH" .ci/arm $(VENV)-arm

# Since 2.11 PyPI's torch is built for CUDA 13 and excludes RAPIDS for CUDA 12, so the CUDA 12 extras
# resolve with an older torch, or with one from torch's own CUDA 12 index.
resolve: $(VENV)/.made
	@failed=; for extra in $(EXTRAS); do \
		case $$extra in cpu) what=.;; *) what=".[$$extra]";; esac; \
		case $$extra in *-cu12) torch='torch<2.11';; *) torch='torch';; esac; \
		began=$$(date +%s); \
		if $(PIP) install --dry-run --ignore-installed --no-input $(PIP_ARGS) "$$what" "$$torch" >$(VENV)/resolve-$$extra.log 2>&1; \
		then echo "resolves       $$extra ($$torch), $$(($$(date +%s) - began)) s"; \
		else echo "does NOT resolve $$extra ($$torch): $(VENV)/resolve-$$extra.log"; failed=1; fi; \
	done; test -z "$$failed"

constraints:
	rm -rf $(VENV)-constraints
	$(MAKE) --no-print-directory VENV=$(VENV)-constraints $(VENV)-constraints/.made
	$(VENV)-constraints/bin/python -m pip -qq install $(PIP_ARGS) -e '.[dev,docs,release]' '$(TORCH)'
	$(VENV)-constraints/bin/python -m pip -qq install $(PIP_ARGS) --no-deps '$(TORCHVISION)' $(CUDF)
	@{ echo '# What CI runs, pinned by `make constraints`. Local builds such as +cpu satisfy a pin.'; \
	   $(VENV)-constraints/bin/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' | LC_ALL=C sort -f; } >constraints.txt
	rm -rf $(VENV)-constraints

check-wheel: $(VENV)/.installed-release
	rm -rf $(VENV)-wheel
	git clone -q . $(VENV)-wheel/clone
	$(BIN)/python -m build --outdir $(VENV)-wheel/dist $(VENV)-wheel/clone >$(VENV)-wheel/build.log || { cat $(VENV)-wheel/build.log; exit 1; }
	$(BIN)/python -m twine check --strict $(VENV)-wheel/dist/*
	$(PYTHON) -m venv $(VENV)-wheel/env
	$(VENV)-wheel/env/bin/python -m pip --disable-pip-version-check -qq install $(PIP_ARGS) -c constraints.txt $(VENV)-wheel/dist/*.whl
	mkdir $(VENV)-wheel/here
	PATH="$(abspath $(VENV)-wheel/env/bin):$$PATH" PYTHONPATH= $(VENV)-wheel/env/bin/python tests/docs/typed.py docs/quickstart.md \
		$(VENV)-wheel/here 'Make some data' Convert Load 'Diagnose a training script' 'Change one line'
	rm -rf $(VENV)-wheel/env $(VENV)-wheel/here $(VENV)-wheel/clone

check-clean:
	@test -z "$$(git status --porcelain)" || { git status --short; echo 'the work tree differs from the commit'; exit 1; }

# -- environments: a stamp is newer than what it was made from, so a second run installs nothing -------

$(VENV)/.made:
	@test -n '$(PYTHON)' || { echo 'no Python >= 3.11 found; name one: make PYTHON=/path/to/python3.11'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo '$(PYTHON) cannot make environments (on Debian and Ubuntu: apt install python3-venv)'; rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.made $(NEEDS)
	@echo 'Installing datapipe into $(VENV) ...'
	@$(PIP) install $(PIP_ARGS) -c constraints.txt -e '.[audio,nvimgcodec,tokens,video]'
	@touch $@

# torchvision is the reference of the transforms' tests. Without its dependencies it goes with any build of torch. pylibcudf
# and rmm describe their signatures, which a stand-in is held to; without CUDA they cannot be imported.
$(VENV)/.installed-dev: $(VENV)/.made $(NEEDS)
	@echo 'Installing datapipe and its test tools into $(VENV) ...'
	@$(PIP) install $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@$(PIP) install $(PIP_ARGS) -c constraints.txt --no-deps torchvision pylibcudf-cu13 rmm-cu13
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: $(VENV)/.made $(NEEDS)
	@echo 'Installing the tools of the documentation into $(VENV) ...'
	@$(PIP) install $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.installed-release: $(VENV)/.made $(NEEDS)
	@echo 'Installing the tools of a release into $(VENV) ...'
	@$(PIP) install $(PIP_ARGS) -c constraints.txt build twine
	@touch $@

$(VENV)/.installed-uv: $(VENV)/.made
	@$(PIP) install $(PIP_ARGS) 'uv>=0.8'
	@touch $@
