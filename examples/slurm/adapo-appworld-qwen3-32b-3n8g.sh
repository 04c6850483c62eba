#!/usr/bin/env bash
# ADAPO on AppWorld, Qwen3-32B: the paper's three nodes of 8 H100.
# sbatch examples/slurm/adapo-appworld-qwen3-32b-3n8g.sh [OPTIONS], from the checkout's folder; add your --partition and --account.
#SBATCH --job-name=adapo-appworld-qwen3-32b-3n8g
#SBATCH --nodes=3
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" adapo-appworld-qwen3-32b-3n8g.sh "$@"
