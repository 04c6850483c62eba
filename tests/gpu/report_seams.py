# SPDX-License-Identifier: Apache-2.0
"""report_seams.py OUT NAME STEPS: which seams were active in the run, from its metrics and last checkpoint; exit 1 if one was not.

Also where a step's time went, by verl's timers and ours. The first step has start-up in it; the table's medians are over the later ones.
"""

import json
import math
import statistics
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

ROLLOUT = ("verl_entropy/rollout/", "verl_entropy/branching/")
TIMING, OURS = "timing_s/", "verl_entropy/timing_s/"
PHASES = ("gen", "old_log_prob", "adv", "update_actor", "save_checkpoint", "update_weights")


def timings(steps: list[dict]) -> dict[str, list[float]]:
    """Seconds per step: verl's timers, ours, and the rest of the step."""
    keys = [key for key in dict.fromkeys(key for step in steps for key in step) if key.startswith((TIMING, OURS))]
    found = {key: [float(step[key]) for step in steps if key in step] for key in keys}
    found[TIMING + "rest"] = [step[TIMING + "step"] - sum(step.get(TIMING + phase, 0.0) for phase in PHASES) for step in steps]
    return {key: [round(value, 3) for value in values] for key, values in found.items() if values}


def without_saving(timing: dict[str, list[float]]) -> list[float]:
    """Seconds of every step less those of the checkpoint that the last ones save."""
    whole, saving = timing[TIMING + "step"], timing.get(TIMING + "save_checkpoint", [])
    return [a - b for a, b in zip(whole, [0.0] * (len(whole) - len(saving)) + saving, strict=True)]


def shares(timing: dict[str, list[float]]) -> dict[str, float]:
    """Our parts of a step without saving, in the trainer's process: medians over the steps after the first."""
    step = statistics.median(without_saving(timing)[1:])
    ours = {key.removeprefix(OURS): values[1:] for key, values in timing.items() if key.startswith(OURS)}
    return {name: statistics.median(values) / step for name, values in ours.items()}


def table(timing: dict[str, list[float]]) -> str:
    """The phases of a step: the first step, and the median of the later ones. What does not happen in every step is left out."""
    count = len(timing[TIMING + "step"])
    lines = [f"{'seconds':34}{'first step':>12}{'median of the later':>21}"]
    for key, values in timing.items():
        if len(values) == count and count > 1:
            lines.append(f"{key.replace(TIMING, '', 1):34}{values[0]:12.2f}{statistics.median(values[1:]):21.2f}")
    return "\n".join(lines)


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
    timing = timings(steps)
    result = describe() | {
        "steps": [int(step.get("training/global_step", 0)) for step in steps],
        "rows": [step.get("verl_entropy/rows", step.get("verl_entropy/turns")) for step in steps],
        "seams": rows,
        "last_step": {key: round(float(steps[-1][key]), 6) for key in SEAMS.values()},
        "rollout": {key: round(float(value), 6) for key, value in sorted(steps[-1].items()) if key.startswith(ROLLOUT)},
        "rollout_probs_diff_mean": float(steps[-1].get("training/rollout_probs_diff_mean", float("nan"))),
        "timing_s": timing,
    }
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "timing_s"}, indent=1))
    print(table(timing))
    return 0 if all(rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
