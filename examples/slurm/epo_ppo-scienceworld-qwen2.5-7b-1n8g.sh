#!/usr/bin/env bash
# EPO on PPO, ScienceWorld, Qwen2.5-7B-Instruct: the paper's node of 8 H100 (23 h there).
# sbatch examples/slurm/epo_ppo-scienceworld-qwen2.5-7b-1n8g.sh [OPTIONS], from the checkout's folder; add your --partition and --account.
#SBATCH --job-name=epo_ppo-scienceworld-qwen2.5-7b-1n8g
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" epo_ppo-scienceworld-qwen2.5-7b-1n8g.sh "$@"
