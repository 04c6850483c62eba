#!/usr/bin/env bash
# SEAL on GRPO, ALFWorld, Llama-3.2-3B-Instruct, after a warm start: the paper's 2 x H200.
# sbatch examples/slurm/seal_grpo-alfworld-llama-3.2-3b-1n2g.sh [OPTIONS], from the checkout's folder; add your --partition and --account.
#SBATCH --job-name=seal_grpo-alfworld-llama-3.2-3b-1n2g
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" seal_grpo-alfworld-llama-3.2-3b-1n2g.sh "$@"
