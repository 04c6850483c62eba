#!/usr/bin/env bash
# Start a recipe with stock verl: `python -m verl.trainer.main_ppo --config-dir recipes +RECIPE ...`. The launchers beside this file
# call it; it can be called by hand as well.
#
#   bash examples/launch.sh RECIPE MODEL NODES GPUS [OPTIONS] [VERL OVERRIDES...]
#
#   RECIPE        group=name below recipes/, for example seal/alfworld=grpo
#   MODEL         name of recipes/parts/model, for example qwen2.5-1.5b
#   NODES GPUS    nodes, and GPUs of each. More than one node: start Ray on all of them first, and run this on one of them
#   --dry-run     print the command, compose and check the configuration, and stop; needs no GPU
#   --name NAME   name of the run (default: RECIPE and MODEL)
#   --model-path PATH  folder of the model (default: the hub's name in recipes/parts/model, which must be in your cache)
#   --data DIR    folder of the files of `verl-entropy data` (default $VERL_ENTROPY_DATA, else ./data)
#   --out DIR     checkpoints, logs and metrics go to DIR/NAME (default $VERL_ENTROPY_RUNS, else ./runs)
#   --prepare     fetch the model and the environment's games and make the missing data files, and stop; needs no GPU
#   --no-check    start without looking at GPUs, Ray, model, data and environment
#
# With WANDB_API_KEY in the environment the run is logged to W&B as well, unless trainer.logger is given.
# A second start with the same name goes on from its last checkpoint; trainer.resume_mode=disable starts afresh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() { echo "launch.sh: $*" >&2; exit 2; }
[ $# -ge 4 ] || { sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
recipe=$1 model=$2 nodes=$3 gpus=$4
shift 4
[[ "$nodes" =~ ^[1-9][0-9]*$ && "$gpus" =~ ^[1-9][0-9]*$ ]] || die "NODES=$nodes GPUS=$gpus: must be whole numbers of at least 1"
[ -f "$root/recipes/${recipe/=//}.yaml" ] || die "RECIPE=$recipe: no file recipes/${recipe/=//}.yaml"
[ -f "$root/recipes/parts/model/$model.yaml" ] || die "MODEL=$model: no file recipes/parts/model/$model.yaml"

dry_run=false check=true prepare=false model_path=
name=$(tr '/=' '--' <<< "$recipe")-$model
data=${VERL_ENTROPY_DATA:-$PWD/data} out=${VERL_ENTROPY_RUNS:-$PWD/runs}
overrides=()
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry_run=true ;;
    --no-check) check=false ;;
    --prepare) prepare=true ;;
    --name|--model-path|--data|--out)
      [ $# -ge 2 ] || die "$1 needs a value"
      case $1 in --name) name=$2 ;; --model-path) model_path=$2 ;; --data) data=$2 ;; --out) out=$2 ;; esac
      shift ;;
    --) ;;
    -*) die "$1: no such option" ;;
    *) overrides+=("$1") ;;
  esac
  shift
done
[[ "$name" =~ ^[A-Za-z0-9._-]+$ ]] || die "--name $name: letters, digits, dots, dashes and underscores only"
data=$(realpath -m "$data") run=$(realpath -m "$out")/$name

settings=(
  "+$recipe"
  "parts/model=$model"
  "trainer.nnodes=$nodes"
  "trainer.n_gpus_per_node=$gpus"
  "trainer.experiment_name=$name"
  "trainer.default_local_dir=$run/checkpoints"
  "data.folder=$data"
)
[ -z "$model_path" ] || settings+=("actor_rollout_ref.model.path=$(realpath -m "$model_path")")
case " ${overrides[*]-} " in *" trainer.logger="*) ;; *) [ -z "${WANDB_API_KEY:-}" ] || settings+=("trainer.logger=[console,file,wandb]") ;; esac
settings+=(${overrides[@]+"${overrides[@]}"})
python=${PYTHON:-python3}
command=("$python" -m verl.trainer.main_ppo --config-dir "$root/recipes" "${settings[@]}" "hydra.run.dir=$run/hydra")

if $dry_run; then
  printf '%q ' "${command[@]}"
  printf '\n'
  exec "$python" "$root/examples/check.py" --recipes "$root/recipes" --dry-run -- "${settings[@]}"
fi
if $prepare; then
  exec "$python" "$root/examples/check.py" --recipes "$root/recipes" --prepare -- "${settings[@]}"
fi
if $check; then
  "$python" "$root/examples/check.py" --recipes "$root/recipes" -- "${settings[@]}"
fi
mkdir -p "$run"
started=$(date +%Y%m%d-%H%M%S)
export VERL_FILE_LOGGER_PATH=${VERL_FILE_LOGGER_PATH:-$run/metrics-$started.jsonl}
echo "log: $run/log-$started.txt, metrics: $VERL_FILE_LOGGER_PATH, checkpoints: $run/checkpoints"
"${command[@]}" 2>&1 | tee "$run/log-$started.txt"
