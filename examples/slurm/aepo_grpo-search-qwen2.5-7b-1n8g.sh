#!/usr/bin/env bash
# AEPO (rollout, advantage and clipping) on GRPO, search-augmented question answering, Qwen2.5-7B-Instruct: 8 GPUs, ours.
# sbatch examples/slurm/aepo_grpo-search-qwen2.5-7b-1n8g.sh [OPTIONS], from the checkout's folder; add your --partition and --account.
#SBATCH --job-name=aepo_grpo-search-qwen2.5-7b-1n8g
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" aepo_grpo-search-qwen2.5-7b-1n8g.sh "$@"
