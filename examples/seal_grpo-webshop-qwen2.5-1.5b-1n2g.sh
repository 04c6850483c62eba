#!/usr/bin/env bash
# SEAL on GRPO, WebShop (your installation), Qwen2.5-1.5B-Instruct.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" seal/webshop=grpo qwen2.5-1.5b 1 2 --name seal_grpo-webshop-qwen2.5-1.5b-1n2g "$@"
