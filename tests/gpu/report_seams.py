# SPDX-License-Identifier: Apache-2.0
"""report_seams.py OUT NAME STEPS: which seams were active in the run, from its metrics and last checkpoint; exit 1 if one was not."""

import json
import math
import sys
from pathlib import Path

SEAMS = {
    "training worker runs our code": "verl_entropy/active",
    "entropy of the old-log-prob pass": "verl_entropy/entropy",
    "turns and environment fields": "verl_entropy/turns",
    "estimator gigpo": "verl_entropy/gigpo/anchor_groups",
    "regulariser epo, entropy with gradient": "verl_entropy/epo/entropy",
    "SEAL head": "verl_entropy/seal/loss",
}


def main(out: str, name: str, last: str) -> int:
    import torch
    from host import describe

    folder = Path(out)
    steps = [json.loads(line)["data"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    rows = {}
    for seam, key in SEAMS.items():
        values = [step.get(key) for step in steps]
        rows[seam] = all(v is not None and math.isfinite(v) for v in values) and bool(values)
    saved = folder / "checkpoints" / f"global_step_{last}"
    shard = torch.load(next((saved / "actor").glob("model_*_rank_0.pt")), map_location="cpu", weights_only=False)
    rows["head in the checkpoint"] = any("seal_head" in key for key in shard)
    rows["state beside the checkpoint"] = (saved / "verl_entropy.json").is_file()
    timing = {
        key: [round(float(step[key]), 3) for step in steps if key in step] for key in steps[-1] if key.startswith("timing_s/")
    }
    result = describe() | {
        "steps": [int(step.get("training/global_step", 0)) for step in steps],
        "rows": [step.get("verl_entropy/rows", step.get("verl_entropy/turns")) for step in steps],
        "seams": rows,
        "last_step": {key: round(float(steps[-1][key]), 6) for key in SEAMS.values()},
        "rollout_probs_diff_mean": float(steps[-1].get("training/rollout_probs_diff_mean", float("nan"))),
        "timing_s": timing,
    }
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if all(rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
