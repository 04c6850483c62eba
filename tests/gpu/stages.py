# SPDX-License-Identifier: Apache-2.0
"""stages.py OUT SECONDS: one table of run.sh's stages, from stages.tsv and what they left in OUT; also run.json. Exit 1 if one failed."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from host import describe
from report_seams import shares

GOALS = {"advantages": 0.001, "diagnostics": 0.01}
"""Largest shares of a step of a model of size."""


class StageFailed(ValueError):
    """A stage ended well, but its result says that it did not do what it is for."""


def tests(folder: Path, stage: str) -> str:
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(folder / f"{stage}.xml").getroot().iter("testsuite"):
        for key in counts:
            counts[key] += int(suite.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    said = f"{passed} passed, {failed} failed, {counts['skipped']} skipped"
    if failed or not passed:
        raise StageFailed(said)
    return said


def training(folder: Path, stage: str) -> str:
    r = json.loads((folder / f"{stage}.json").read_text())
    inactive = [name for name, active in r["seams"].items() if not active]
    first, last = r["steps"][0], r["steps"][-1]
    said = f"{len(r['seams']) - len(inactive)} of {len(r['seams'])} seams, steps {first} to {last}"
    if inactive:
        raise StageFailed(f"{said}; not active: {', '.join(inactive)}")
    if stage == "resume" and first < 2:
        raise StageFailed(f"{said}: started anew instead of resuming")
    return f"{said}, last {r['timing_s']['timing_s/step'][-1]:.1f} s"


def fp16(folder: Path, stage: str) -> str:
    gap = json.loads((folder / f"{stage}.json").read_text())["rollout_probs_diff_mean"]
    said = f"{training(folder, stage)}, probabilities of trainer and vLLM {gap:.1e} apart in the mean"
    if not gap < 0.01:
        raise StageFailed(said)
    return said


def branching(folder: Path, stage: str) -> str:
    found = json.loads((folder / f"{stage}.json").read_text())["rollout"]
    reused, generated, share = (
        found[f"verl_entropy/rollout/{key}"] for key in ("reused_tokens", "generated_tokens", "cached_share")
    )
    said = f"{training(folder, stage)}; {reused / (reused + generated):.0%} of the response tokens taken over"
    branches = found.get("verl_entropy/rollout/branch_cached_share")
    if branches is None:
        raise StageFailed(f"{said}; no prompt branched")
    if not branches > 0.5:
        raise StageFailed(f"{said}; only {branches:.0%} of a branch's first prompt were in vLLM's cache")
    return f"{said}; in vLLM's cache {share:.0%} of all prompts, {branches:.0%} of a branch's first"


def step(folder: Path, stage: str) -> str:
    """Our shares of a step; a missed goal is a failure."""
    ours = shares(json.loads((folder / f"{stage}.json").read_text())["timing_s"])
    said = ", ".join([training(folder, stage), *(f"{name} {share:.2%}" for name, share in ours.items())])
    if any(ours[name] >= most for name, most in GOALS.items()):
        raise StageFailed(said)
    return said


def numerics(folder: Path, stage: str) -> str:
    rows = json.loads((folder / f"{stage}.json").read_text())["rows"]
    ours = [row for row in rows if row["path"].startswith("this package")]
    failed = [row for row in ours if "failed" in row]
    if failed or not ours:
        raise StageFailed(f"{len(failed)} of our {len(ours)} rows failed: {failed[:1]}")
    worst = max(row["entropy"] for row in ours)
    return f"ours within {worst:.0e} nats of fp64; {sum('failed' in row for row in rows)} of {len(rows)} rows could not run"


def clip(folder: Path, stage: str) -> str:
    paths = {row["path"]: row for row in json.loads((folder / f"{stage}.json").read_text())["paths"]}
    if paths["fp32"]["wrong"] > 1e-3:
        raise StageFailed(f"fp32 clips {paths['fp32']['wrong']:.2%} of the tokens otherwise than fp64")
    return f"clipped otherwise than by fp64: bf16 {paths['bf16, this package']['wrong']:.2%}, fp16 {paths['fp16, this package']['wrong']:.2%}"


def overheads(folder: Path, stage: str) -> str:
    r = json.loads((folder / f"{stage}.json").read_text())
    ours = [row for row in r["entropy"] if row["path"] == "this package" and row["ms"] is not None]
    if not ours:
        raise StageFailed("no time of this package's path")
    most = max(ours, key=lambda row: (row["vocab"], row["tokens"]))
    return f"{most['ms']:.1f} ms for {most['tokens']:,} tokens x {most['vocab']:,}; {len(r['entropy'])} rows"


def head(folder: Path, stage: str) -> str:
    r = json.loads((folder / f"{stage}.json").read_text())
    if not r["head"]:
        raise StageFailed(f"no update was measured: {r['failed'][:1]}")
    row = r["head"][0]
    return f"{row['head_ms']:.1f} of {row['update_ms']:.0f} ms of an update of {row['model']}, {100 * row['head_share']:.2f} %"


STAGES: dict[str, tuple[str, Callable[[Path, str], str]]] = {
    "seams": ("verl's trainer with vLLM, every seam", training),
    "resume": ("resumed, colocate_async", training),
    "fp16": ("trainer and vLLM in fp16", fp16),
    "ray": ("RayPPOTrainer with vLLM, every seam", training),
    "branching": ("rollouts that branch, with vLLM", branching),
    "presets": ("an update with every preset", tests),
    "engine": ("the engine's other tests", tests),
    "kernels": ("Triton kernels against fp64", tests),
    "numerics": ("log-prob and entropy against fp64", numerics),
    "clip": ("sides of the clip in 16 bits", clip),
    "step": ("a step with the layers of Qwen2.5-1.5B", step),
    "head": ("what SEAL's head costs an update", head),
    "overheads": ("memory and time of entropy with gradient", overheads),
}


def read(folder: Path) -> list[dict]:
    """A row for each stage that ran, in the order of STAGES."""
    noted = (line.split("\t") for line in (folder / "stages.tsv").read_text().splitlines())
    ended = {stage: (int(code), int(seconds)) for stage, code, seconds in noted}
    rows = []
    for stage, (what, result) in STAGES.items():
        if stage in ended:
            code, seconds = ended[stage]
            said, passed = judged(folder, stage, result)
            if code and passed:
                said = f"exit code {code}; {said}"
            rows.append({"stage": stage, "what": what, "passed": passed and code == 0, "result": said, "seconds": seconds})
    return rows


def judged(folder: Path, stage: str, result: Callable[[Path, str], str]) -> tuple[str, bool]:
    """What the stage's own result says, and whether that is good; a result that is missing or of another form is not."""
    try:
        return result(folder, stage), True
    except StageFailed as reason:
        return str(reason), False
    except (OSError, ValueError, KeyError, IndexError, TypeError, ElementTree.ParseError) as reason:
        return f"no result ({type(reason).__name__}), see {stage}.out", False


def table(rows: list[dict], total: int) -> str:
    cells = [("stage", "what", "result", "seconds")]
    cells += [(r["stage"], r["what"], ("" if r["passed"] else "FAILED: ") + r["result"], str(r["seconds"])) for r in rows]
    cells.append(("all", "", f"{sum(r['passed'] for r in rows)} of {len(rows)} stages passed", str(total)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def main(out: str, seconds: str) -> int:
    folder, total = Path(out), int(seconds)
    rows = read(folder)
    passed = bool(rows) and all(row["passed"] for row in rows)
    timings = {row["stage"]: row["seconds"] for row in rows} | {"all": total}
    result = describe(["tests/gpu/run.sh", "MODEL", "OUT", *(row["stage"] for row in rows)])
    (folder / "run.json").write_text(json.dumps(result | {"passed": passed, "timings": timings, "stages": rows}, indent=1) + "\n")
    print(table(rows, total))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
