#!/usr/bin/env bash
# ADAPO on AppWorld, Qwen3-32B: the paper's three nodes of 8 H100.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" repo/appworld=adapo qwen3-32b 3 8 --name adapo-appworld-qwen3-32b-3n8g "$@"
