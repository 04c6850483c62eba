# SPDX-License-Identifier: Apache-2.0
"""``recipes/bench/README.md`` and its figures, from the result files and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.outcome import COLLAPSED, ENDS, ERUPTED
from bench.page.cells import load
from bench.page.figure import draw
from bench.page.sections import ends, eruptions, holding, sampled, starting, tokens, told_of_causes
from bench.page.sources import AGAIN, CUT, cut, origin, reruns, seeds_run, tuning, unpaired
from bench.page.tables import COMPARED, JUDGED, beside_parts, parts, table, verdicts
from bench.plan import BASE, QUICKSTART, RESULTS, TUNING_SEEDS, WORLDS
from bench.statistics import LEAST_SEEDS

READINGS = "readings"
"""Folder beside the results of what people say of them: NAME.md for a world and regime, and in_short.md."""


def reading(results: Path, name: str) -> list[str]:
    """What is said by hand; nothing where there is no file."""
    path = results.parent / READINGS / f"{name}.md"
    return [*path.read_text(encoding="utf-8").splitlines(), ""] if path.is_file() else []


def render(results: Path) -> str:
    """The page."""
    found = load(results)
    runs = [run for cells in found.values() for cell in cells.values() for run in cell.values()]
    lines = [
        "# The bench",
        "",
        "Entropy methods against plain GRPO under one trainer (verl's V1), with equal steps, the same tasks, warm starts and seeds.",
        "Written from `results/` by `bash examples/bench.sh --page`; do not edit.",
        "",
        "```bash",
        "pip install -e '.[bench]'",
        "bash examples/bench.sh                                   # what is missing of the worlds for a CPU, on all cores, then this page",
        "bash examples/bench.sh --method none,gigpo --seeds 0-4   # some of it",
        "bash examples/bench.sh --world frozen_lake_card --model FOLDER --cards 0,1 --jobs 6   # SmolLM2-135M-Instruct, with the extra vllm",
        "bash examples/bench.sh --world textworld_express_card --model FOLDER   # as well, with the extra textworld_express and Java",
        "```",
        "",
        *(["## In short", "", *told] if (told := reading(results, "in_short")) else []),
    ]
    for (world, regime), cells in found.items():
        spec = WORLDS[world]
        chosen = spec.regimes[regime]
        lines += [
            f"## {spec.title}, {regime}",
            "",
            f"{spec.text} Here: {chosen.why}, {chosen.steps} steps. {starting(cells)}",
            "",
            *table(cells),
            "",
            *verdicts(cells),
            "",
            *beside_parts(cells),
            f"![success and entropy]({world}-{regime}.png)",
            "",
            *tokens(cells),
            *sampled(cells),
            *holding(cells),
            *ends(cells),
            *eruptions(cells),
            *told_of_causes(cells),
            *reading(results, f"{world}-{regime}"),
        ]
    if not runs:
        return "\n".join([*lines, "No runs yet.", ""])
    sizes = [
        f"{w.title} {len(w.splits)} x {w.episodes}, {0.5 / (len(w.splits) * w.episodes) ** 0.5:.3f}" for w in WORLDS.values()
    ]
    intervals = sum((len(cells) - 1) * len(JUDGED) + len(parts(cells)) * len(COMPARED) for cells in found.values())
    lines += [
        "## How to read it",
        "",
        f"- Held-out success: mean of the splits, sampled at temperature 1, at the start and the end of the run, in the household in the "
        f'middle, too; "best" is the highest of these. Episodes, and the standard error of one such value at most: {"; ".join(sizes)}.',
        "- Area under the curve: mean success of all training steps; each step has new tasks, so it is success on unseen tasks, too, and less "
        "noisy than a validation.",
        "- Held out and area are interquartile means over seeds. Their intervals, and P's: 95 %, stratified bootstrap over seeds (percentile), "
        "which with five seeds is narrower than it should be. Paired: mean of the method's run minus GRPO's of the same seed, which begin with "
        "the same warm start and tasks, with a 95 % interval of Student's t; not where a processor that rounds otherwise made another policy "
        "of the warm start (Sokoban, seed 2: .54 and .37 of held-out success before training), as it did before seeds 13 and up. "
        "P(final > GRPO's): of a run of the method and one of GRPO, both drawn from the seeds that are paired. Rows of other numbers of "
        "seeds compare in these columns only. No interval "
        f"under {LEAST_SEEDS} seeds. Above and below GRPO: the paired interval leaves out 0.",
        *unpaired(found),
        f"- Collapsed: mean entropy of the last {ENDS} steps under {COLLAPSED:g} of that of the first {ENDS}. Erupted: mean entropy of some "
        f"{ENDS // 2} steps at least {ERUPTED:g} times that of the first {ENDS}. Lost half: success of the last {ENDS} steps at most half "
        f"of the best {ENDS}. Held out halved: held-out success at the end at most half of its best. Dynamic sampling trains on groups whose "
        "rollouts differ in success, so that its training success is theirs; where it is the method, held-out success alone compares.",
        "- A method is its preset with the coefficients of its paper, some of which bring other settings along (DAPO's clip bounds with REPO "
        "and the adaptive bonus; see `verl_entropy/config/conf/entropy`). Nothing was tuned for these worlds.",
        "",
        "## What this does not show",
        "",
        f"- {intervals} intervals at 95 %: about one in twenty leaves out the truth by chance, and none is corrected for their number.",
        "- A policy of 0.2 M parameters in a world of its own says how methods behave in this regime; it does not rank them for large models.",
        "- Equal tuning: the papers' coefficients only; another coefficient may do better.",
        "- The regimes are learning rates; mini-batches, epochs and negative-heavy groups were not varied.",
        "",
        *seeds_run(found),
        "",
        "## Tuning seeds",
        "",
        f"Plain GRPO on seeds from {TUNING_SEEDS} up, for choosing the regimes. Entropy, in nats a token: first {ENDS // 2} steps -> the "
        f"{ENDS // 2} steps in which that of wrong trajectories was highest.",
        "",
        *(tuning(results) or ["- none reached its end: the rates come from single runs of an earlier commit."]),
        "",
        *reruns(results.parent / AGAIN, found),
        *cut(results.parent / CUT),
        "## Where the runs come from",
        "",
        *origin(runs),
        "",
    ]
    return "\n".join(lines)


def baseline(results: Path) -> str:
    """Plain GRPO in the healthy household, which the quickstart shows beside its own run: JSON text."""
    runs = load(results)["household", "healthy"][BASE]
    curves = np.array([run["curves"]["success"] for run in runs.values()])
    last = {split: [run["held_out"][split][-1] for run in runs.values()] for split in WORLDS["household"].splits}
    content = {
        "source": "recipes/bench/results/household/healthy, by bash examples/bench.sh --page",
        "seeds": sorted(runs),
        "steps": curves.shape[1],
        "commits": sorted({run["commit"] for run in runs.values()}),
        **last,
        "low": curves.min(0).tolist(),
        "high": curves.max(0).tolist(),
    }
    return json.dumps(content, indent=1) + "\n"


def write_page(results: Path) -> Path:
    """README.md and one figure for each world and regime, beside ``results``; of the committed results the quickstart's baseline, too."""
    page = results.parent / "README.md"
    if results.resolve() == RESULTS:
        QUICKSTART.write_text(baseline(results), encoding="utf-8")
    for (world, regime), cells in load(results).items():
        draw(cells, results.parent / f"{world}-{regime}.png")
    page.write_text(render(results), encoding="utf-8")
    return page
