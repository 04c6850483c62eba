#!/usr/bin/env bash
# AEPO (rollout, advantage and clipping) on GRPO, search-augmented question answering, Qwen2.5-7B-Instruct: 8 GPUs, ours.
# sbatch examples/slurm/aepo_grpo-search-qwen2.5-7b-1n8g.sh [OPTIONS], from the checkout's folder; add your --partition, --account and --time.
#SBATCH --job-name=aepo_grpo-search-qwen2.5-7b-1n8g
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" aepo_grpo-search-qwen2.5-7b-1n8g.sh "$@"
