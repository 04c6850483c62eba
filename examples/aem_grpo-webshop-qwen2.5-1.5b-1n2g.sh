#!/usr/bin/env bash
# AEM on GRPO, webshop, Qwen2.5-1.5B-Instruct, with verl-agent's 2 GPUs.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" aem/webshop=grpo qwen2.5-1.5b 1 2 --name aem_grpo-webshop-qwen2.5-1.5b-1n2g "$@"
