# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of the matrix and writes tests/matrix.json; started by tests/matrix.sh.

``VERSION:STEP,STEP`` runs some steps of a version again, ``VERSION:HOST/STEP`` those of one trainer. A folder with a checkout of
verl stands for its version and commit; ``verl-agent`` for the checkout that VERL_AGENT_HOME names.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import Version

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "matrix.json"
HOME = Path(os.environ.get("VERL_ENTROPY_MATRIX", ROOT / ".venv-matrix")).absolute()
"""Of the environments, and of the logs of failed runs."""
sys.path[:0] = [str(HERE / "real"), str(HERE / "engine"), str(HERE / "cpu")]

OLDER = ("numpy<2", "pandas<3", "pytz", "pyarrow<23", "datasets<5")
"""What verl before 0.9 needs otherwise than 0.9."""
HOSTS = {
    "0.7.1": ("RayPPOTrainer",),
    "0.8.0": ("RayPPOTrainer",),
    "0.9.0": ("V1", "RayPPOTrainer"),
    "0.9.1": ("V1", "RayPPOTrainer"),
    "verl-agent": ("own",),
}
NEO = "0.9.0.dev"
"""verl's branch neo, which has no queue."""
PRESETS = "gigpo,aem,seal,epo"
BF16_PRESETS = "gigpo,seal,epo"
"""For verl 0.7, which computes under bf16 autocast whatever the setting: AEM divides entropies by their spread, and that of the recorded
batch is of the size of bf16's rounding."""
LIMIT_S = 1500


def _before(version: str, *release: int) -> bool:
    return Version(version.split()[0]).release < release


class Wrong(AssertionError):
    """What a step found."""


def environment(version: str, checkout: Path | None = None) -> Path:
    """The interpreter of this version, or of a checkout of verl; made where it is not there."""
    code = "import verl, sys; print(verl.__version__, *(p for p in sys.path if p.endswith('-packages')), sep='\\n')"
    base = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    if base[0] == version and checkout is None:
        return Path(sys.executable)
    folder, older = HOME / version.replace(" ", "-"), HOME / "older"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-build-isolation"]
    if _before(version, 0, 9):
        base.insert(1, str(older))
        if not older.exists():
            subprocess.run([*pip, "--target", str(older), *OLDER], check=True, timeout=600)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "zz_base.pth").write_text("\n".join(base[1:]) + "\n")
    subprocess.run([*pip, "--ignore-installed", str(checkout or f"verl=={version}")], check=True, timeout=600)
    (folder / "complete").touch()
    return python


class Matrix:
    """The steps of one version."""

    def __init__(self, version: str, host: str, python: Path, folder: Path):
        self.version, self.host, self.python, self.folder = version, host, python, folder
        self.old = _before(version, 0, 9)
        loading = {"VERL_USE_EXTERNAL_MODULES": "verl_entropy.plugin"} if self.old else {}
        paths = [os.environ.get("PYTHONPATH", ""), str(HERE / "real"), str(HERE / "cpu")]
        patient = {"RAY_raylet_start_wait_time_s": "300"}  # on a busy machine
        self.env = {
            **os.environ,
            **loading,
            **patient,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "VERL_ENTROPY_CHOSEN": "",
        }

    def symbols(self) -> str:
        """Every name that is used is there."""
        code = "from verl_entropy.hosts.install import compat; print(compat.unsupported_reason())"
        done = subprocess.run([str(self.python), "-c", code], env=self.env, capture_output=True, text=True, timeout=LIMIT_S)
        return _need(done.stdout.strip().endswith("None"), done.stdout[-500:] + done.stderr[-500:], "all there")

    def absent(self) -> str:
        """Without the plugin a run that chose a method stops."""
        off = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": ""}
        command = [str(self.python), "-m", "verl.trainer.main_ppo", "+entropy=[aem]"]
        done = subprocess.run(command, env={**self.env, **off}, capture_output=True, text=True, timeout=LIMIT_S)
        said = "[verl-entropy] stopped before training" in done.stderr + done.stdout
        return _need(done.returncode != 0 and said, done.stderr[-800:], "stops at start")

    def numbers(self) -> str:
        """One recorded batch: advantages and one update of the FSDP engine, against V1 of the base environment."""
        import torch

        if not (self.folder / "tiny").exists():
            import tiny_llama

            (self.folder / "tiny").mkdir()
            tiny_llama.save(self.folder / "tiny")
        rounded = _before(self.version, 0, 8)
        presets, tolerance = (BF16_PRESETS, 2e-2) if rounded else (PRESETS, 1e-5)
        reference = self._engine(Path(sys.executable), "v1", presets, {**self.env, "VERL_USE_EXTERNAL_MODULES": ""})
        found = self._engine(self.python, "v1" if self.host == "V1" else "ray", presets, self.env)
        gap = float((found["advantages"] - reference["advantages"]).abs().max())
        loss = abs(found["loss"] - reference["loss"])
        if found["gradients"].keys() == reference["gradients"].keys():
            grads = max(float((found["gradients"][n] - g).abs().max()) for n, g in reference["gradients"].items())
        else:  # verl 0.7 builds FSDP1 whatever the strategy, whose parameters are flat: the norm of all of them
            grads = abs(found["grad_norm"] / reference["grad_norm"] - 1)
        small = gap < 1e-6 and loss < tolerance and grads < tolerance
        text = f"advantages {gap:.0e}, loss {loss:.0e}, gradients {grads:.0e}"
        return _need(small and torch.isfinite(found["advantages"]).all(), text, text)

    def _engine(self, python: Path, host: str, presets: str, env: dict[str, str]) -> dict:
        import ranks
        import torch

        out = self.folder / f"numbers-{host}-{presets.replace(',', '-')}-{python.parents[1].name}"
        names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        own = {**env, **names, "MASTER_PORT": str(ranks._free_port()), "VERL_PLATFORM": "cpu", "MKL_CBWR": "AUTO,STRICT"}
        command = [str(python), str(HERE / "engine/hosts_rank.py"), str(self.folder / "tiny"), str(out), f"{host}:{presets}"]
        if not Path(f"{out}.0").exists():  # the reference serves every version
            done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode:
                raise Wrong(done.stderr[-1500:])
        return torch.load(f"{out}.0", map_location="cpu", weights_only=False)[f"{host}:{presets}"]

    # ------------------------------------------------------------------ a training of verl's own program

    def _run(self, name: str, *overrides: str) -> tuple[dict, str]:
        import runs

        runner = runs.Runner.__new__(runs.Runner)
        runner.folder = self.folder
        if not (self.folder / "train.parquet").exists():
            import assets

            assets.make(self.folder)
        v1 = () if self.old else (f"trainer.use_v1={self.host == 'V1'}",)
        command = runner.command(
            name, *runs.OURS, *overrides, *v1, *(OLD if self.old else ()), *(OLD_07 if _before(self.version, 0, 8) else ())
        )
        command = [str(self.python), *command[1:]]
        if self.old or self.version == NEO:  # which lack some keys of 0.9
            command = [w for w in command if not w.lstrip("+").startswith(NEW_KEYS) or w.startswith("trainer.use_legacy")]
        env = {**runner.environment(name), **self.env, "PYTHONPATH": self.env["PYTHONPATH"]}
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True
            )
            try:
                code = process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                runs.stop(process)
        result = runner.result(name, code)
        if code != 0:
            HOME.mkdir(exist_ok=True)
            shutil.copy(self.folder / f"{name}.log", HOME)
            raise Wrong(f"exit {code}: {result.log[-1500:]}")
        return result.steps, result.log

    def trains(self) -> str:
        """Three steps with gigpo, aem, seal and epo, rows per turn; metrics of all of them, and a checkpoint."""
        name = f"{self.host}-{self.version}"
        steps, _ = self._run(name, "trainer.total_training_steps=3", "trainer.save_freq=2")
        for step in steps.values():
            keys = ("active", "entropy", "gigpo/anchor_groups", "epo/beta", "seal/loss")
            bad = [key for key in keys if not math.isfinite(step.get(f"verl_entropy/{key}", math.nan))]
            _need(not bad, f"not in the metrics: {bad}", "")
        return _need(sorted(steps) == [1, 2, 3], f"steps {sorted(steps)}", "gigpo, aem, seal, epo; 3 steps")

    def resumes(self) -> str:
        """From the checkpoint of step 2."""
        name = f"{self.host}-{self.version}"
        (self.folder / name / "latest_checkpointed_iteration.txt").write_text("2")
        steps, _ = self._run(name, "trainer.total_training_steps=3")
        beta = json.loads((self.folder / name / "global_step_2/verl_entropy.json").read_text())["state"]["epo"]["count"]
        return _need(sorted(steps) == [3] and beta == 2, f"steps {sorted(steps)}, epo's count {beta}", "step 3, histories kept")


class VerlAgent:
    """tests/verl_agent in place of the steps: verl-agent's programs need cards, so its fit is called in the process, without Ray."""

    PARTS: ClassVar = {
        "symbols": ("test_fingerprints", "checkout_is_the_known_one"),
        "absent": ("test_launcher",),
        "numbers": ("neutral_setting", "neutral_update", "row_statistics", "test_micro", "test_ranks", "dynamic_batch_size"),
        "trains": ("train",),
        "resumes": ("resumes", "is_restored"),
    }
    """Words of the tests that make a step."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.wanted: tuple[str, ...] = STEPS

    def __getattr__(self, name: str) -> Callable[[], str]:
        if name not in self.PARTS:
            raise AttributeError(name)
        return lambda: self._part(self.PARTS[name])

    @functools.cached_property
    def found(self) -> list[tuple[str, str]]:
        """The tests of the wanted steps, and what became of each."""
        import xml.etree.ElementTree as xml

        out = self.folder / "verl-agent.xml"
        command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), f"--junitxml={out}", str(HERE / "verl_agent")]
        command += ["-k", " or ".join(word for step in self.wanted for word in self.PARTS[step])]
        subprocess.run([*command, "-p", "no:cacheprovider"], capture_output=True, timeout=3 * LIMIT_S, cwd=self.folder)
        cases = xml.parse(out).getroot().iter("testcase")
        return [(f"{c.get('classname')} {c.get('name')}", c[0].tag if len(c) else "passed") for c in cases]

    def _part(self, words: tuple[str, ...]) -> str:
        cases = [(name, tag) for name, tag in self.found if any(word in name for word in words)]
        bad = [f"{name}: {tag}" for name, tag in cases if tag not in ("passed", "system-out", "properties")]
        return _need(bool(cases) and not bad, "; ".join(bad) or "no test", f"{len(cases)} tests of tests/verl_agent")


STEPS = ("symbols", "absent", "numbers", "trains", "resumes")
NEW_KEYS = ("transfer_queue", "actor_rollout_ref.rollout.full_determinism", "trainer.use_v1")
OLD = ("trainer.device=cuda",)
"""Before 0.9 a CPU run declares a logical GPU a rank, and verl asks for one by this word."""
OLD_07 = ("trainer.use_legacy_worker_impl=disable", "actor_rollout_ref.model.use_remove_padding=True")


def _need(condition: bool, wrong: str, right: str) -> str:
    if not condition:
        raise Wrong(wrong)
    return right


def step(run: Callable[[], str]) -> dict:
    start = time.monotonic()
    try:
        note, ok = run(), True
    except (Wrong, subprocess.TimeoutExpired, KeyError, FileNotFoundError) as error:
        note, ok = " ".join(str(error).split())[-1500:], False
    return {"ok": ok, "note": note, "seconds": round(time.monotonic() - start), "date": datetime.date.today().isoformat()}


def _kept() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def rows(word: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a word of the command line: name, and what has the steps."""
    if word == "verl-agent":
        yield "verl-agent 796ed31, own", VerlAgent(folder)
        return
    checkout = Path(word).absolute() if word not in HOSTS and Path(word).is_dir() else None
    version = (checkout / "verl/version/version").read_text().strip() if checkout else word
    name = f"{version} {_commit(checkout)}" if checkout else version
    python = environment(name if checkout else version, checkout)
    for host in HOSTS.get(version, HOSTS["0.9.1"]):
        yield f"{name}, {host}", Matrix(version, host, python, folder)


def main(words: list[str]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ve-matrix-") as folder:
        for word in words or HOSTS:
            target, _, some = word.partition(":")
            for name, matrix in rows(target, Path(folder)):
                chosen = [s.rpartition("/") for s in (some.split(",") if some else STEPS)]
                matrix.wanted = [step for host, _, step in chosen if not host or name.endswith(f", {host}")]
                for wanted in matrix.wanted:
                    found = step(getattr(matrix, wanted)) | {"commit": _commit(ROOT)}
                    failed += not found["ok"]
                    print(
                        f"{name} {wanted}: {'ok' if found['ok'] else 'FAILED'} ({found['seconds']} s) {found['note'][:300]}",
                        flush=True,
                    )
                    kept = _kept()  # another call may have written
                    kept[name] = {**kept.get(name, {}), wanted: found}
                    RESULTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
