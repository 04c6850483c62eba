#!/usr/bin/env bash
# EPO on GRPO, ALFWorld, Qwen2.5-3B-Instruct: the paper's node of 8 H100 (18 h there).
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" epo/alfworld=grpo qwen2.5-3b 1 8 --name epo_grpo-alfworld-qwen2.5-3b-1n8g "$@"
