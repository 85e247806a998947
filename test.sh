#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and passes every test: the dev preset, the Python package in a virtual
# environment, families of models against real vLLM, then the sanitizers, the fuzz target and the
# conventions. Needs no arguments, no input and no network once the packages are there.
#
#   ./test.sh            all of it
#   ./test.sh --quick    the dev preset, the Python package and the conventions
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=tools/setup.sh
source tools/setup.sh

fuzz_seconds=30
quick=false
case ${1:-} in
  '') ;;
  --quick) quick=true ;;
  *)
    printf 'usage: ./test.sh [--quick]\n' >&2
    exit 2
    ;;
esac

closing=()
closing_lines='^(Ran [0-9]|[0-9]+% tests passed|[0-9]+ passed|tidy:|All checks passed|Success: '
closing_lines+='|stat::number_of_exec)'
SECONDS=0

# run NAME COMMAND...: shows the output, and fails on a failure or a compiler's warning.
run() {
  local name=$1 log=build/log/$1.log from=$SECONDS
  shift
  printf '== %s\n' "$name"
  if ! "$@" </dev/null 2>&1 | tee "$log"; then
    printf '%s\n' "test.sh: $name failed; its output is in $log" >&2
    exit 1
  fi
  if grep -nE '(^|[^[:alnum:]-])[Ww]arning:|^nanobind: leaked' "$log" >&2; then
    printf '%s\n' "test.sh: $name gave warnings; its output is in $log" >&2
    exit 1
  fi
  local line
  line=$(grep -E "$closing_lines" "$log" | tail -1) || true
  closing+=("$(printf '%-14s %4d s  %s' "$name" $((SECONDS - from)) "$line")")
}

cores=$(nproc)
packages=("${build_packages[@]}")
$quick || packages+=("${fuzz_packages[@]}")
ensure_packages "${packages[@]}"
choose_cmake
mkdir -p build/log

options=(-DCMAKE_MAKE_PROGRAM="$ninja")
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi

build() {
  run "$1-configure" "$cmake" --preset "$1" "${options[@]}" "${@:2}"
  run "$1-build" "$cmake" --build --preset "$1"
}

run_suites() {
  run "$1-test" "${@:2}" "$ctest" --preset "$1" --parallel "$cores"
}

build dev
run_suites dev
run python-env tools/python_env.sh build/venv
run python-style build/venv/bin/ruff check
run python-format build/venv/bin/ruff format --check
run python-types build/venv/bin/mypy
$quick || run vllm-env tools/vllm_env.sh build/venv
run python-test build/venv/bin/python -m pytest --quiet -o faulthandler_timeout=120
run tidy python3 tools/tidy.py

if ! $quick; then
  run vllm-test build/venv/bin/python -m pytest --quiet -o faulthandler_timeout=540 tests/vllm
  build asan -DCROSSMESH_BENCH=OFF
  run_suites asan
  build tsan -DCROSSMESH_BENCH=OFF
  # ThreadSanitizer needs its shadow where randomised mappings may lie.
  fixed=(setarch "$(uname -m)" --addr-no-randomize)
  "${fixed[@]}" true 2>/dev/null || fixed=()
  run_suites tsan "${fixed[@]}"

  run fuzz-configure "$cmake" -S tests/fuzz -B build/fuzz -G Ninja \
    -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_CXX_FLAGS=-Werror "${options[@]}"
  run fuzz-build "$cmake" --build build/fuzz
  mkdir -p build/fuzz/found
  run header-fuzz build/fuzz/header_fuzz -max_total_time="$fuzz_seconds" -timeout=10 \
    -rss_limit_mb=2048 -artifact_prefix=build/fuzz/ -dict=tests/fuzz/header.dict \
    -verbosity=0 -print_funcs=0 -print_final_stats=1 build/fuzz/found tests/fuzz/corpus
fi

printf '\n== all passed, in %d s\n' "$SECONDS"
printf '   %s\n' "${closing[@]}"
