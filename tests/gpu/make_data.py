# SPDX-License-Identifier: Apache-2.0
"""make_data.py OUT N: train.parquet and val.parquet whose rows are seeds of household episodes."""

import sys
from pathlib import Path

import pandas as pd


def row(seed: int) -> dict:
    return {
        "data_source": "household",
        "prompt": [{"role": "user", "content": "household"}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": seed, "seed": seed},
        "agent_name": "stepwise_env",
    }


def main(out: str, number: str) -> None:
    pd.DataFrame([row(i) for i in range(int(number))]).to_parquet(Path(out) / "train.parquet")
    pd.DataFrame([row(i) for i in range(8)]).to_parquet(Path(out) / "val.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
