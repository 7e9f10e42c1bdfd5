#!/usr/bin/env bash
# Everything on the device machine, in the checkout's root:
#   device.sh start PIECE.tar.xz   starts it in the background, in a copy of the checkout, and returns
#   device.sh again                the same once more, with other engines or steps, models and caches kept
#   device.sh collect [SECONDS]    waits for its end, at most so long, and puts what there is under $OUT
#   device.sh PIECE.tar.xz         start and collect
# ENGINES="native sidecar@layers=24,gpus=1; none" says which engines (see engines.py), in waves that start one after the other;
# STEPS="engines" which of the steps; PROFILE=1 adds where the engines' time goes. A step that fails says so and costs itself,
# not the others; logs come back in one file.
set -uo pipefail
here=$(realpath "$(dirname "$0")"); root=$(realpath "$here/../../.."); work=${WORK:-$(dirname "$(mktemp -u)")/draftfast-h200}; out="$work/out"
one_gpu="native sidecar seed sidecar-vllm none missing-ids full-head"

start() { # start PIECE
  rm -rf "$work"; mkdir -p "$out" "$work/tree/tests" "$work/site"
  cp -rL "$root/python" "$work/tree/python"; cp -r "$root/tests/e2e" "$root/tests/python" "$work/tree/tests"; cp -r "$root/kernels" "$work/tree/kernels"
  tar -xJf "$1" -C "$work/site" || exit 1
  again
}
again() {
  rm -f "$work/done"
  WORK="$work" setsid bash "$work/tree/tests/e2e/h200/device.sh" all > "$work/all.log" 2>&1 < /dev/null &
  echo "started in $work"
}
collect() { # collect SECONDS
  for ((i = 0; i < $1; i++)); do [ -e "$work/done" ] && break; sleep 1; done
  for log in "$work"/*.log; do printf '\n===== %s\n' "$(basename "$log")"; tail -c 60000 "$log"; done > "$out/logs.txt"
  cp "$out"/{steps.txt,logs.txt,*.json} "$OUT"; cp "$work/load.log" "$OUT/load.txt"; cat "$out/steps.txt" "$out"/engines*.txt
  [ -e "$work/done" ] || { echo "not at its end: $(ls -t "$work"/*.log | head -n 3 | tr '\n' ' ')"; tail -n 2 "$work"/native*.log "$work"/engines*.log; }
}
step() { # step SECONDS NAME COMMAND...: its log, its time, its status
  local limit=$1 name=$2 at=$SECONDS; shift 2
  timeout -k 5 "$limit" "$@" > "$work/$name.log" 2>&1
  local status=$?
  echo "[$SECONDS s] $name: $([ $status = 0 ] && echo ok || echo "FAILED ($status): $(tail -n 2 "$work/$name.log" | tr '\n' ' ' | cut -c1-300)") in $((SECONDS - at)) s" | tee -a "$out/steps.txt"
  return $status
}
wanted() { [[ " ${STEPS:-large smoke kernels engines load units} " == *" $1 "* ]]; }
entry_point() { # as an installed wheel has it: vLLM's processes find the plugin by it
  local info="$work/site/draftfast-0.1.0.dist-info"; mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: draftfast\nVersion: 0.1.0\n' > "$info/METADATA"
  printf '[vllm.general_plugins]\ndraftfast = draftfast_vllm:register\n' > "$info/entry_points.txt"
}
model() { # model LAYERS: a model and its sidecars
  local dir="$work/layers$1"
  [ -e "$dir/full/sha256sums.txt" ] && return
  python3 "$here/make_model.py" "$dir/model" "$1" || return
  for kept in side:ids missing:missing full:full; do
    draftfast quantize "$dir/model" --vocab "$dir/model/${kept#*:}.txt" -o "$dir/${kept%:*}" --force || return
  done
}
large() { # the 27B's shapes
  draftfast synth qwen3.5-dense --scale full -o "$work/27b" --force || return
  seq 0 64127 > "$work/27b.txt"
  draftfast quantize "$work/27b" --vocab "$work/27b.txt" -o "$work/27b-side" --force
}
all() {
  local layers engines=${ENGINES:-$one_gpu} models=() wave; wave=$(find "$out" -name "engines*.txt" | wc -l)
  export PYTHONPATH="$work/site:$root/python:$here" PATH="$work/site/bin:$PATH" PYTHONUNBUFFERED=1 TRITON_CACHE_DIR="$work/triton" CUDA_CACHE_PATH="$work/nv"
  export CUDA_CACHE_MAXSIZE=4294967296 VLLM_CACHE_ROOT="$work/cache" VLLM_CONFIG_ROOT="$work/config" TORCHINDUCTOR_COMPILE_THREADS=4 OMP_NUM_THREADS=1
  export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TRITON_CACHE_AUTOTUNING=1 work here
  export -f model large
  entry_point
  for layers in $(grep -o 'layers=[0-9]*' <<< "$engines layers=20" | sort -u | cut -d= -f2); do
    CUDA_VISIBLE_DEVICES=$(($(nvidia-smi -L | wc -l) - 1)) step 200 "model$layers" bash -c "model $layers" &
    models+=($!)
  done
  wanted smoke && step 120 smoke python3 "$here/smoke.py"
  wait "${models[@]}"
  # Engines do not touch a GPU in their first minute.
  wanted kernels && { step 150 kernels python3 "$here/kernels.py" "$out/kernels.json" & }
  while wanted engines && [ -n "$engines" ]; do
    step 700 "engines$((++wave))" python3 "$here/compare.py" "$work" "$out/engines$wave" 420 ${engines%%;*}
    [[ $engines == *";"* ]] && engines=${engines#*;} || engines=
  done
  wait
  wanted large && step 150 large bash -c large
  wanted load && step 60 load python3 "$root/tests/e2e/load_time.py" "$work/27b" "$work/27b-side"
  wanted units && step 180 units python3 -m pytest -q -p no:cacheprovider --ignore="$root/tests/python/test_schemas.py" "$root/tests/python"
  touch "$work/done"
}

case $1 in
  start) start "$2" ;;
  again) again ;;
  collect) collect "${2:-0}" ;;
  all) all ;;
  *) start "$1"; collect "${SECONDS_AT_MOST:-570}" ;;
esac
