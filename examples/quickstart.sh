#!/usr/bin/env bash
# Train a tiny agent with verl's own V1 trainer and +entropy=[gigpo,aem,seal], on a CPU, from nothing.
#
#   bash examples/quickstart.sh [--preset gigpo,aem,seal] [--steps 30] [--seed 0] [--folder .quickstart] [VERL OVERRIDES...]
#
# Makes a virtual environment (.venv-quickstart, or $VERL_ENTROPY_VENV), installs torch, verl and this package into it (no GPU is used),
# builds a model and tokenizer, warm-starts it on expert episodes of the household world, trains it, prints success on held-out
# tasks before and after, and draws a figure. Running it again goes on where it stopped. PYTHON chooses the interpreter (3.10-3.12).
# Where the package index's torch brings CUDA, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has pip take the CPU build.
# --install-only makes the environment and stops.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${VERL_ENTROPY_VENV:-$root/.venv-quickstart}

case " $* " in
  *" -h "* | *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac

if [ ! -e "$venv/.installed" ] || [ -n "$(find "$root/setup.py" "$root/verl_entropy" -newer "$venv/.installed" -type f -print -quit)" ]; then
  echo "installing into $venv (torch, verl, this package; 2 GB, more where the package index's torch brings CUDA)"
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade setuptools wheel
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${root}[cpu]"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$root"
  touch "$venv/.installed"
fi
[ "${1:-}" = --install-only ] || exec "$venv/bin/python" -m verl_entropy.quickstart "$@"
