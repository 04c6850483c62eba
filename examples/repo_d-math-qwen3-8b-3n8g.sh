#!/usr/bin/env bash
# REPO_D on AIME, Qwen3-8B: the paper's three nodes of 8 H100.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" repo/math=repo_d qwen3-8b 3 8 --name repo_d-math-qwen3-8b-3n8g "$@"
