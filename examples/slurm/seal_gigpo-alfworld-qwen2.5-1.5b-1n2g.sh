#!/usr/bin/env bash
# SEAL on GiGPO, ALFWorld, Qwen2.5-1.5B-Instruct: the paper's 2 x A100-80GB.
# sbatch examples/slurm/seal_gigpo-alfworld-qwen2.5-1.5b-1n2g.sh [OPTIONS], from the checkout's folder; add your --partition and --account.
#SBATCH --job-name=seal_gigpo-alfworld-qwen2.5-1.5b-1n2g
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" seal_gigpo-alfworld-qwen2.5-1.5b-1n2g.sh "$@"
