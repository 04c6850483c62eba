#!/usr/bin/env bash
# A first look at learning: GRPO alone and with SEAL, EPO, AEM, REPO-R and ADAPO, one seed each and equal steps, on TextWorldExpress.
#
#   usage: [STEPS=100] [SEED=0] learn.sh MODEL OUT [grpo|seal|epo|aem|repo_r|adapo...]
#
# MODEL is SmolLM2-135M-Instruct as a Hugging Face checkpoint. OUT gets data, the warm start, a run folder and a log per method, and
# report.html. What is there already is used, so that a second call goes on with further methods. Needs Java 17.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: learn.sh MODEL OUT [grpo|seal|epo|aem|repo_r|adapo...]"
model=${1:?$usage}
out=$(realpath -m "${2:?$usage}")
shift 2
methods=("$@")
[ ${#methods[@]} -gt 0 ] || methods=(grpo seal epo aem repo_r adapo)
recipe=first_look/textworld_express=grpo
data=$out/data/textworld_express
mkdir -p "$out"
cd "$root"
export RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false

if [ ! -f "$data/train_expert.parquet" ]; then
  verl-entropy data textworld_express --recipe "$recipe" --split train --count 2048 --out "$data"
  verl-entropy data textworld_express --recipe "$recipe" --split dev --count 96 --out "$data"
  verl-entropy data textworld_express --recipe "$recipe" --split train --count 300 --seed 1 --expert --tokenizer "$model" --out "$out/expert"
  mv "$out/expert/train_expert.parquet" "$data/train_expert.parquet"
fi
warm=$(find "$out/warm_start" -type d -name huggingface 2> /dev/null | head -1)
if [ -z "$warm" ]; then
  torchrun --nproc_per_node 1 -m verl.trainer.sft_trainer --config-dir recipes +warm_start/expert=sft model.path="$model" \
    model.use_remove_padding=False data.train_files="$data/train_expert.parquet" trainer.default_local_dir="$out/warm_start" \
    > "$out/warm_start.log" 2>&1 || { tail -40 "$out/warm_start.log"; exit 1; }
  warm=$(find "$out/warm_start" -type d -name huggingface | head -1)
fi
for method in "${methods[@]}"; do
  [ "$method" = grpo ] && presets="" || presets=$method
  folder=$out/runs/$method-${SEED:-0}
  [ -f "$folder/done" ] && continue
  mkdir -p "$folder"
  if ! python3 -m verl.trainer.main_ppo --config-dir recipes "+$recipe" "entropy=[$presets]" \
    "data.folder=$out/data" "data.seed=${SEED:-0}" "actor_rollout_ref.model.path=$warm" actor_rollout_ref.model.use_remove_padding=False \
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa actor_rollout_ref.model.enable_gradient_checkpointing=False \
    "++algorithm.entropy.diagnostics.run_file.folder=$folder" "trainer.total_training_steps=${STEPS:-100}" \
    "trainer.experiment_name=$method" "trainer.default_local_dir=$out/checkpoints/$method" \
    > "$folder.log" 2>&1; then
    tail -40 "$folder.log"
    exit 1
  fi
  touch "$folder/done"
done
verl-entropy report "$out"/runs/*/ --out "$out/report.html"
