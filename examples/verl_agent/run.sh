#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Train with verl-agent and verl-entropy, with the papers' values.
#
#   bash examples/verl_agent/run.sh ENV BASE METHOD [--dry-run|--check] [OVERRIDES...]
#
#   ENV     alfworld webshop
#   BASE    grpo gigpo dapo gspo ppo
#   METHOD  seal epo aem none
#
# --dry-run prints the command; --check composes and checks the configuration with verl-agent and starts nothing. Neither needs a
# GPU. VERL_AGENT_HOME is verl-agent's checkout (commit 796ed31; default: this folder), MODEL the model
# (Qwen/Qwen2.5-1.5B-Instruct), DATA where its placeholder data go (~/data/verl-agent), PYTHON the interpreter.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipes=${VERL_ENTROPY_RECIPES:-$here/../../recipes/verl_agent}

die() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 2
}
[ $# -ge 3 ] || { sed -n '3,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
env=$1 base=$2 method=$3
shift 3
[ -f "$recipes/env/$env.txt" ] || die "ENV=$env: one of alfworld webshop"
[ -f "$recipes/base/$base.txt" ] || die "BASE=$base: one of grpo gigpo dapo gspo ppo"
[ -f "$recipes/method/$method.txt" ] || die "METHOD=$method: one of seal epo aem none"
mode=run own=()
for word in "$@"; do
  case $word in
    --dry-run) mode=dry ;;
    --check) mode=check ;;
    -*) die "$word: one of --dry-run --check, and overrides KEY=VALUE" ;;
    *) own+=("$word") ;;
  esac
done
set -- ${own[@]+"${own[@]}"}

model=${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}
python=${PYTHON:-python3}
overrides=("actor_rollout_ref.model.path=$model")
# From the general to the special; a later file wins.
for file in common "env/$env" "base/$base" "base/$base.$env" "method/$method" "method/$method.$env" "method/$method.$base"; do
  [ -f "$recipes/$file.txt" ] || continue
  while IFS= read -r line; do
    line=${line%%#*}
    line=${line//[[:space:]]/}
    [ -n "$line" ] && overrides+=("$line")
  done < "$recipes/$file.txt"
done
[ -n "${MODEL:-}" ] && overrides+=("actor_rollout_ref.model.path=$model")
size=128
for override in "${overrides[@]}" "$@"; do
  case $override in
    data.train_batch_size=*) size=${override#*=} ;;
    actor_rollout_ref.model.path=*) model=${override#*=} ;;
  esac
done
[ "$base" = ppo ] && overrides+=("critic.model.path=$model")
data=${DATA:-$HOME/data/verl-agent}/$size
overrides+=("data.train_files=$data/text/train.parquet" "data.val_files=$data/text/test.parquet")
overrides+=("trainer.experiment_name=${method}_${base}_${env}")
command=("$python" -m verl_entropy.verl_agent "${overrides[@]}" "$@")

if [ "$mode" = dry ]; then
  printf '%q ' "${command[@]}"
  printf '\n'
  exit 0
fi
cd "${VERL_AGENT_HOME:-.}"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
[ "$mode" = check ] && exec "${command[@]}" --check
if [ ! -f "$data/text/train.parquet" ]; then
  # Only the number of rows and their kind matter: verl-agent's prompts come from its environments.
  "$python" -m examples.data_preprocess.prepare --mode text --local_dir "$data" --train_data_size "$size" --val_data_size 128
fi
exec "${command[@]}"
