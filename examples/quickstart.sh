#!/usr/bin/env bash
# Train a tiny agent with verl's own V1 trainer and +entropy=[gigpo,aem,seal], on a CPU, from nothing.
#
#   bash examples/quickstart.sh [--preset gigpo,aem,seal] [--steps 25] [--seed 0] [--folder .quickstart] [VERL OVERRIDES...]
#
# Makes a virtual environment (.venv-quickstart, or $VERL_ENTROPY_VENV), installs the CPU build of torch and this package into it,
# builds a model and tokenizer, warm-starts it on expert episodes of the household world, trains it, prints success on held-out
# tasks before and after, and draws a figure. Running it again goes on where it stopped. PYTHON chooses the interpreter (3.10-3.12).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${VERL_ENTROPY_VENV:-$root/.venv-quickstart}

if [ ! -e "$venv/.installed" ] || [ "$root/setup.py" -nt "$venv/.installed" ]; then
  echo "installing into $venv (torch for the CPU, verl, this package; about 2 GB)"
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${root}[cpu]"
  touch "$venv/.installed"
fi
exec "$venv/bin/python" -m verl_entropy.quickstart "$@"
