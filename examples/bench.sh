#!/usr/bin/env bash
# Which method helps, when, and by how much: every method in every world and regime over several seeds, on the cores that are there.
#
#   bash examples/bench.sh [--world household] [--regime healthy,unstable] [--method none,gigpo,...] [--seeds 0-4] [--jobs N] [--page]
#
# Trains what is missing with verl's own V1 trainer on CPU cores, N runs at once, writes one small JSON a run to recipes/bench/results and then
# recipes/bench/README.md with its figures from these files. A run counts once its file is there: after a kill the same command goes on
# (a run that was cut begins anew). --page writes the page alone. --help shows the other options. PYTHON chooses the interpreter, which has
# this package's extra `bench` installed (pip install -e '.[bench]').
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case " $* " in
  *" -h "* | *" --help "*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
esac
export PYTHONPATH=$root:$root/examples${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-python3}" -m bench "$@"
