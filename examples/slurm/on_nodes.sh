#!/usr/bin/env bash
# Run a launcher of examples/ on the nodes of a Slurm job: as it is on one node, in verl's Ray cluster over all of them on several.
#
#   bash examples/slurm/on_nodes.sh LAUNCHER.sh [OPTIONS]     (called by the files beside it)
#
# Outside a job, or with --dry-run, the launcher only shows its command. What a user sets before sbatch (which hands it on):
#
#   VERL_ENTROPY_SHARED  a folder that all nodes see: data/, runs/, games (alfworld/, appworld/), cache/ and models/ go there
#   CONTAINER_IMAGE      an image to run in (Slurm with pyxis), with CONTAINER_MOUNTS; it needs this package and the environment
#   WANDB_API_KEY        from your own secret store; the run is logged to W&B then
#
# Once, on a node with a network: `bash examples/prepare_node.sh ENV` in the Python of the job (or in the image), then
# `bash examples/slurm/on_nodes.sh LAUNCHER.sh --prepare`. A requeued job goes on from its last checkpoint.
set -euo pipefail
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
launcher=$examples/${1:?usage: on_nodes.sh LAUNCHER.sh [OPTIONS]}
shift
if [ -n "${VERL_ENTROPY_SHARED:-}" ]; then
  export VERL_ENTROPY_DATA=${VERL_ENTROPY_DATA:-$VERL_ENTROPY_SHARED/data} VERL_ENTROPY_RUNS=${VERL_ENTROPY_RUNS:-$VERL_ENTROPY_SHARED/runs}
  export ALFWORLD_DATA=${ALFWORLD_DATA:-$VERL_ENTROPY_SHARED/alfworld} APPWORLD_ROOT=${APPWORLD_ROOT:-$VERL_ENTROPY_SHARED/appworld}
  export VERL_ENTROPY_CACHE=${VERL_ENTROPY_CACHE:-$VERL_ENTROPY_SHARED/cache} HF_HOME=${HF_HOME:-$VERL_ENTROPY_SHARED/models}
fi
case " $* " in *" --prepare "*) exec bash "$launcher" "$@" ;; esac
case " $* " in *" --dry-run "*) exec bash "$launcher" "$@" ;; esac
[ -n "${SLURM_JOB_ID:-}" ] || exec bash "$launcher" --dry-run "$@"
container=()
if [ -n "${CONTAINER_IMAGE:-}" ]; then
  container=("--container-image=$CONTAINER_IMAGE" "--container-mounts=${CONTAINER_MOUNTS:-$PWD:$PWD}" "--container-workdir=$PWD")
fi
[ "$SLURM_JOB_NUM_NODES" -gt 1 ] || exec srun --ntasks=1 ${container[@]+"${container[@]}"} bash "$launcher" "$@"

port=${RAY_PORT:-6379}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname -I | awk '{print $1}'):$port
cpus=${SLURM_CPUS_ON_NODE:?} gpus=${SLURM_GPUS_ON_NODE:?}
# Ray would count the cores and cards of the machine, not those of the job.
srun --overlap --nodes=1 --ntasks=1 -w "$head" ${container[@]+"${container[@]}"} \
  ray start --head --node-ip-address="${address%:*}" --port="$port" --num-cpus="$cpus" --num-gpus="$gpus" --block &
sleep "${RAY_START_SECONDS:-20}"
others=$((SLURM_JOB_NUM_NODES - 1))
srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" ${container[@]+"${container[@]}"} \
  ray start --address="$address" --num-cpus="$cpus" --num-gpus="$gpus" --block &
export RAY_ADDRESS=$address
for _ in $(seq 60); do  # five minutes for all nodes to come up
  up=$(srun --overlap --nodes=1 --ntasks=1 -w "$head" ${container[@]+"${container[@]}"} \
    python3 -c 'import ray; ray.init(address="auto", logging_level="ERROR"); print(sum(n["Alive"] for n in ray.nodes()))' || echo 0)
  [ "$up" -lt "$SLURM_JOB_NUM_NODES" ] || break
  sleep 5
done
# On the head node; the launcher's own check says which nodes are missing. Ray ends with the job.
srun --overlap --nodes=1 --ntasks=1 -w "$head" ${container[@]+"${container[@]}"} bash "$launcher" "$@"
