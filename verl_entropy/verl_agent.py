# SPDX-License-Identifier: Apache-2.0
"""``python -m verl_entropy.verl_agent``: the launcher for verl-agent, which is ``hosts/verl_agent``."""

import sys

if __name__ == "__main__":
    from verl_entropy.hosts.verl_agent.__main__ import main

    sys.exit(main())
