#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows the whole of it: builds crossmesh, makes a checkpoint of Qwen3-0.6B's size with random
# weights, plans the move from two FSDP ranks into two tensor-parallel engine ranks, then moves it
# between processes and checks every element. About 1.5 GB of disk and 6 GB of memory.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=tools/setup.sh
source tools/setup.sh

ensure_packages "${build_packages[@]}"
choose_cmake
options=(-DCMAKE_MAKE_PROGRAM="$ninja")
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi

printf '== building (the first time takes a few minutes)\n'
mkdir -p build/log
if ! { "$cmake" --preset release "${options[@]}" &&
  "$cmake" --build --preset release --target crossmesh; } </dev/null >build/log/demo.log 2>&1; then
  tail -40 build/log/demo.log >&2
  exit 1
fi

crossmesh=build/release/bin/crossmesh
model=build/demo/qwen3-0.6b
meshes=(--trainer fsdp=2 --engine tp=2)

show() {
  printf '\n$ %s\n' "crossmesh ${*:2}"
  "$@"
}

if [[ ! -f $model/config.json ]]; then
  rm -rf "$model"
  show "$crossmesh" synth "$model" --config tests/data/configs/qwen3-0.6b.json --seed 1 --shards 2
fi
show "$crossmesh" plan "$model" "${meshes[@]}" --opaque model.norm.weight
# A busy machine may be slow to give each rank its memory.
show "$crossmesh" move "$model" "${meshes[@]}" --opaque model.norm.weight --iterations 9 \
  --timeout 120
