#!/usr/bin/env bash
# AEPO (rollout, advantage and clipping) on GRPO, search-augmented question answering, Qwen2.5-7B-Instruct: 8 GPUs, ours.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" aepo/search=grpo qwen2.5-7b 1 8 --name aepo_grpo-search-qwen2.5-7b-1n8g "$@"
