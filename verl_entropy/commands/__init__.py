# SPDX-License-Identifier: Apache-2.0
"""One file per command: ``add_arguments(parser)`` and ``run(args) -> int``; ``verl_entropy.cli`` imports the one that is asked for."""
