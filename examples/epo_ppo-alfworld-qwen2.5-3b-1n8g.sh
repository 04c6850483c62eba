#!/usr/bin/env bash
# EPO on PPO, ALFWorld, Qwen2.5-3B-Instruct: the paper's node of 8 H100 (23 h there).
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" epo/alfworld=ppo qwen2.5-3b 1 8 --name epo_ppo-alfworld-qwen2.5-3b-1n8g "$@"
