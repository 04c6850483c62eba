#!/usr/bin/env bash
# Install what the tests need into a virtual environment of their own and run them.
#
#   bash tests/run.sh            everything that CI runs (real verl runs on the CPU included)
#   bash tests/run.sh --quick    without trainer runs, engines, simulators and processes that start verl (minutes)
#   bash tests/run.sh --full     also the long runs (every preset through the trainer)
#   bash tests/run.sh -- ARGS    pytest arguments, for example -- -k gigpo
#
# Two processes share the files of the tests between them (`-- -n 0`: one process). `-- --cov=verl_entropy` counts the lines that the test
# processes run (not Ray's workers) and more than doubles the time of tests that are Python alone. PYTHON chooses the interpreter (default
# python3), VERL_ENTROPY_VENV the environment (default .venv-test).
set -euo pipefail
cd "$(dirname "$0")/.."

selection=(-m "not full")
case "${1:-}" in
  --quick) selection=(-m "not real and not full and not slow"); shift ;;
  --full) selection=(); shift ;;
esac
[ "${1:-}" = "--" ] && shift

venv=$(realpath -m "${VERL_ENTROPY_VENV:-.venv-test}")
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
python=$venv/bin/python
# torch first, in the CPU build where there is one; then the package itself, not editable: what users install is what is tested.
"$python" -m pip install --quiet "torch==2.13.0"
"$python" -m pip install --quiet --upgrade --no-build-isolation setuptools wheel
"$python" -m pip install --quiet ".[test]"
"$python" -m pip install --quiet --force-reinstall --no-deps .
# Aside, so that nothing else sees it: the kernels are tested in Triton's interpreter.
[ -d "$venv/triton" ] || "$python" -m pip install --quiet --no-deps --target "$venv/triton" triton ||
  echo "triton did not install: the kernels' tests are skipped" >&2
export VERL_ENTROPY_TRITON=$venv/triton
# Only for the tests: it brings GPL-3 code, so it is never a dependency. Without it, or without a compiler, its tests are skipped.
"$python" -m pip install --quiet "alfworld==0.4.2" || echo "alfworld did not install: its tests are skipped" >&2
if ! command -v java > /dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless > /dev/null
  else
    echo "no java: install a Java 17 runtime (openjdk-17-jre-headless); tests of the Java simulators are skipped" >&2
  fi
fi
if ! command -v chromedriver > /dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq && apt-get install -y -qq chromium chromium-driver > /dev/null ||
      echo "chromium did not install: the tests of the report's page in a browser are skipped" >&2
  else
    echo "no chromium with its driver: install chromium and chromium-driver; the tests of the report's page in a browser are skipped" >&2
  fi
fi

export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
"$python" -m ruff check .
"$python" -m ruff format --check verl_entropy tests examples recipes setup.py
"$venv/bin/lint-imports" --no-cache
"$python" -m mypy
# From another folder: the installed package, not this checkout, is imported.
tests=$PWD/tests
cd "$(mktemp -d)"
exec "$python" -m pytest -c "$tests/pytest.ini" --rootdir "$tests" "$tests" -n 2 --dist loadfile "${selection[@]}" "$@"
