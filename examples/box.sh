#!/usr/bin/env bash
# Eruption in a box: plain GRPO that is lost, beside the same run with a remedy that keeps it, on two CPU cores in about 15 minutes.
#
#   bash examples/box.sh [--seeds 0] [--method none,dynamic_sampling] [--jobs 2] [--work .box]
#
# The 60 steps of the bench's unstable household (recipes/bench/README.md says how five seeds of each went), with run files and SEAL's
# interference. Ends with a line a run and one page, .box/report.html. Goes on where it stopped; other options are bench.sh's. Installs into
# the quickstart's environment first (.venv-quickstart, or $VERL_ENTROPY_VENV), unless PYTHON names an interpreter that has this package's
# extra `cpu`.
#
# Shorter, five minutes: `--world bandit --method none,dr_grpo`, where GRPO goes to the arm that pays less, and without the division by the
# group's standard deviation it does not (five seeds of each, all so).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case " $* " in
  *" -h "* | *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
if [ -z "${PYTHON:-}" ]; then
  bash "$root/examples/quickstart.sh" --install-only
  PYTHON=${VERL_ENTROPY_VENV:-$root/.venv-quickstart}/bin/python
fi
export PYTHON
work=.box
previous=
for word in "$@"; do
  case "$previous=$word" in
    *=--work=*) work=${word#--work=} ;;
    --work=*) work=$word ;;
  esac
  previous=$word
done
exec bash "$root/examples/bench.sh" --world household --regime unstable --method none,dynamic_sampling --seeds 0 --jobs 2 --diagnose \
  --work "$work" --results "$work/results" "$@"
