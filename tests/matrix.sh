#!/usr/bin/env bash
# What runs under which verl: an environment per version, what that version can, and the table of verl_entropy/hosts/README.md.
#
#   bash tests/matrix.sh                 every version
#   bash tests/matrix.sh 0.8.0 0.7.1     these
#   bash tests/matrix.sh ../verl         a checkout of verl, by its version and commit
#   VERL_AGENT_HOME=... bash tests/matrix.sh verl-agent      tests/verl_agent with a checkout of verl-agent 796ed31
#
# PYTHON is an interpreter whose environment has verl 0.9.1 and what the tests need (default: that of tests/run.sh). Environments of
# other versions lie over it, in VERL_ENTROPY_MATRIX (default .venv-matrix), and hold only what differs. Results: tests/matrix.json.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv-test/bin/python}
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
failed=0
PYTHONPATH=$PWD "$python" tests/matrix.py "$@" || failed=1
PYTHONPATH=.:tests "$python" tests/readme.py
exit $failed
