#!/usr/bin/env bash
# AEM on DeepSWE's setting, code repair, Qwen3-32B; the number of nodes is ours.
# Options: bash examples/launch.sh (without arguments prints them); --dry-run shows and checks the command.
set -euo pipefail
exec bash "$(dirname "$0")/launch.sh" aem/swe=loop qwen3-32b 8 8 --name aem_loop-swe-qwen3-32b-8n8g "$@"
