#!/usr/bin/env bash
# REPO_D on AppWorld, Qwen3-32B: the paper's three nodes of 8 H100.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" repo/appworld=repo_d qwen3-32b 3 8 --name repo_d-appworld-qwen3-32b-3n8g "$@"
