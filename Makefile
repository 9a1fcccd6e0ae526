# Every target sets up .venv first when it is missing or stale. Only Python 3.11+, a C++ compiler and make are needed.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PEERS := .venv-peers
FLOWER := .venv-flower
RAY := .venv-ray
RLLIB := .venv-rllib
WHEEL := .venv-wheel
STUDY_DEPS := $(VENV)/.study-deps
CPP_BUILD := build/cpp-tests
# Of the installed package; the C++ tests are built apart.
CORE_SOURCES := $(shell find core CMakeLists.txt -path core/tests -prune -o \( -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt \) -print 2>/dev/null)
CPP_FILES := $(shell find core -name '*.cpp' -o -name '*.hpp' 2>/dev/null)
# What most mistakes break: bits of small runs, learning on probes, adapters to and from other libraries, imports, words.
QUICK := tests/trace tests/algos/test_probes.py tests/worlds/test_gymnasium_env.py tests/worlds/test_pettingzoo_env.py \
	tests/worlds/test_foreign.py tests/worlds/test_bring_your_own.py tests/test_arrows.py tests/docs/test_words.py

.PHONY: help house train test check quick test-browser test-flower test-portable test-ray test-rllib test-wheel setup lint cpp-test pytest stubs fields bench peers study-deps study-learning study-convoy study-airspace study-memory study-faults study-signals study-time-to-streak study-classic study-defaults study-entities study-images study-racing study-drmario study-federation study-federation-matrix study-attacks study-scaling clean
.DEFAULT_GOAL := help

help:
	@echo "make train   set up, train head_on, show what was learned (about a minute after setup)"
	@echo "make check   before every commit: lint, types, the trace of small runs, probes, adapters"
	@echo "make test    before anything lands: lint, type-check, run the C++ and Python tests"
	@echo "make bench   measure worlds and training against peers (sets up .venv-peers too), and add to their history"
	@echo "make peers   set up .venv-peers: bluesky-gym needs an environment of its own"
	@echo "make test-browser  test the web viewer and pages in chromium (the system's, or one that playwright downloads)"
	@echo "make test-flower   test the bridge to Flower on Flower's own runtime (sets up .venv-flower)"
	@echo "make test-ray      test runs on a Ray cluster of three nodes on this machine (sets up .venv-ray)"
	@echo "make test-rllib    test our worlds in RLlib, and its PPO on them (sets up .venv-rllib)"
	@echo "make test-wheel    build the wheel, let pip install it into a new .venv-wheel, and train there"
	@echo "make lint    ruff, clang-format, codespell, mypy        make stubs   regenerate slipstream/_core.pyi"
	@echo "make fields  after a change of a native world's config: the same fields for the core (core/*/fields.hpp)"
	@echo "make study-learning | study-convoy | study-airspace | study-memory | study-faults | study-signals | study-time-to-streak | study-classic | study-defaults | study-entities | study-images | study-racing | study-drmario | study-federation | study-federation-matrix | study-attacks | study-scaling   long studies, resumable"
	@echo "make study-deps   MuJoCo, Box2D and mpe2 for study-learning and study-defaults"
	@echo "make house   how large the package is, and how much of it a run loads (BESIDE=path: another checkout too)"
	@echo "make clean   remove environments and builds (runs/ and models/ stay)"
	@echo "PIP_ARGS='…' is passed to every pip install"

# --- setup ---

$(STAMP): pyproject.toml constraints.txt $(CORE_SOURCES)
	@command -v $(PYTHON) >/dev/null || { echo "Slipstream needs Python 3.11 or newer; install it, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Slipstream needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try make PYTHON=/path/to/python"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "Slipstream needs a C++20 compiler; install g++ (12 or newer) or clang (15 or newer)"; exit 1; }
	@test -x $(BIN)/python || { echo "== making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "== installing torch (downloads about 200 MB, 870 MB on disk)"; $(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) torch==2.13.0; }
	@test -e $(STAMP) && echo "== sources or versions have changed: bringing $(VENV) up to date and building the core again (about a minute)" || echo "== installing what Slipstream needs (downloads about 150 MB) and building its core (about a minute)"
	@$(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt scikit-build-core nanobind cmake ninja
	@$(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $(STAMP)

setup: $(STAMP)

# --- use ---

train: $(STAMP)
	$(BIN)/slipstream train head_on

# --- the gates ---

# Both halves at the same time, one core each.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 -O lint quick

quick: $(STAMP)
	$(BIN)/pytest $(QUICK)

house: $(STAMP)
	$(BIN)/python tools/house.py $(if $(BESIDE),--beside $(BESIDE))

test: lint cpp-test pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/codespell
	$(BIN)/mypy

cpp-test: $(STAMP)
	@cmake_bin=$$(test -x $(BIN)/cmake && echo $(BIN)/cmake || command -v cmake) && \
	$$cmake_bin -S . -B $(CPP_BUILD) -DSLIPSTREAM_TESTS=ON -DSLIPSTREAM_SANITIZE=ON >/dev/null && \
	{ $$cmake_bin --build $(CPP_BUILD) -j 2 -- -s > $(CPP_BUILD)/build.log 2>&1 || { grep -E 'error|warning' $(CPP_BUILD)/build.log; exit 1; }; } && \
	$$(dirname $$cmake_bin)/ctest --test-dir $(CPP_BUILD) --output-on-failure

pytest: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile --durations 15

test-portable: $(STAMP)  ## the tests of processes, replay, federation and sweeps without calls that only Linux has
	SLIPSTREAM_PORTABLE=1 $(BIN)/pytest tests/runtime tests/collect tests/replay tests/federate tests/run/test_workers.py tests/run/test_in_step.py tests/run/test_shared_replay.py tests/scale/test_place.py tests/cli/test_federate.py tests/cli/test_sweep_verb.py

test-browser: $(STAMP)
	@$(BIN)/python -c 'import playwright' 2>/dev/null || { echo "== installing playwright (downloads about 45 MB)"; $(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt playwright; }
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "== installing chromium (downloads about 170 MB)"; $(BIN)/playwright install chromium; }
	$(BIN)/pytest tests/view/test_browser.py tests/view/test_report_browser.py

# Flower holds back packages (rich, protobuf) and its simulation needs Ray: an environment that sees .venv, and has these.
test-flower: $(FLOWER)/.ready
	$(FLOWER)/bin/python -m pytest tests/federate/test_flower.py

$(FLOWER)/.ready: $(STAMP) constraints.txt
	@echo "== making $(FLOWER) for Flower and Ray (downloads about 110 MB)"
	@$(PYTHON) -m venv $(FLOWER)
	@packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	echo "import site; site.addsitedir('$$packages')" > $$($(FLOWER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/slipstream.pth
	@$(FLOWER)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt flwr==1.41.0 ray==2.60.0
	@touch $@

# Ray is 330 MB with what it needs, so it is not in .venv: an environment that sees .venv, and has it.
test-ray: $(RAY)/.ready
	$(RAY)/bin/python -m pytest tests/scale/test_ray.py

$(RAY)/.ready: $(STAMP) constraints.txt
	@echo "== making $(RAY) for Ray (downloads about 75 MB)"
	@$(PYTHON) -m venv $(RAY)
	@packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	echo "import site; site.addsitedir('$$packages')" > $$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/slipstream.pth
	@$(RAY)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt ray==2.60.0
	@touch $@

# RLlib holds back Gymnasium: an environment that sees .venv, and has RLlib's own before it.
test-rllib: $(RLLIB)/.ready
	$(RLLIB)/bin/python -m pytest tests/scale/test_rllib.py tests/scale/test_tune.py

$(RLLIB)/.ready: $(STAMP) constraints.txt
	@echo "== making $(RLLIB) for RLlib (downloads about 100 MB)"
	@$(PYTHON) -m venv $(RLLIB)
	@packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	echo "import site; site.addsitedir('$$packages')" > $$($(RLLIB)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/slipstream.pth
	@grep -v '^gymnasium==' constraints.txt > $(RLLIB)/constraints.txt
	@$(RLLIB)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c $(RLLIB)/constraints.txt "ray[rllib]==2.60.0"
	@touch $@

# The wheel as a user gets it: built apart from this checkout's builds, installed without any extra.
test-wheel: $(STAMP)
	@rm -rf $(WHEEL) build/wheel
	@$(PYTHON) -m venv $(WHEEL)
	@echo "== building the wheel (about a minute)"
	@PIP_CONSTRAINT=constraints.txt $(WHEEL)/bin/pip wheel -q --disable-pip-version-check $(PIP_ARGS) --no-deps -w build/wheel -C build-dir=build/wheel/core .
	@echo "== installing torch (downloads about 200 MB, 870 MB on disk) and the wheel"
	@$(WHEEL)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) torch==2.13.0
	@$(WHEEL)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt build/wheel/*.whl
	SLIPSTREAM_WHEEL_PYTHON=$(abspath $(WHEEL))/bin/python $(BIN)/pytest tests/test_wheel.py -v

stubs: $(STAMP)
	$(BIN)/python -m nanobind.stubgen -q -m slipstream._core -o slipstream/_core.pyi

# After a change of a world's config class. Needs no build: the next one compiles what this writes.
fields:
	$(BIN)/python tools/fields.py

# --- longer work ---

peers: $(PEERS)/.ready

$(PEERS)/.ready: bench/peers-constraints.txt
	@echo "== making $(PEERS) for bluesky-gym (downloads about 300 MB)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) torch==2.13.0
	@$(PEERS)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c bench/peers-constraints.txt bluesky-gym bluesky-simulator cpprb
	@touch $@

bench: $(STAMP) $(PEERS)/.ready
	$(BIN)/python bench/history.py run worlds train replay learners

study-deps: $(STUDY_DEPS)

# The extras mujoco, box2d and mpe, without building the core again.
$(STUDY_DEPS): $(STAMP)
	@echo "== installing MuJoCo, Box2D and mpe2 for the learning study (downloads about 41 MB)"
	@$(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt "gymnasium[mujoco,box2d]" mpe2
	@touch $@

study-learning: $(STUDY_DEPS)
	$(BIN)/python studies/learning.py

study-racing: $(STAMP)
	$(BIN)/python studies/racing.py

study-convoy: $(STAMP)
	$(BIN)/python studies/convoy.py

study-drmario: $(STAMP)
	$(BIN)/python studies/drmario.py

study-federation: $(STAMP)
	$(BIN)/python studies/federation.py

study-attacks: $(STAMP)
	$(BIN)/python studies/federation_attacks.py

study-federation-matrix: $(STAMP)
	$(BIN)/python studies/federation_matrix.py

study-scaling: $(STAMP)
	$(BIN)/python studies/scaling.py

study-faults: $(STAMP)
	$(BIN)/python studies/faults.py

study-signals: $(STAMP)
	$(BIN)/python studies/signals.py

study-time-to-streak: $(STAMP)
	$(BIN)/python studies/time_to_streak.py

study-airspace: $(STAMP)
	$(BIN)/python studies/airspace.py

study-classic: $(STAMP)
	$(BIN)/python studies/classic.py

study-defaults: study-deps
	$(BIN)/python studies/defaults.py

study-entities: $(STAMP)
	$(BIN)/python studies/entities.py

# MinAtar alone: what it needs beside is for its windows.
study-images: $(STAMP)
	@$(BIN)/python -c 'import minatar.gym, ale_py, cv2' 2>/dev/null || { echo "== installing MinAtar, ale-py and OpenCV (downloads about 60 MB)"; $(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt ale-py opencv-python-headless; $(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt --no-deps minatar; }
	$(BIN)/python studies/images.py

study-memory: $(STAMP)
	@$(BIN)/python -c 'import popgym, minigrid' 2>/dev/null || { echo "== installing POPGym and MiniGrid (downloads about 16 MB)"; $(BIN)/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt popgym==1.0.7 minigrid==3.2.0; }
	$(BIN)/python studies/memory.py

clean:
	rm -rf build $(VENV) $(PEERS) $(FLOWER) $(RAY) $(RLLIB) $(WHEEL) .mypy_cache .ruff_cache .pytest_cache .hypothesis slipstream/*.so
