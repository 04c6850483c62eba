#!/usr/bin/env bash
# AEM on DeepSWE's setting, code repair, Qwen3-32B; the number of nodes is ours.
# sbatch examples/slurm/aem_loop-swe-qwen3-32b-8n8g.sh [OPTIONS], from the checkout's folder; add your --partition and --account.
#SBATCH --job-name=aem_loop-swe-qwen3-32b-8n8g
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
exec bash "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}/examples/slurm/on_nodes.sh" aem_loop-swe-qwen3-32b-8n8g.sh "$@"
