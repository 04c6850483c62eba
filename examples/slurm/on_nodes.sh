#!/usr/bin/env bash
# Run a launcher of examples/ on the nodes of a Slurm job: as it is on one node, in verl's Ray cluster over all of them on several.
#
#   bash examples/slurm/on_nodes.sh LAUNCHER.sh [OPTIONS]     (called by the files beside it)
#
# Outside a job, or with --dry-run, the launcher only shows its command.
set -euo pipefail
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
launcher=$examples/${1:?usage: on_nodes.sh LAUNCHER.sh [OPTIONS]}
shift
case " $* " in *" --dry-run "*) exec bash "$launcher" "$@" ;; esac
[ -n "${SLURM_JOB_ID:-}" ] || exec bash "$launcher" --dry-run "$@"
[ "$SLURM_JOB_NUM_NODES" -gt 1 ] || exec bash "$launcher" "$@"

port=${RAY_PORT:-6379}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname -I | awk '{print $1}'):$port
cpus=${SLURM_CPUS_ON_NODE:?} gpus=${SLURM_GPUS_ON_NODE:?}
# Ray would count the cores and cards of the machine, not those of the job.
srun --overlap --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --node-ip-address="${address%:*}" --port="$port" --num-cpus="$cpus" --num-gpus="$gpus" --block &
sleep "${RAY_START_SECONDS:-20}"
others=$((SLURM_JOB_NUM_NODES - 1))
srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" \
  ray start --address="$address" --num-cpus="$cpus" --num-gpus="$gpus" --block &
export RAY_ADDRESS=$address
for _ in $(seq 60); do  # five minutes for all nodes to come up
  up=$(python3 -c 'import ray; ray.init(address="auto", logging_level="ERROR"); print(sum(n["Alive"] for n in ray.nodes()))' || echo 0)
  [ "$up" -lt "$SLURM_JOB_NUM_NODES" ] || break
  sleep 5
done
# On the head node; the launcher's own check says which nodes are missing. Ray ends with the job.
srun --overlap --nodes=1 --ntasks=1 -w "$head" bash "$launcher" "$@"
