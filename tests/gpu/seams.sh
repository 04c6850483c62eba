#!/usr/bin/env bash
# Three steps of verl's trainer on a GPU with vLLM, with every seam of the plugin in use, and a table of what was seen.
#
#   usage: [NAME=seams] [STEPS=3] [ATTENTION=varlen] [PRESETS=gigpo,aem,seal,epo] seams.sh MODEL OUT [HYDRA OVERRIDES...]
#
# MODEL is a Hugging Face checkpoint with a chat template, OUT a folder for data, NAME.log, NAME.jsonl and NAME.json.
# A step has 32 x 8 episodes of up to 4 turns: 1,024 short rows. Run again with another NAME and more STEPS it resumes.
# Rows are packed (ATTENTION=varlen, or flash_attention_2 where it is installed); ATTENTION=sdpa pads them.
# Most of the time on one H100 or H200 is verl's start. What keeps it and a step short, and is not verl's default:
#   vLLM         CUDA graphs without torch.compile: whole ones for decode steps, and ones that stop at attention for steps in which
#                some episodes begin a turn while others are in one (VLLM_USE_BREAKABLE_CUDAGRAPH; without it these steps, nearly
#                all of them here, run kernel by kernel); a KV cache of fixed size, so that others may use the card while it starts;
#                no partial outputs, which verl does not read
#   processes    no reward workers (the agent loop gives the score), no Ray dashboard, two storage units of the queue
#   polling      the replay buffer looks for finished episodes every 0.1 s, not every 2 s
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: seams.sh MODEL OUT [OVERRIDES...]}
out=${2:?usage: seams.sh MODEL OUT [OVERRIDES...]}
shift 2
name=${NAME:-seams}
attention=${ATTENTION:-varlen}
packed=$([ "$attention" = sdpa ] && echo False || echo True)
steps=${STEPS:-3}
mkdir -p "$out"
python3 "$here/make_data.py" "$out" 256
export VERL_FILE_LOGGER_PATH=$out/$name.jsonl RAY_USAGE_STATS_ENABLED=0 TOKENIZERS_PARALLELISM=false
export RAY_DEDUP_LOGS=0 VLLM_USE_BREAKABLE_CUDAGRAPH=1
python3 -m verl.trainer.main_ppo \
  "+entropy=[${PRESETS:-gigpo,aem,seal,epo}]" \
  trainer.use_v1=True trainer.n_gpus_per_node=1 trainer.nnodes=1 "trainer.logger=[console,file]" \
  trainer.project_name=seams trainer.experiment_name=seams trainer.default_local_dir="$out/checkpoints" \
  trainer.total_training_steps="$steps" trainer.total_epochs=100 trainer.save_freq="$steps" trainer.test_freq=-1 trainer.val_before_train=False \
  data.train_files="$out/train.parquet" data.val_files="$out/val.parquet" data.train_batch_size=32 data.dataloader_num_workers=0 \
  data.max_prompt_length=1024 data.max_response_length=64 \
  +data.env.name=household +data.env.max_turns=4 +data.env.action_format=number +data.env.kwargs.difficulty=easy \
  actor_rollout_ref.model.path="$model" actor_rollout_ref.model.use_remove_padding="$packed" \
  +actor_rollout_ref.model.override_config.attn_implementation="$attention" actor_rollout_ref.model.enable_gradient_checkpointing=False \
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=32 \
  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536 \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=131072 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.gpu_memory_utilization=0.3 \
  actor_rollout_ref.rollout.enforce_eager=False "actor_rollout_ref.rollout.cudagraph_capture_sizes=[8,32,64,128,192,256,320,384,448,512,640,768,896,1024,1280,1536,2048]" \
  "+actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config={mode:0,cudagraph_mode:FULL_AND_PIECEWISE}" \
  +actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=8000000000 \
  +actor_rollout_ref.rollout.engine_kwargs.vllm.stream_interval=64 actor_rollout_ref.rollout.max_num_seqs=256 actor_rollout_ref.rollout.max_num_batched_tokens=32768 \
  actor_rollout_ref.rollout.agent.num_workers=8 actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env reward.num_workers=0 \
  transfer_queue.backend.SimpleStorage.num_data_storage_units=2 +ray_kwargs.ray_init.include_dashboard=False +ray_kwargs.ray_init.address=local \
  +trainer.v1.sampler.sampler_kwargs.poll_interval=0.1 \
  actor_rollout_ref.rollout.prompt_length=1024 actor_rollout_ref.rollout.response_length=64 \
  actor_rollout_ref.rollout.max_model_len=1152 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  "$@" > "$out/$name.log" 2>&1 || { tail -60 "$out/$name.log"; exit 1; }
python3 "$here/report_seams.py" "$out" "$name" "$steps"
