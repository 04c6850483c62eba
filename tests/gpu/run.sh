#!/usr/bin/env bash
# Everything that one card can show, in about 20 minutes; results as small JSON files in OUT, and a table of the stages in run.json.
#
#   usage: run.sh MODEL OUT [STAGE...]
#
# Stages, all of them by default:
#   seams      verl's trainer with vLLM, four steps with every seam in use (seams.sh)
#   resume     the same run resumed from its checkpoint, under colocate_async
#   fp16       two steps with trainer and vLLM in fp16
#   ray        three steps of RayPPOTrainer (trainer.use_v1=False)
#   branching  three steps of rollouts that branch, and what vLLM had of their prompts in its cache
#   presets    an update with every preset on the card
#   engine     the engine's other tests on the card
#   kernels    the Triton kernels against float64
#   numerics   log-prob and entropy against float64, by path and dtype
#   clip       what 16-bit passes do to the two sides of the clip
#   step       three steps with the layers of Qwen2.5-1.5B, and our share of them
#   head       what SEAL's head costs an update
#   overheads  memory and time of entropy with gradient by path
# What does not time runs while seams starts (its steps are timed), fp16, branching and the engine's tests beside resume and ray, and the
# last three alone at the end, because they time. With two cards visible the engine's tests run on two ranks, too. A stage that fails
# stops no other; the exit code is 1 then. MODEL is a Hugging Face checkpoint with a chat template. Needs pytest besides a training
# installation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
all=(seams resume fp16 ray branching presets engine kernels numerics clip step head overheads)
usage="usage: run.sh MODEL OUT [$(IFS='|'; echo "${all[*]}")...]"
model=${1:?$usage}
out=$(realpath -m "${2:?$usage}")
shift 2
stages=" ${*:-${all[*]}} "
for stage in $stages; do
  [[ " ${all[*]} " == *" $stage "* ]] || { echo "unknown stage $stage; $usage" >&2; exit 2; }
done
mkdir -p "$out"
: > "$out/stages.tsv"
begin=$SECONDS

chosen() { [[ $stages == *" $1 "* ]]; }

# run STAGE COMMAND...: if the stage was chosen, run it into STAGE.out and note exit code and seconds.
run() {
  local stage=$1 start=$SECONDS code=0
  shift
  chosen "$stage" || return 0
  echo "== $stage"
  rm -f "$out/$stage".{xml,json,jsonl}  # an earlier call's result must not pass for this one's
  "$@" > "$out/$stage.out" 2>&1 || code=$?
  printf '%s\t%s\t%s\n' "$stage" "$code" $((SECONDS - start)) >> "$out/stages.tsv"
  echo "== $stage ended with $code after $((SECONDS - start)) s"
  [ "$code" = 0 ] || tail -20 "$out/$stage.out"
}

tests() { # STAGE FILE... [PYTEST OPTIONS...], files from the folder of the tests
  local stage=$1
  shift
  (cd "$here/.." && VERL_ENTROPY_TEST_DEVICE=cuda python3 -m pytest -c pytest.ini --rootdir . -p no:cacheprovider --junitxml "$out/$stage.xml" "$@")
}

seams() {
  rm -rf "$out/checkpoints"  # of an earlier call: verl would go on from it
  STEPS=4 bash "$here/seams.sh" "$model" "$out"
}

resume() {
  [ -d "$out/checkpoints" ] || { echo "no checkpoint in $out: run the stage seams first"; return 1; }
  NAME=resume STEPS=6 bash "$here/seams.sh" "$model" "$out" trainer.v1.trainer_mode=colocate_async
}

apart() { # NAME STEPS MODEL OVERRIDES...: a training in a folder of its own
  local name=$1 steps=$2 model=$3
  shift 3
  NAME=$name STEPS=$steps bash "$here/seams.sh" "$model" "$out/$name" "$@" && cp "$out/$name/$name.json" "$out"
}

beside() { # NAME STEPS OVERRIDES...: a training with smaller micro-batches and cache, since it shares the card
  local name=$1 steps=$2 actor=actor_rollout_ref.actor rollout=actor_rollout_ref.rollout
  shift 2
  rm -rf "${out:?}/$name"
  apart "$name" "$steps" "$model" "$actor.ppo_max_token_len_per_gpu=16384" "$rollout.log_prob_max_token_len_per_gpu=32768" \
    "$rollout.gpu_memory_utilization=0.1" "$rollout.engine_kwargs.vllm.kv_cache_memory_bytes=4000000000" "$@"
}

fp16() {
  beside fp16 2 ++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16 actor_rollout_ref.rollout.dtype=float16
}

ray() { beside ray 3 trainer.use_v1=False; }

branching() { PRESETS=gigpo,aem,seal,epo,arpo beside branching 3; }

step() { # as a recipe for one card: gradient checkpointing, 32,768 tokens a micro-batch
  local actor=actor_rollout_ref.actor
  rm -rf "$out/step"
  python3 "$here/make_model.py" "$model" "$out/step/model" &&
    apart step 3 "$out/step/model" actor_rollout_ref.model.enable_gradient_checkpointing=True "$actor.ppo_max_token_len_per_gpu=32768" \
      actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=65536 "$actor.checkpoint.save_contents=[model]" &&
    rm -r "$out/step/model" "$out/step/checkpoints"
}

run presets tests presets engine/test_presets_engine.py & presets=$!
{
  run kernels tests kernels numerics/test_kernels.py
  run numerics python3 "$here/numerics.py" --json "$out/numerics.json"
  run clip python3 "$here/clip_sides.py" "$model" --json "$out/clip.json"
} & maths=$!
run seams seams
wait "$presets" "$maths"
run engine tests engine engine --ignore engine/test_presets_engine.py & engine=$!
{
  run fp16 fp16
  run branching branching
} & half=$!
run resume resume
wait "$engine"
run ray ray
wait "$half"
run step step
run head python3 "$here/overheads.py" --sections head --models Qwen2.5-1.5B --json "$out/head.json"
run overheads python3 "$here/overheads.py" --sections entropy --json "$out/overheads.json"
python3 "$here/stages.py" "$out" $((SECONDS - begin))
