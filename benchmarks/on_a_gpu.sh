#!/usr/bin/env bash
# Everything that benchmarks/results/h200_*.json says, in order of worth, on one machine with a GPU and SGLang.
#
#   bash benchmarks/on_a_gpu.sh ROOT OUT SPEC [SECONDS]
#
# ROOT  runs live there; OUT  results come there, `marks` says what ended when and how; SPEC  a pipeline file as
# benchmarks/smollm2_gpu.yaml, complete: engine.python, engine.environment and stages.generate.prompts are set in it.
# SECONDS  nothing is begun or goes on after them (3600). STEPS="extraction wrong" does only these.
#
# For the extraction and the wiring noise, which start servers of their own: ENGINE_PYTHON (python3), MODEL (the
# target's folder), ENGINE_VARIABLES ("NAME=VALUE ...", what SPEC has as engine.environment).
set -u
ROOT=${1:?} OUT=${2:?} SPEC=${3:?} LIMIT=${4:-3600}
STEPS=${STEPS:-"pipeline sweep extraction wrong noise profile"}
ENGINE_PYTHON=${ENGINE_PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
began=$(date +%s)
mkdir -p "$OUT"

mark() { echo "$(( $(date +%s) - began )) $*" >> "$OUT/marks"; }
left() { echo $(( LIMIT - ($(date +%s) - began) )); }
asked() { [[ " $STEPS " == *" $1 "* ]] && (( $(left) > 20 )); }
# Of a stage's outputs the newest; beside each lies a lock of the same name.
output() { ls -d "$ROOT"/stages/"$1"-*/ 2>/dev/null | tail -n 1; }
keep() { local from; from=$(output "$1"); shift; for file in "$@"; do cp "$from$file" "$OUT/" 2>/dev/null; done; }
eagle3ops() { timeout "$(left)" python3 -m eagle3ops "$@"; }
variables() { local flag=$1 one; for one in ${ENGINE_VARIABLES:-}; do printf '%s %s ' "$flag" "$one"; done; }
POOL=(--max-total-tokens 200000 --mem-fraction-static 0.85)

mark begin
if asked pipeline; then
  eagle3ops --job pipeline --spec "$SPEC" --root "$ROOT" --json > "$OUT/pipeline.jsonl" 2> "$OUT/pipeline.txt"
  mark "pipeline, exit code $?"
  keep bench bench.json; keep verify verdict.json; keep train prediction.json metrics.jsonl; keep report report.md
fi
if asked sweep; then
  python3 "$here/sweep_faults.py" "$ROOT" --kill 1 --stop 1 > "$OUT/faults.jsonl" 2>&1 &
  eagle3ops --job sweep --spec "$SPEC" --root "$ROOT" > "$OUT/sweep.txt" 2>&1
  mark "sweep, exit code $?"
  wait
  keep sweep sweep.json rows.jsonl
  eagle3ops drafters promote last --root "$ROOT" > "$OUT/promote.txt" 2>&1
  mark "promote, exit code $?"
fi
if asked extraction; then
  mapfile -t words < <(printf -- '--argument=%s\n' "${POOL[@]}")
  timeout "$(left)" python3 "$here/extraction.py" --model "${MODEL:?}" --answers "$(output generate)answers.jsonl" \
    --rows 3072 --rounds 4 --device cuda --out /dev/shm/extraction --python "$ENGINE_PYTHON" \
    $(variables --set-variable) "${words[@]}" --accept --training '{"device": "cuda", "epochs": 6, "ttt_steps": 5,
    "draft_vocab_size": 16384, "tokens_per_step": 16384, "lr": 0.003, "warmup": 50, "eval_rows": 200,
    "predict_steps": [1, 3, 5]}' > "$OUT/extraction.json" 2> "$OUT/extraction.txt"
  mark "extraction, exit code $?"
fi
if asked wrong; then
  # Refused before the engine is started (2), and found by verify before anything is benchmarked (3).
  for ids in '[0, 15, 27]' '[3, 16, 28]'; do
    eagle3ops --job pipeline --spec "$SPEC" --root "$ROOT" \
      --set "stages.serve.aux_layers={convention: boundary, ids: $ids}" >> "$OUT/wrong.txt" 2>&1
    mark "layers $ids, exit code $?"
  done
fi
if asked noise; then
  mapfile -t words < <(printf -- '--engine-arg=%s\n' "${POOL[@]}")
  for name in graph no_graph; do
    more=(); [[ $name == graph ]] || more=(--engine-arg=--disable-cuda-graph)
    timeout "$(left)" python3 "$here/wiring_noise.py" --model "${MODEL:?}" --drafter "$(output train)drafter" \
      --engine sglang --python "$ENGINE_PYTHON" --device cuda --name "h200_$name" --out "$OUT" \
      $(variables --engine-env) "${words[@]}" "${more[@]}" > "$OUT/noise_$name.txt" 2>&1
    mark "noise $name, exit code $?"
  done
fi
if asked profile; then
  eagle3ops --job profile --spec "$SPEC" --root "$ROOT" > "$OUT/profile.txt" 2>&1
  mark "profile, exit code $?"
  keep profile profile.json
fi
mark end
