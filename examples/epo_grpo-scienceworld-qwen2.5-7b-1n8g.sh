#!/usr/bin/env bash
# EPO on GRPO, ScienceWorld, Qwen2.5-7B-Instruct: the paper's node of 8 H100 (16 h there).
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" epo/scienceworld=grpo qwen2.5-7b 1 8 --name epo_grpo-scienceworld-qwen2.5-7b-1n8g "$@"
