#!/usr/bin/env bash
# What an environment needs on every machine of a cluster: its packages, and Java where it is Java. Run it from the checkout's folder
# in the image's or the machine's Python; `bash examples/NAME.sh --prepare` then fetches model, games and data once, to a shared folder.
#
#   bash examples/prepare_node.sh ENV      ENV: alfworld scienceworld textworld_express appworld webshop_like search math swe household
set -euo pipefail
python=${PYTHON:-python3}

java_17() {
  if command -v java > /dev/null; then return; fi
  if [ "$(id -u)" -eq 0 ]; then as_root=(); else as_root=(sudo); fi
  ${as_root[@]+"${as_root[@]}"} apt-get update
  ${as_root[@]+"${as_root[@]}"} apt-get install -y --no-install-recommends openjdk-17-jre-headless
}

case ${1:-} in
  alfworld) "$python" -m pip install alfworld ;;  # brings GPL-3 code, so no extra of this package installs it
  scienceworld|textworld_express) java_17 && "$python" -m pip install ".[$1]" ;;
  appworld) "$python" -m pip install appworld && appworld install ;;
  webshop_like|search|math) "$python" -m pip install ".[$1]" ;;
  swe|household) ;;
  webshop)
    echo "prepare_node.sh: webshop: follow the setup of github.com/princeton-nlp/WebShop on every node (or in the image) and put its folder on PYTHONPATH" >&2
    exit 2 ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
