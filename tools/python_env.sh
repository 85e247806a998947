#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a virtual environment that has crossmesh, built from this tree, and what its tests need.
# What is there already is kept; pyproject.toml says which packages, and in which versions.
#
#   tools/python_env.sh              in build/venv
#   tools/python_env.sh DIR          elsewhere
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
source tools/setup.sh

dir=${1:-build/venv}
python=$(command -v python3)

has_headers() {
  "$1" - <<'P' 2>/dev/null
import ensurepip, pathlib, sysconfig, tomllib, venv
assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
P
}

if [[ ! -x $dir/bin/python ]]; then
  if ! has_headers "$python"; then
    ensure_packages python3-dev python3-venv
    python=/usr/bin/python3
  fi
  "$python" -m venv "$dir"
fi
pip=("$dir/bin/python" -m pip --quiet --disable-pip-version-check)

# The build's own requirements and the tests', one a line.
requirements=$("$dir/bin/python" - <<'P'
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print("\n".join(project["build-system"]["requires"] + project["dependency-groups"]["test"]))
P
)
stamp=$dir/crossmesh-requirements.txt
if [[ ! -f $stamp || $(<"$stamp") != "$requirements" ]]; then
  mapfile -t packages <<<"$requirements"
  "${pip[@]}" install "${packages[@]}"
  printf '%s\n' "$requirements" >"$stamp"
fi

choose_cmake
PATH=$(dirname "$cmake"):$PATH
export PATH CMAKE_GENERATOR=Ninja
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
"${pip[@]}" install --no-build-isolation --no-deps --force-reinstall \
  --config-settings=cmake.define.CMAKE_MAKE_PROGRAM="$ninja" \
  --config-settings=cmake.define.CMAKE_CXX_FLAGS=-Werror .
"$dir/bin/python" -c 'import crossmesh; print("crossmesh is in", crossmesh.__path__[0])'
