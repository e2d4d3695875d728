# Two commands do all: `make demo` shows Motet, `make test` proves it. Both first install what a fresh Debian 12 machine lacks.
BUILD := build/release
# One job per processor, but also per 1.5 GiB of memory that is free: a compiler takes up to 0.8 GiB when sanitizers are on.
JOBS ?= $(shell awk -v jobs="$$(nproc)" '/^MemAvailable/ { fit = int($$2 / 1572864); print fit < 1 ? 1 : fit < jobs ? fit : jobs }' /proc/meminfo)

.PHONY: help demo test test-all deps release dev tsan check format install clean

help:
	@echo "make demo      install what is missing, build, run the main job on the sample checkpoint, print the report"
	@echo "make test      install what is missing, build, run the tests (under 20 minutes on two cores)"
	@echo "make test-all  make test, then the long runs: every target, ThreadSanitizer, all of clang-tidy, fuzzing, other seeds, benchmarks"
	@echo "make release | dev | tsan   build one preset;  make check   the static checks;  make format   clang-format"

deps:
	@tools/install_deps.sh $(DEPS_FOR)

release dev tsan: deps
	cmake --preset $@ >build/$@.log 2>&1 || { cat build/$@.log; exit 1; }
	cmake --build --preset $@ -j $(JOBS)

build:
	@mkdir -p build
release dev tsan: | build

demo: DEPS_FOR = build
demo: release
	@echo
	$(BUILD)/bin/motet run sample/gpt-oss-tiny --layer all --input sample/gpt-oss-tiny/hidden_states.safetensors --check

test: DEPS_FOR = test
test: release
	$(MAKE) check
	ctest --preset release -j $(JOBS)
	$(MAKE) dev
	ctest --preset dev -j $(JOBS)

test-all: test
	tools/install_deps.sh test-all
	JOBS=$(JOBS) tools/test_all.sh

check: DEPS_FOR = test
check: deps
	python3 tools/check_floors.py
	python3 tools/check_lists.py
	python3 tools/check_laws.py
	python3 tools/check_symbols.py $(BUILD)
	tools/check_tidy.sh $(BUILD)

format:
	find include src bench tests \( -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \) -exec clang-format -i {} +

install: release
	cmake --install $(BUILD)

clean:
	rm -rf build
