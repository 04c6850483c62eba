#!/usr/bin/env bash
# A first look at learning: GRPO alone and with SEAL, EPO, AEM, REPO-R and ADAPO, equal steps and the same seeds, on TextWorldExpress.
#
#   usage: [STEPS=60] [SEEDS=0] [CARDS=0] [PER_CARD=1] learn.sh MODEL OUT [RUN...] [-- HYDRA OVERRIDES...]
#
# MODEL is SmolLM2-135M-Instruct as a Hugging Face checkpoint. A RUN is grpo, seal, epo, aem, repo_r, adapo (all six by default), or one of
# them with another setting: grpo_lr3e-5 (learning rate), grpo_t0.7 (temperature), grpo_n4 (group size, with as many episodes a step).
# SEEDS=0,1 trains every run twice, with other tasks and samples from the same warm start.
# CARDS=0,1 PER_CARD=2 has four runs at once, two on each card, with smaller micro-batches and caches (some 20 GB of the card and of the
# host's memory a run) and fewer processes. OUT gets data, the warm start, per run a folder, metrics and a log under
# runs/, and report.html. What is there already is used: a second call goes on with further runs. Needs Java 17.
# A run has up to 4,500 threads, those of its 64 Java processes among them: with eight at once kernel.pid_max=32768 was too low.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: learn.sh MODEL OUT [grpo|seal|epo|aem|repo_r|adapo[_lrX|_tX|_nX]...] [-- OVERRIDES...]"
model=${1:?$usage}
out=$(realpath -m "${2:?$usage}")
shift 2
names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do names+=("$1") && shift; done
[ $# -eq 0 ] || shift
[ ${#names[@]} -gt 0 ] || names=(grpo seal epo aem repo_r adapo)
IFS=, read -ra cards <<< "${CARDS:-0}"
slots=$((${#cards[@]} * ${PER_CARD:-1}))
IFS=, read -ra seeds <<< "${SEEDS:-0}"
runs=()
for seed in "${seeds[@]}"; do runs+=("${names[@]/%/-$seed}"); done
if [ $((slots * 4500)) -gt "$(cat /proc/sys/kernel/pid_max)" ]; then
  echo "learn.sh: $slots runs at once may need $((slots * 4500)) threads, and kernel.pid_max is $(cat /proc/sys/kernel/pid_max): threads would" \
    "fail to start. Run sysctl -w kernel.pid_max=4194304, or lower CARDS or PER_CARD." >&2
  exit 2
fi
recipe=first_look/textworld_express=grpo
data=$out/data/textworld_express
mkdir -p "$out/runs"
cd "$root"
export RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false VLLM_USE_BREAKABLE_CUDAGRAPH=1

# Packed rows without flash-attn; the model is small enough to keep its activations. CUDA graphs as in seams.sh.
fast=(actor_rollout_ref.model.use_remove_padding=True +actor_rollout_ref.model.override_config.attn_implementation=varlen
  actor_rollout_ref.model.enable_gradient_checkpointing=False
  actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config.cudagraph_mode=FULL_AND_PIECEWISE
  "actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,2,4,8,16,32,64,96,128,192,256,384,512,768,1024]")

# What a run that shares its card or host has less of. vLLM stays awake: when it sleeps it checks that the card's used memory fell, which
# another run on the card may undo ("Memory usage increased after sleeping").
shared=()
[ "$slots" -eq 1 ] || shared=(actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=32768 actor_rollout_ref.rollout.gpu_memory_utilization=0.1
  +actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=3000000000 actor_rollout_ref.rollout.max_num_seqs=64
  actor_rollout_ref.rollout.free_cache_engine=False actor_rollout_ref.rollout.agent.num_workers=4 data.env.num_envs=16
  reward.num_workers=0 data.dataloader_num_workers=0
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1 ray_kwargs.ray_init.num_cpus=16)

make_data() {
  [ ! -f "$data/train_expert.parquet" ] || return 0
  verl-entropy data textworld_express --recipe "$recipe" --split train --count 2048 --out "$data"
  verl-entropy data textworld_express --recipe "$recipe" --split dev --count 192 --out "$data"
  verl-entropy data textworld_express --recipe "$recipe" --split train --count 600 --seed 1 --expert --tokenizer "$model" --out "$out/expert"
  mv "$out/expert/train_expert.parquet" "$data/train_expert.parquet"
}

find_warm() { find "$out/warm_start" -type d -name huggingface 2> /dev/null | sort | tail -1; }

warm_start() { # a model of this size needs a higher rate than the recipe's; few steps, so that something is left to learn
  [ -z "$(find_warm)" ] || return 0
  CUDA_VISIBLE_DEVICES=${cards[0]} torchrun --nproc_per_node 1 -m verl.trainer.sft_trainer --config-dir recipes +warm_start/expert=sft \
    model.path="$model" model.use_remove_padding=True +model.override_config.attn_implementation=varlen \
    model.enable_gradient_checkpointing=False data.max_token_len_per_gpu=32768 data.train_batch_size=24 \
    optim.lr=1e-4 optim.lr_scheduler_type=constant optim.lr_warmup_steps_ratio=0 \
    trainer.total_training_steps="${WARM_STEPS:-14}" trainer.save_freq="${WARM_STEPS:-14}" \
    data.train_files="$data/train_expert.parquet" trainer.default_local_dir="$out/warm_start" \
    > "$out/warm_start.log" 2>&1 || { tail -40 "$out/warm_start.log"; return 1; }
}

settings() { # overrides of a run's name without its seed
  local part parts presets=${1%%_[lnt][r0-9]*}
  [ "$presets" != grpo ] || presets=
  printf '%s\n' "entropy=[$presets]"
  mapfile -t parts < <(grep -oE '_(lr|t|n)[0-9][0-9.e-]*' <<< "$1")
  for part in "${parts[@]}"; do
    case $part in
      _lr*) printf '%s\n' "actor_rollout_ref.actor.optim.lr=${part#_lr}" ;;
      _t*) printf '%s\n' "actor_rollout_ref.rollout.temperature=${part#_t}" ;;
      _n*) printf '%s\n' "actor_rollout_ref.rollout.n=${part#_n}" "data.train_batch_size=$((64 / ${part#_n}))" ;;
    esac
  done
}

train() { # RUN CARD OVERRIDES..., a RUN is NAME-SEED
  local run=$1 card=$2 folder own
  shift 2
  folder=$out/runs/$run
  [ ! -f "$folder/done" ] || return 0
  mkdir -p "$folder"
  mapfile -t own < <(settings "${run%-*}")
  if ! CUDA_VISIBLE_DEVICES=$card VERL_FILE_LOGGER_PATH=$folder.jsonl python3 -m verl.trainer.main_ppo --config-dir recipes "+$recipe" \
    "${own[@]}" "data.folder=$out/data" "data.seed=${run##*-}" "actor_rollout_ref.model.path=$(find_warm)" "${fast[@]}" "${shared[@]}" \
    "++algorithm.entropy.diagnostics.run_file.folder=$folder" "trainer.total_training_steps=${STEPS:-60}" \
    "trainer.experiment_name=$run" "trainer.default_local_dir=$out/checkpoints/$run" \
    +ray_kwargs.ray_init.address=local +ray_kwargs.ray_init.include_dashboard=False "$@" > "$folder.log" 2>&1; then
    tail -40 "$folder.log"
    return 1
  fi
  touch "$folder/done"
}

queue() { # SLOT OVERRIDES...: every run that is this slot's turn, one after the other
  local slot=$1 i failed=0
  shift
  sleep $((slot * ${STAGGER:-8})) # verl's start is heaviest in its first seconds
  for ((i = slot; i < ${#runs[@]}; i += slots)); do
    train "${runs[i]}" "${cards[slot % ${#cards[@]}]}" "$@" || failed=1
  done
  return $failed
}

python3 tests/gpu/host.py "$out/host.json" \
  "STEPS=${STEPS:-60} SEEDS=${SEEDS:-0} CARDS=${CARDS:-0} PER_CARD=${PER_CARD:-1} learn.sh MODEL OUT ${names[*]} -- $*"
make_data
warm_start
status=0
for ((slot = 0; slot < slots && slot < ${#runs[@]}; slot++)); do queue "$slot" "$@" & done
for job in $(jobs -p); do wait "$job" || status=1; done
verl-entropy report "$out"/runs/*/ --out "$out/report.html"
exit $status
