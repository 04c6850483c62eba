# SPDX-License-Identifier: Apache-2.0
"""Write the generated parts of the READMEs: tables, results, costs. ``python tests/readme.py``; ``parts`` says which file has which."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from pathlib import Path

from gpu.report_seams import shares, without_saving

from verl_entropy.commands import table
from verl_entropy.methods import registry

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples" / "results"
sys.path.insert(0, str(ROOT / "examples"))


def quickstart_table() -> str:
    """Success before and after the quickstart, per seed, from examples/results/quickstart.json."""
    runs = json.loads((RESULTS / "quickstart.json").read_text())
    lines = [
        f"Quickstart (`bash examples/quickstart.sh --seed S`, {runs['steps']} steps, {runs['machine']}, {runs['versions']}). Success on "
        f"held-out tasks, {runs['episodes']} episodes per split, temperature {runs['temperature']}:",
        "",
        "| preset | seed | seen before | seen after | unseen before | unseen after | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs["runs"]:
        cells = (f"{run[k]:.2f}" for k in ("seen_before", "seen_after", "unseen_before", "unseen_after"))
        lines.append(f"| {run['preset']} | {run['seed']} | {' | '.join(cells)} | {run['minutes']:.1f} |")
    for split in ("seen", "unseen"):
        gains = [run[f"{split}_after"] - run[f"{split}_before"] for run in runs["runs"]]
        spread = f" +- {statistics.stdev(gains):.2f}, standard deviation" if len(gains) > 1 else ""
        lines += ["", f"Gain on {split}: {statistics.mean(gains):+.2f}{spread} over {len(gains)} seed(s)."]
    return "\n".join(lines)


def bench_table() -> str:
    """The short table of the bench, from recipes/bench/results."""
    from bench.page import tables

    return "\n".join(tables.short_table())


def _kept(path: Path) -> dict | None:
    """A result file, or None where it was not measured."""
    return json.loads(path.read_text()) if path.is_file() else None


def _gpu(name: str) -> dict | None:
    return _kept(ROOT / "tests/gpu/results" / f"{name}.json")


def gpu_runs() -> str:
    """Runs with vLLM, from tests/gpu/results/{seams,seams_padded,resume,ray,branching,fp16,step}.json, those that are there."""
    what = {
        "seams": "Rows packed (`varlen`), CUDA graphs in vLLM",
        "seams_padded": "Before that: rows padded, vLLM eager, all columns to the workers",
        "resume": "Resumed from a checkpoint under `colocate_async`",
        "ray": "verl's RayPPOTrainer (`trainer.use_v1=False`), beside other work on the card",
        "branching": "Rollouts that branch (`+entropy=[gigpo,aem,seal,epo,arpo]`, 4 roots of 8), beside other work on the card",
        "fp16": "Trainer and vLLM in fp16",
        "step": "The layers of Qwen2.5-1.5B with random weights, 32,768 tokens a micro-batch, gradient checkpointing",
    }
    lines = []
    for name, means in what.items():
        if (r := _gpu(name)) is None:
            continue
        v = r["versions"]
        head = f"- {means} ({r['device']}, torch {v['torch']}, verl {v['verl']}, vllm {v['vllm']}, commit {r['commit']}): "
        active = f"{sum(r['seams'].values())} of {len(r['seams'])} seams were active."
        if name == "fp16":
            gap, bf16 = r["rollout_probs_diff_mean"], _gpu("seams")["rollout_probs_diff_mean"]
            lines.append(f"{head}probabilities of the two {gap:.1e} apart in the mean, against {bf16:.1e} in bf16. {active}")
            continue
        if name == "branching":
            found = {key.removeprefix("verl_entropy/rollout/"): value for key, value in r["rollout"].items()}
            taken = found["reused_tokens"] / (found["reused_tokens"] + found["generated_tokens"])
            lines.append(
                f"{head}steps {r['steps'][0]} to {r['steps'][-1]}, {active} {taken:.0%} of the last step's response tokens were taken over. "
                f"vLLM had {found['branch_cached_share']:.0%} of a branch's first prompt in its cache, and {found['cached_share']:.0%} of all."
            )
            continue
        if name in ("resume", "ray"):  # of interest is that they run, and they may share the card
            lines.append(f"{head}steps {r['steps'][0]} to {r['steps'][-1]}, {active}")
            continue
        seconds = {key.removeprefix("timing_s/"): values for key, values in r["timing_s"].items()}
        later = {key: statistics.median(seconds[key][1:]) for key in ("gen", "old_log_prob", "adv", "update_actor")}
        steps = without_saving(r["timing_s"])
        line = (
            f"{head}{statistics.median(steps[1:]):.1f} s a step without saving, median of the {len(steps) - 1} after the first "
            f"(generation {later['gen']:.1f}, old log-probs {later['old_log_prob']:.1f}, advantages {later['adv']:.1f}, "
            f"update {later['update_actor']:.1f}). {active}"
        )
        ours = seconds.get("verl_entropy/timing_s/diagnostics")
        if name == "step":
            parts = ", ".join(f"{part} {100 * share:.2f} %" for part, share in shares(r["timing_s"]).items())
            line += f" Ours in the trainer's process, as shares of a step: {parts}."
        elif ours:
            line += (
                f" The trainer's part of the diagnostics took {1e3 * ours[0]:.0f} ms in the step with the costly metrics and "
                f"{1e3 * statistics.median(ours[1:]):.0f} ms in the others, "
                f"{100 * shares(r['timing_s'])['diagnostics']:.2f} %."
            )
        lines.append(line)
    intro = (
        "On a GPU (`tests/gpu/run.sh`; SmolLM2-135M, FSDP2, 256 episodes of up to 4 turns a step, 1,024 rows, "
        "`+entropy=[gigpo,aem,seal,epo]`, one run each):"
    )
    return "\n".join([intro, "", *lines])


def gpu_stages() -> str:
    """The table of tests/gpu/run.sh, from tests/gpu/results/run.json; nothing where that call is not kept."""
    if (r := _gpu("run")) is None:
        return ""
    lines = [
        f"Stages of `tests/gpu/run.sh` on {r['device']}, commit {r['commit']}, in {r['timings']['all'] / 60:.0f} minutes:",
        "",
    ]
    lines += ["| stage | what | result | s |", "|---|---|---|---|"]
    for row in r["stages"]:
        lines.append(
            f"| {row['stage']} | {row['what']} | {'' if row['passed'] else 'failed: '}{row['result']} | {row['seconds']} |"
        )
    if two := _gpu("two_cards"):
        (row,) = two["stages"]
        lines += ["", f"With two cards visible ({two['device']}, commit {two['commit']}), stage {row['stage']}: {row['result']}."]
    return "\n".join(lines)


def gpu_entropy() -> str:
    """Memory and time of entropy with gradient, from tests/gpu/results/overheads.json."""
    r = _gpu("overheads")
    lines = [
        f"Log-prob and entropy with gradient, both ways, on {r['device']} (bf16 logits, medians of {r['repeats']}; bytes per token and word "
        "beyond the logits: kept for backward, and peak with the gradient's 2):",
        "",
        "| path | vocabulary | tokens | ms | kept | peak |",
        "|---|---|---|---|---|---|",
    ]
    for row in r["entropy"]:
        if row["tokens"] not in (16_384, 65_536) or "SmolLM" in row["model"]:
            continue
        cells = (
            ("does not fit", "", "") if row["ms"] is None else (f"{row['ms']:.1f}", f"{row['kept']:.1f}", f"{row['peak']:.1f}")
        )
        lines.append(f"| {row['path']} | {row['vocab']:,} | {row['tokens']:,} | {' | '.join(cells)} |")
    lines += ["", "In every row log-prob is this package's; verl's own is a Python loop over rows where flash-attn is missing."]
    return "\n".join(lines)


def gpu_head() -> str:
    """What SEAL's head costs an update, from tests/gpu/results/head.json."""
    r = _gpu("head")
    lines = []
    for row in r["head"]:
        low, high = (100 * x for x in row["head_share_quartiles"])
        device = sum(part["device_ms"] for part in row["parts"])
        update, share = row["update_ms"], 100 * row["head_share"]
        lines.append(
            f"SEAL's head in an update of {row['model']} by verl's FSDP2 engine on {r['device']} ({row['tokens']:,} tokens, "
            f"{row['trained_tokens']:,} of them trained in {row['turns']} turns): {row['head_ms']:.1f} of {update:,.0f} ms, {share:.2f} % "
            f"(median of {row['pairs']} pairs of updates with and without; quartiles {low:.2f} and {high:.2f}). Alone its kernels take "
            f"{device:.1f} ms on the device, {100 * device / update:.2f} %. Weights and Adam: {row['head_state_mb']:.0f} MB."
        )
        if step := _gpu("step"):
            timing = step["timing_s"]
            part = statistics.median(timing["timing_s/update_actor"][1:]) / statistics.median(without_saving(timing)[1:])
            lines[-1] += (
                f" Updates are {100 * part:.0f} % of the step above with these layers, so of that it is {share * part:.2f} %."
            )
    return "\n\n".join(lines)


def gpu_numerics() -> str:
    """Largest errors against fp64, from tests/gpu/results/numerics.json."""
    r = _gpu("numerics")
    worst: dict[tuple[str, str], float] = {}
    for row in r["rows"]:
        if "entropy" in row:
            key = (row["path"], row["logits"])
            worst[key] = max(worst.get(key, 0.0), row["entropy"])
    lines = [
        f"Largest error of a token's entropy against fp64 on {r['device']} ({r['tokens']:,} tokens, vocabulary {r['vocab']:,}, mean entropies "
        "of 1.5 to 11 nats):",
        "",
        "| path | bf16 | fp16 | fp32 |",
        "|---|---|---|---|",
    ]
    for path in dict.fromkeys(path for path, _ in worst):
        cells = []
        for dtype in ("bfloat16", "float16", "float32"):
            value = worst.get((path, dtype), worst.get((path, f"{dtype} hidden")))
            cells.append("" if value is None else f"{value:.0e}")
        lines.append(f"| {path} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gpu_clip() -> str:
    """Shares clipped on each side by path, from tests/gpu/results/clip.json; nothing where it was not measured."""
    if (r := _gpu("clip")) is None:
        return ""
    low, high = r["clip"]
    lines = [
        f"Sides of the clip ({low} below, {high} above) over {r['steps']} AdamW steps at {r['lr']:.0e} on {r['rows'] * r['tokens']:,} "
        f"sampled tokens of SmolLM2-135M, on {r['device']}: the share clipped on each side, the tokens that fp64 treats otherwise, and "
        "the mean error of a token's log ratio in nats:",
        "",
        "| pass | above | below | otherwise than fp64 | error |",
        "|---|---|---|---|---|",
    ]
    for row in r["paths"]:
        against = f"{100 * row['wrong']:.2f} % | {row['error']:.1e}" if "wrong" in row else "|"
        lines.append(f"| {row['path']} | {100 * row['high']:.2f} % | {100 * row['low']:.2f} % | {against} |")
    return "\n".join(lines)


LEARNED = ROOT / "recipes/first_look/textworld_express"
LOOKS = {
    "results": "Three seeds at a third of the recipe's learning rate",
    "seed_0_again": "Seed 0 of three of them again",
    "rate_3e-5": "The methods at the recipe's learning rate",
    "learning_rates": "Three learning rates, and the methods from another warm start",
}
"""Files that ``python tests/gpu/learn_results.py`` wrote, those that are there; the first is also in recipes/README.md."""


def learned(name: str = "results") -> dict | None:
    return _kept(LEARNED / f"{name}.json")


def _change(ends: dict | None, digits: int = 2) -> str:
    """Start -> end of a curve."""
    if ends is None or None in (ends["first"], ends["last"]):
        return ""
    return f"{ends['first']:.{digits}f} -> {ends['last']:.{digits}f}"


def _held_out(steps: list[int], values: list[float]) -> str:
    """Success at the first and at the last validation, with its step; a run that ended before its second has one."""
    return f"{values[0]:.2f}" + (f" -> {values[-1]:.2f} (step {steps[-1]})" if len(values) > 1 else "")


def _verdict(detector: dict) -> str:
    """The detector's class, with the onsets of what made it."""
    name = {"cyclical": "eruption"}.get(detector["class"], detector["class"])
    onsets = [str(e["onset"]) for e in detector["events"] if e["name"] == name]
    return detector["class"].replace("_", " ") + (f", from step {', '.join(onsets)}" if onsets else "")


def _own_settings(run: dict, first: dict) -> str:
    """Presets, and what of the named settings is not as in the first run."""
    presets = [f"entropy=[{','.join(run['settings']['presets'])}]"] if run["settings"]["presets"] else []
    other = [f"{k} {v:g}" for k, v in run["settings"].items() if k != "presets" and v != first["settings"].get(k)]
    return ", ".join(presets + other) or "plain"


def _over_seeds(values: list[float | None], digits: int = 2) -> str:
    """Mean, and the lowest and the highest where there are several."""
    values = [v for v in values if v is not None]
    if not values:
        return ""
    spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def _learned_means(runs: list[dict]) -> list[str]:
    """A row for every method, over its seeds; of the held-out sets the first, at the first and last validation that all runs have."""
    held = [next(iter(run["held_out"].values()), {"steps": [], "values": []}) for run in runs]
    held = [dict(zip(h["steps"], h["values"], strict=True)) for h in held]
    shared = sorted(set.intersection(*map(set, held)))
    ends = (shared[0], shared[-1]) if len(shared) > 1 else shared
    columns = ["run", "settings", "seeds", *(f"held-out success at step {step}" for step in ends)]
    columns += ["training success at the end", "entropy at the start", "at the end", "detector", "s/step"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in dict.fromkeys(run["name"] for run in runs):
        own = [run for run in runs if run["name"] == name]
        verdicts = [run["detector"]["class"].replace("_", " ") for run in own]
        cells = [name, _own_settings(own[0], runs[0]), str(len(own))]
        cells += [_over_seeds([h[step] for h, run in zip(held, runs, strict=True) if run in own]) for step in ends]
        cells.append(_over_seeds([run["train_success"] and run["train_success"]["last"] for run in own]))
        cells += [_over_seeds([run["entropy"] and run["entropy"][end] for run in own], 3) for end in ("first", "last")]
        cells.append(", ".join(f"{n} {kind}" for kind, n in Counter(verdicts).items()) if len(own) > 1 else verdicts[0])
        cells.append(_over_seeds([run["seconds"].get("step") for run in own], 1))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _learned_rows(runs: list[dict], more: bool) -> list[str]:
    """The table of the runs; with ``more`` also what the recipe's README says of each."""
    columns = ["run", "settings", "steps", "held-out success", "entropy", "detector", "s/step"]
    columns += ["training success", "valid actions", "generation s", "update s"] if more else []
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    several = len({run["seed"] for run in runs}) > 1
    for run in runs:
        name = f"{run['name']}, seed {run['seed']}" if several else run["name"]
        steps = str(run["steps"]) if run["planned_steps"] in (None, run["steps"]) else f"{run['steps']} of {run['planned_steps']}"
        held = [_held_out(s["steps"], s["values"]) for s in run["held_out"].values()]
        cells = [name, _own_settings(run, runs[0]), steps, "; ".join(held), _change(run["entropy"], 3), _verdict(run["detector"])]
        times = ["step", "gen", "update_actor"] if more else ["step"]
        times = [f"{run['seconds'][k]:.1f}" if k in run["seconds"] else "" for k in times]
        cells += [times[0]]
        cells += [_change(run["train_success"]), _change(run["valid_actions"]), *times[1:]] if more else []
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _learned_intro(r: dict) -> str:
    host, runs = r["host"], r["runs"]
    versions = ", ".join(f"{k} {host['versions'][k]}" for k in ("torch", "verl", "vllm") if host["versions"].get(k))
    common = ", ".join(f"{k} {v:g}" for k, v in runs[0]["settings"].items() if k != "presets")
    ends = max((run["entropy"]["steps"] for run in runs if run["entropy"]), default=0)
    sets = list(runs[0]["held_out"])
    of = f" (of {'; '.join(sets)})" if len(sets) > 1 else ""
    return (
        f"A first look at learning (`tests/gpu/learn.sh`; SmolLM2-135M-Instruct, warm-started, on three easy games of TextWorldExpress; "
        f"{host['device']}, {versions}, commit {host['commit']}; {common} unless the table says otherwise). Entropy (nats) and what else "
        f"comes from training are means of the first and the last {ends} steps (halves of shorter runs); held-out success{of} is that of "
        "the first and the last validation; seconds are medians:"
    )


def _learned_caveat(r: dict) -> str:
    seeds: dict[str, set[int]] = {}
    for run in r["runs"]:
        seeds.setdefault(run["name"], set()).add(run["seed"])
    counts, all_seeds = set(map(len, seeds.values())), sorted(set().union(*seeds.values()))
    said = f"Seed{'s' if len(all_seeds) > 1 else ''} {', '.join(map(str, all_seeds))}."
    if min(counts) == 1:
        said += f" {'Every run has' if max(counts) == 1 else 'Some runs have'} a single seed: a look at curves, not a ranking of methods."
    if tasks := r.get("held_out_tasks"):
        said += f" {tasks} held-out tasks: a success of 0.5 has a standard error of {0.5 / tasks**0.5:.2f} from them alone."
    foreign = [f"{run['name']} at {run['foreign_step']}" for run in r["runs"] if run.get("foreign_step")]
    if foreign:
        said += (
            f" Runs are shown up to the step before one that was sampled with another run's weights ({', '.join(foreign)}): they shared "
            "a host before the plugin gave each run a socket of its own (`verl_entropy/hosts/README.md`)."
        )
    return said


def learning(more: bool = False, name: str = "results") -> str:
    """Runs of tests/gpu/learn.sh; nothing where there are none."""
    r = learned(name)
    if r is None:
        return ""
    several = len({run["seed"] for run in r["runs"]}) > 1
    means = ["Mean over seeds, in brackets the lowest and the highest:", "", *_learned_means(r["runs"]), ""] if several else []
    each = [] if several and not more else [*_learned_rows(r["runs"], more), ""]
    return "\n".join([_learned_intro(r), "", *means, *each, _learned_caveat(r)])


def learning_limit() -> str:
    return "" if learned() else "Learning curves on GPUs have not been measured yet."


def learning_recipe() -> str:
    """Status and results in the recipe's README."""
    if learned() is None:
        return "**Not run here**: the training. The tests compose and check the file; the data and the expert turns were made on a CPU."
    alone = "Success on held-out tasks and in training, and entropy, over the steps of every run; triangles: eruptions that the detector saw."
    parts = []
    for name, title in LOOKS.items():
        if (r := learned(name)) is not None:
            command = f"By `{r['host']['command']}`; runs that share a card or a host slow one another down."
            parts += [f"## {title}", learning(more=True, name=name), command, f"![{alone}]({name}.png)"]
    return "\n\n".join([*parts, "**Not run here**: further seeds, and a larger model. The JSON files have the curves."])


def detector_table() -> str:
    """What the phase detector makes of simulated curves, from tests/diagnostics/detector_results.json."""
    r = json.loads((ROOT / "tests/diagnostics/detector_results.json").read_text())
    seen = list(next(iter(r["confusion"].values())))
    lines = [f"| simulated curve | right | {' | '.join(seen)} |", "|---|---|" + "---|" * len(seen)]
    for shape, row in r["confusion"].items():
        lines.append(f"| {shape} | {r['expected'][shape]} | {' | '.join(str(row[k]) for k in seen)} |")
    delay = r["delay_steps"]
    return "\n".join(
        [
            *lines,
            "",
            f"{r['curves']} curves of {r['steps_per_curve']} steps: {100 * r['accuracy']:.0f} % are called right, and "
            f"{100 * r['false_alarm_rate_per_run']:.1f} % of the curves without an eruption raise a false alarm. Without the slow eruptions, "
            f"some of which rise less than the rule asks for, it is {100 * r['accuracy_without_hard']:.0f} % and "
            f"{100 * r['false_alarm_rate_per_run_without_hard']:.1f} %. Of {r['eruptions']} eruptions {100 * r['eruptions_found']:.0f} % are "
            f"found, in the median {delay['p50']:.0f} steps after they begin, one in ten of them later than {delay['p90']:.0f} steps.",
            "",
            "The next table compares the detector with two simpler rules on harder families of curves "
            f"(`python tests/diagnostics/simulated_curves.py --write`; {r['family_seeds']} seeds each; every rule is told of resumes; "
            "the JSON file that it writes describes the families). The authors of the rule drew the curves: the figures describe the rule, not "
            "its accuracy on real runs. A wave from the first step on that is as high and fast as an eruption (1.6 to 2.4 times its trough, a "
            f"period of 30 to 90 steps) is none, and {100 * r['families']['ours']['waves']:.0f} % of such runs alarm at the first crest.",
            "",
            "The last two columns are real runs of the bench: those that erupted by its outcome after their first ten steps, and the others.",
            "",
            "| rule | eruptions found | false alarms | a resume's shift called one | delay, median | real, found | real, false alarms |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {rule} | {100 * row['found']:.1f} % | {100 * row['false_alarms']:.1f} % | {100 * row['shift']:.0f} % | {row['delay']:.0f} | "
                "{found} of {erupted} | {alarmed} of {calm} |".format(**r["bench"][rule])
                for rule, row in r["families"].items()
            ),
        ]
    )


ENVIRONMENT_COLUMNS = {
    "env": "environment",
    "version": "version",
    "licence": "licence",
    "splits": "splits",
    "episodes": "episodes",
    "steps_per_s": "steps/s",
    "start_up_s": "start-up s",
    "memory_mb": "memory MB",
    "expert_success": "expert",
}


def environments_table() -> str:
    """The conformance suite's table, from tests/env/conformance.json (``python tests/env/conformance.py --json FILE``)."""
    r = json.loads((ROOT / "tests/env/conformance.json").read_text())
    lines = [f"| {' | '.join(ENVIRONMENT_COLUMNS.values())} |", "|---" * len(ENVIRONMENT_COLUMNS) + "|"]
    for row in r["rows"]:
        cells = [", ".join(row[k]) if k == "splits" else str(row[k]) for k in ENVIRONMENT_COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"One process on a machine with {r['cpu']} cores; memory is what the environment adds."]
    return "\n".join(lines)


def benchmark_table() -> str:
    """Costs from tests/benchmarks/results.json (``python tests/benchmarks/run_all.py``)."""
    r = json.loads((ROOT / "tests/benchmarks/results.json").read_text())
    lines = [f"Costs, median on {r['machine']}:", "", "| what | value |", "|---|---|"]
    return "\n".join(lines + [f"| {row['what']} | {row['value']} |" for row in r["rows"]])


def versions_table() -> str:
    """What ran under which verl, from tests/matrix.json; nothing where it was not run."""
    if (kept := _kept(ROOT / "tests/matrix.json")) is None:
        return ""
    import matrix

    lines = [f"| verl, trainer | {' | '.join(matrix.STEPS)} | date, commit |", "|---" * (len(matrix.STEPS) + 2) + "|"]
    for name, row in kept.items():
        cells = [_cell(row.get(step)) for step in matrix.STEPS]
        when = dict.fromkeys(f"{step['date']}, {step['commit']}" for step in row.values())
        lines.append(f"| {name} | {' | '.join(cells)} | {'; '.join(when)} |")
    return "\n".join(lines)


def _cell(step: dict | None) -> str:
    if step is None:
        return "not run"
    return step["note"] if step["ok"] else "failed"


def needs_table() -> str:
    """What the methods need of a training engine, and which engines of verl give it."""
    from verl_entropy.config import engines

    users: dict[tuple[str, str], list[str]] = {}
    for method in registry.methods():
        need = engines.engine_need(method)
        users.setdefault((engines.NEEDS[need] if need else "nothing", engines.where(method)), []).append(method.name)
    lines = ["| methods | need of the training engine | with |", "|---|---|---|"]
    for (need, found), names in sorted(users.items(), key=lambda item: item[0][0] != "nothing"):
        lines.append(f"| {', '.join(sorted(set(names)))} | {need} | {found} |")
    return "\n".join(lines)


def parts() -> dict[Path, dict[str, tuple[str, str]]]:
    """File -> words of the comment that opens a generated part -> (words of the comment that closes it, text)."""
    results = [quickstart_table(), learning(), learning_limit()]
    costs = [benchmark_table(), gpu_runs(), gpu_entropy(), gpu_head()]
    checks = [gpu_stages(), gpu_numerics(), gpu_clip()]
    return {
        ROOT / "README.md": {"table: verl-entropy table": ("table", table.algorithms()), "bench": ("bench", bench_table())},
        ROOT / "verl_entropy/commands/README.md": {"table: verl-entropy table commands": ("commands", table.commands())},
        ROOT / "verl_entropy/diagnostics/README.md": {"detector": ("detector", detector_table())},
        ROOT / "verl_entropy/envs/README.md": {"environments": ("environments", environments_table())},
        ROOT / "verl_entropy/hosts/README.md": {"versions": ("versions", versions_table()), "needs": ("needs", needs_table())},
        ROOT / "recipes/README.md": {"results": ("results", _joined(results)), "costs": ("costs", _joined(costs))},
        ROOT / "tests/gpu/README.md": {"checks": ("checks", _joined(checks))},
        LEARNED / "README.md": {"results": ("results", learning_recipe())},
    }


def _joined(texts: list[str]) -> str:
    return "\n\n".join(filter(None, texts))


def render(path: Path, text: str) -> str:
    """``text`` of the file ``path`` with its generated parts renewed; ValueError where the place of one is not there exactly once."""
    for start, (end, body) in parts()[path].items():
        opening, closing = f"<!-- {start} -->\n", f"<!-- end of {end} -->"
        if (text.count(opening), text.count(closing)) != (1, 1):
            raise ValueError(
                f"{path}: expected one line {opening.strip()} and one {closing}. Put both back; the text goes between."
            )
        before, _, rest = text.partition(opening)
        text = before + opening + (body and body + "\n") + closing + rest.partition(closing)[2]
    return text


if __name__ == "__main__":
    for file in parts():
        file.write_text(render(file, file.read_text()))
