#!/usr/bin/env bash
# REPO_R on AIME, Qwen3-8B: the paper's three nodes of 8 H100.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" repo/math=repo_r qwen3-8b 3 8 --name repo_r-math-qwen3-8b-3n8g "$@"
