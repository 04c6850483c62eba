#!/usr/bin/env bash
# SEAL on GRPO, search QA, Llama-3.2-3B-Instruct, after a warm start: the paper's 2 x H200.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" seal/search=grpo llama-3.2-3b 1 2 --name seal_grpo-search-llama-3.2-3b-1n2g "$@"
