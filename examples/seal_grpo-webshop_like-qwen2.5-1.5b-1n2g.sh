#!/usr/bin/env bash
# SEAL on GRPO in the shop with invented products, which needs no data. Not WebShop.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" seal/webshop=grpo qwen2.5-1.5b 1 2 parts/env=webshop_like --name seal_grpo-webshop_like-qwen2.5-1.5b-1n2g "$@"
