# SPDX-License-Identifier: Apache-2.0
# Sourced by demo.sh and test.sh. `ensure_packages NAME...` installs the Debian packages that are
# missing, or prints the one line that would and returns 1. `choose_cmake` sets
# $cmake, $ctest and $ninja.
# shellcheck shell=bash

build_packages=(g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev
  libxxhash-dev libzmq3-dev cppzmq-dev libgtest-dev librapidcheck-dev libbenchmark-dev python3)
fuzz_packages=(clang-14 libclang-rt-14-dev)

missing_packages() {
  local name
  for name in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed ||
      printf '%s\n' "$name"
  done
}

ensure_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    printf 'set-up: this is no Debian system; it must have what these hold:\n  %s\n' "$*" >&2
    return 0
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) && return 0
  local line="apt-get install --yes --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    # Without a terminal nobody can type a password.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 && -z ${CI:-} ]]; }; then
      as_root=(sudo)
    else
      printf 'set-up: some packages are missing, and only root installs them. Run\n  sudo %s\n' \
        "$line" >&2
      return 1
    fi
  fi
  printf 'set-up: installing %s\n' "${missing[*]}"
  local command
  read -ra command <<<"$line"
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  local log
  log=$(mktemp)
  # The lists may be old or absent: they are fetched only where the packages are not found.
  if ! "${as_root[@]}" "${command[@]}" </dev/null >"$log" 2>&1 &&
    ! { "${as_root[@]}" apt-get update </dev/null >"$log" 2>&1 &&
      "${as_root[@]}" "${command[@]}" </dev/null >>"$log" 2>&1; }; then
    cat "$log" >&2
    rm -f "$log"
    printf 'set-up: apt-get failed. Run\n  sudo %s\n' "$line" >&2
    return 1
  fi
  rm -f "$log"
}

# A cmake that runs and reads presets of version 6: the first on PATH, else the system's.
choose_cmake() {
  local candidate version
  for candidate in "$(command -v cmake || true)" /usr/bin/cmake; do
    [[ -n $candidate ]] || continue
    version=$("$candidate" --version 2>/dev/null |
      sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p') || continue
    if [[ $(printf '3.25\n%s\n' "$version" | sort -V | head -1) == 3.25 ]]; then
      cmake=$candidate
      # A ninja earlier on PATH may be a shim that runs nothing.
      ninja=/usr/bin/ninja
      [[ -x $ninja ]] || ninja=$(command -v ninja)
      ctest=${candidate%cmake}ctest
      return 0
    fi
  done
  printf 'set-up: no cmake of version 3.25 or later was found\n' >&2
  return 1
}
