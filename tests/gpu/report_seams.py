# SPDX-License-Identifier: Apache-2.0
"""report_seams.py OUT: a table of which seams were active in the run, from its metrics and checkpoint; exit 1 if one was not."""

import importlib.metadata
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


def main(out: str) -> int:
    import torch

    folder = Path(out)
    steps = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = {}
    for name, key in SEAMS.items():
        values = [step.get(key) for step in steps]
        rows[name] = all(v is not None and math.isfinite(v) for v in values) and len(values) == 3
    shard = torch.load(
        next((folder / "checkpoints" / "global_step_3" / "actor").glob("model_*_rank_0.pt")),
        map_location="cpu",
        weights_only=False,
    )
    rows["head in the checkpoint"] = any("seal_head" in key for key in shard)
    rows["state beside the checkpoint"] = (folder / "checkpoints" / "global_step_3" / "verl_entropy.json").is_file()
    last = {key: round(float(steps[-1][key]), 6) for key in SEAMS.values()}
    timing = {key: round(float(steps[-1][key]), 3) for key in steps[-1] if key.startswith("timing_s/")}
    result = {
        "device": torch.cuda.get_device_name(),
        "versions": {p: importlib.metadata.version(p) for p in ("torch", "verl", "vllm", "transformers", "verl-entropy")},
        "steps": len(steps),
        "seams": rows,
        "last_step": last,
        "rollout_probs_diff_mean": float(steps[-1].get("training/rollout_probs_diff_mean", float("nan"))),
        "timing_s": timing,
    }
    (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if all(rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
