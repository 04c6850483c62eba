#!/usr/bin/env bash
# Everything that one card can show, in about 15 minutes; results as small JSON files in OUT.
#
#   usage: run.sh MODEL OUT [STAGE...]
#
# Stages, all of them by default:
#   seams      verl's trainer with vLLM, three steps with every seam in use (seams.sh), and the engine's tests on the card beside it
#   resume     the same run resumed from its checkpoint, under colocate_async
#   numerics   log-prob and entropy against float64, by path and dtype
#   overheads  memory and time of entropy with gradient by path, and of SEAL's head
# MODEL is a Hugging Face checkpoint with a chat template. Needs pytest besides a training installation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage="usage: run.sh MODEL OUT [seams|resume|numerics|overheads...]"
model=${1:?$usage}
out=${2:?$usage}
shift 2
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(seams resume numerics overheads)
mkdir -p "$out"

engine_tests() {
  VERL_ENTROPY_TEST_DEVICE=cuda python3 -m pytest -c "$here/../pytest.ini" --rootdir "$here/.." -p no:cacheprovider \
    --junitxml "$out/engine.xml" "$here/../engine" > "$out/engine.log" 2>&1
}

status=0
for stage in "${stages[@]}"; do
  echo "== $stage"
  case $stage in
    seams)
      engine_tests & tests=$!
      bash "$here/seams.sh" "$model" "$out" || status=1
      wait "$tests" || status=1
      tail -3 "$out/engine.log"
      ;;
    engine) engine_tests || status=1; tail -3 "$out/engine.log" ;;
    resume) NAME=resume STEPS=5 bash "$here/seams.sh" "$model" "$out" trainer.v1.trainer_mode=colocate_async || status=1 ;;
    numerics) python3 "$here/numerics.py" --json "$out/numerics.json" || status=1 ;;
    overheads) python3 "$here/overheads.py" --json "$out/overheads.json" || status=1 ;;
    *) echo "unknown stage $stage; $usage" >&2; exit 2 ;;
  esac
done
exit $status
