#!/usr/bin/env bash
# Everything on the device machine: device.sh PIECE.tar.xz, in the checkout's root, results under $OUT. About six minutes.
# STEPS="engines" runs some of the steps, MODES="native sidecar" some of the engines, PROFILE=1 says where their time goes.
# A step that fails says so and costs itself, not the others; logs come back in one file.
set -uo pipefail
here=$(realpath "$(dirname "$0")"); root=$(realpath "$here/../../.."); work=${WORK:-$(mktemp -d)}; begin=$SECONDS
mkdir -p "$work" "$OUT"
export PYTHONPATH="$work/site:$root/python:$here" PATH="$work/site/bin:$PATH" PYTHONUNBUFFERED=1 TRITON_CACHE_DIR="$work/triton" CUDA_CACHE_PATH="$work/nv"
export CUDA_CACHE_MAXSIZE=4294967296 VLLM_CACHE_ROOT="$work/cache" VLLM_CONFIG_ROOT="$work/config" TORCHINDUCTOR_COMPILE_THREADS=4 OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TRITON_CACHE_AUTOTUNING=1

logs() { # what comes back of the logs: the ends of all, in one file
  for log in "$work"/*.log; do printf '\n===== %s\n' "$log"; tail -c 60000 "$log"; done > "$OUT/logs.txt"
}
trap logs EXIT
step() { # step SECONDS NAME COMMAND...: its log, its time, its status
  local limit=$1 name=$2 at=$SECONDS; shift 2
  timeout -k 5 "$limit" "$@" > "$work/$name.log" 2>&1
  local status=$?
  echo "[$((SECONDS - begin)) s] $name: $([ $status = 0 ] && echo ok || echo "FAILED ($status): $(tail -n 2 "$work/$name.log" | tr '\n' ' ' | cut -c1-300)") in $((SECONDS - at)) s" | tee -a "$OUT/steps.txt"
  return $status
}
entry_point() { # as an installed wheel has it: vLLM's processes find the plugin by it
  local info="$work/site/draftfast-0.1.0.dist-info"; mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: draftfast\nVersion: 0.1.0\n' > "$info/METADATA"
  printf '[vllm.general_plugins]\ndraftfast = draftfast_vllm:register\n' > "$info/entry_points.txt"
}
model() {
  python3 "$here/make_model.py" "$work/model" || return
  for kept in side:ids missing:missing full:full; do
    draftfast quantize "$work/model" --vocab "$work/model/${kept#*:}.txt" -o "$work/${kept%:*}" --force || return
  done
}
large() { # the 27B's shapes
  draftfast synth qwen3.5-dense --scale full -o "$work/27b" --force || return
  seq 0 64127 > "$work/27b.txt"
  draftfast quantize "$work/27b" --vocab "$work/27b.txt" -o "$work/27b-side" --force
}
export -f model large; export here work

wanted() { [[ " ${STEPS:-large engines kernels load units} " == *" $1 "* ]]; }
step 60 unpack bash -c 'mkdir -p "$work/site" && { tar -xJf "$0" -C "$work/site" || python3 -m tarfile -e "$0" "$work/site"; }' "$1" || exit 1
entry_point
wanted large && { step 150 large bash -c large & }
step 90 smoke python3 "$here/smoke.py" &
smoke=$!
step 150 model bash -c model; made=$?
wait "$smoke"; runs=$?
if wanted engines && [ $made = 0 ] && [ $runs = 0 ]; then
  step 480 engines python3 "$here/compare.py" "$work" "$OUT" 330 ${MODES:-}
fi
wait
wanted kernels && step 90 kernels python3 "$here/kernels.py" "$OUT/kernels.json" && grep -v '^right.*ok.: True' "$work/kernels.log" | cut -c1-900
wanted load && step 60 load python3 "$root/tests/e2e/load_time.py" "$work/27b" "$work/27b-side" && cp "$work/load.log" "$OUT/load.txt" && tail -n 25 "$OUT/load.txt"
wanted units && step 60 units python3 -m pytest -q -p no:cacheprovider "$root/tests/python"
cat "$OUT/table.txt" "$OUT/steps.txt"
