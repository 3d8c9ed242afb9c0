#!/usr/bin/env bash
# What only a machine with AMX, many cores or a GPU can show, in a few minutes. Everything goes to the folder $OUT
# (default: ./device-record), to be kept as a fixture; a step that fails leaves its words there and stops nothing.
#
#     OUT=FOLDER tests/device/run.sh
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-device-record}
mkdir -p "$out"
lscpu >"$out/lscpu.txt" 2>&1
grep -m1 -E '^(flags|Features)' /proc/cpuinfo >"$out/flags.txt" 2>&1
numactl --hardware >"$out/numactl.txt" 2>&1

step() { # step NAME COMMAND...: output, errors and exit code under that name
  local name=$1 begun=$SECONDS
  shift
  echo "$name ..."
  "$@" >"$out/$name.out" 2>"$out/$name.err"
  echo "$? after $((SECONDS - begun)) s" >"$out/$name.code"
  echo "$name: $(cat "$out/$name.code")"
}

step install make .venv/.developing
export K3GATE_STORE="$out/runs.sqlite" PATH="$PWD/.venv/bin:$PATH"
step host k3gate host --json
step capture k3gate capture -o "$out/machine.tar.gz"
# Right results first, on every path that this CPU has.
step products python -m pytest -q tests/probes/test_gemm_products.py tests/probes/test_gemm_proofs.py \
  tests/probes/test_gemm_paths.py tests/probes/test_gemm_probe.py -p no:cacheprovider
step replay python -m pytest -q tests/probes/test_decode_kernels.py tests/probes/test_decode_probe.py -p no:cacheprovider
step quick k3gate run --profile quick --json
step report k3gate report -o "$out/report.html"
step export k3gate export latest -o "$out/quick.k3run"
step peaks python benchmarks/gemm.py --only peaks --pairs 15
step memory python benchmarks/gemm.py --only memory --pairs 15
if command -v nvidia-smi >/dev/null; then
  step nvidia nvidia-smi -q -x
  step nvidia_links nvidia-smi topo -m
fi
