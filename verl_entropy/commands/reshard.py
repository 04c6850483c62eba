# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy reshard CHECKPOINT --ranks N [--out DIR]``."""

from __future__ import annotations

import argparse

from verl_entropy.commands.output import json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description += (
        "\n\nverl loads only shards that were saved by as many ranks as resume. The new shards are written beside the old ones, so "
        "that the same folder resumes on either number of ranks (trainer.resume_mode=auto finds it); with --out, into a new folder "
        "with the rest of the checkpoint. Weights, optimiser, schedule and the SEAL head are the same values; ranks that the "
        "checkpoint had not have no saved random state (it draws dropout) and start with verl's."
        "\n\nFSDP2, and FSDP1 without use_orig_params; fsdp_size=-1. Needs no GPU, and the memory of the new ranks' largest shard."
    )
    parser.add_argument("checkpoint", help="global_step_<n> folder")
    parser.add_argument(
        "--ranks", type=int, required=True, help="trainer.nnodes * trainer.n_gpus_per_node of the run that resumes"
    )
    parser.add_argument("--out", help="new folder, named global_step_<n> too; default: into the checkpoint itself")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the shards and say so."""
    from verl_entropy.tools.reshard import reshard

    former = reshard(args.checkpoint, args.ranks, args.out)
    target = args.out or args.checkpoint
    if args.json:
        print_json({"target": target, "ranks": args.ranks, "former": former})
    else:
        for role, ranks in former.items():
            print(f"{role}: from {ranks} to {args.ranks} ranks; verl can load {target}")
    return 0
