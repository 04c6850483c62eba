#!/usr/bin/env bash
# SEAL on GRPO, ALFWorld, Qwen2.5-7B-Instruct: the paper's 2 x H200.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" seal/alfworld=grpo qwen2.5-7b 1 2 --name seal_grpo-alfworld-qwen2.5-7b-1n2g "$@"
