#!/usr/bin/env bash
# What only a machine with AMX, many cores or a GPU can show, in a few minutes and without a network. Everything goes to
# the folder $OUT (default: ./device-record): the most wanted files by name, and all of them in record.tar.gz, which is
# packed anew after each step. A step that fails or hangs leaves its words there and stops nothing.
#
#     OUT=FOLDER [WHEELS=FOLDER] [PYTHON=python3] [LIMIT=SECONDS] tests/device/run.sh
#
# k3gate is taken from .venv where that works, else built with the packages in $WHEELS and those that $PYTHON has, else
# by make. $LIMIT: no step takes longer. $K3GATE: the command itself, so that nothing is built.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
repository=$PWD python=${PYTHON:-python3} limit=${LIMIT:-900}
out=${OUT:-device-record}
mkdir -p "$out" || exit
out=$(cd "$out" && pwd)
work=$(mktemp -d)
record=$work/record
mkdir -p "$record"
trap 'rm -rf "$work"' EXIT
: >"$out/steps.txt"

step() { # step NAME SECONDS COMMAND...: output, errors and exit code under that name
  local name=$1 seconds=$2 begun=$SECONDS
  shift 2
  ((seconds > limit)) && seconds=$limit
  timeout -k 5 "$seconds" "$@" >"$record/$name.out" 2>"$record/$name.err"
  local code=$?
  echo "$name: $code after $((SECONDS - begun)) s" | tee -a "$out/steps.txt"
  tar -C "$work" -czf "$out/record.tar.gz" record
  return $code
}

keep() { # keep STEP FILE: what a step printed under a name of its own
  cp "$record/$1.out" "$out/$2"
}

step lscpu 10 lscpu
keep lscpu lscpu.txt
step flags 10 grep -m1 -E '^(flags|Features)' /proc/cpuinfo
step nodes 10 sh -c 'cat /sys/devices/system/node/online; grep -H . /sys/devices/system/node/node*/cpulist; cat /proc/meminfo'
if command -v nvidia-smi >/dev/null; then
  step nvidia 60 nvidia-smi -q -x
  step nvidia_links 60 nvidia-smi topo -m
fi

site=$work/site
if [ -n "${K3GATE:-}" ]; then
  k3gate=$K3GATE
elif [ -x .venv/bin/k3gate ] && .venv/bin/k3gate --version >/dev/null 2>&1; then
  k3gate=$repository/.venv/bin/k3gate python=$repository/.venv/bin/python
elif [ -n "${WHEELS:-}" ]; then
  step wheels 180 "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
  export PYTHONPATH=$site
  step build 420 "$python" -m pip install -q --no-index --no-deps --no-build-isolation --target "$site" .
  k3gate="$python $site/bin/k3gate"
else
  step install 600 make PYTHON="$python" .venv/.developing
  k3gate=$repository/.venv/bin/k3gate python=$repository/.venv/bin/python
fi
read -ra k3gate <<<"$k3gate"
# Not from the checkout, whose own package would be taken for the one that was built.
cd "$work" || exit
export K3GATE_STORE="$work/runs.sqlite"

run() { # run PROBE SECONDS PROFILE: a run of one probe, and all of it in one file
  step "run_$1" "$2" "${k3gate[@]}" run --probe "$1" --profile "$3" --machine device --json
  step "export_$1" 60 "${k3gate[@]}" export latest -o "$record/$1.k3run"
}

step nvml 100 "$python" -m k3gate.host.nvml && keep nvml nvml.json
step host 120 "${k3gate[@]}" host --json
step capture 120 "${k3gate[@]}" capture -o "$record/machine.tar.gz"
run pcie 240 quick
cp "$record/pcie.k3run" "$out/" 2>/dev/null
run gemm 240 quick
run memory 240 quick
run replay 200 quick
step report 60 "${k3gate[@]}" report -o "$record/report.html"
if [ -d "$repository/.venv" ] && "$python" -c 'import pytest' 2>/dev/null; then
  cd "$repository" || exit
  # Right results on every path that this CPU has.
  step products 200 "$python" -m pytest -q -p no:cacheprovider tests/probes/test_gemm_products.py \
    tests/probes/test_gemm_proofs.py tests/probes/test_gemm_paths.py tests/probes/test_gemm_probe.py
  step decode 200 "$python" -m pytest -q -p no:cacheprovider tests/probes/test_decode_kernels.py \
    tests/probes/test_decode_probe.py
fi
exit 0
