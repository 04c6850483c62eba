#!/usr/bin/env bash
# SEAL on GiGPO, WebShop, Qwen2.5-1.5B-Instruct: the paper's 2 x A100-80GB.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" seal/webshop=gigpo qwen2.5-1.5b 1 2 --name seal_gigpo-webshop-qwen2.5-1.5b-1n2g "$@"
