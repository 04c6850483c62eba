# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of the matrix and writes tests/matrix.json; started by tests/matrix.sh.

``VERSION:STEP,STEP`` runs some steps of a version again, ``VERSION:HOST/STEP`` those of one trainer.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "matrix.json"
sys.path[:0] = [str(HERE / "real"), str(HERE / "engine"), str(HERE / "cpu"), str(ROOT)]

OLDER = ("numpy<2", "pandas<3", "pytz", "pyarrow<23", "datasets<5")
"""What verl before 0.9 needs otherwise than 0.9."""
HOSTS = {
    "0.7.1": ("RayPPOTrainer",),
    "0.8.0": ("RayPPOTrainer",),
    "0.9.0": ("V1", "RayPPOTrainer"),
    "0.9.1": ("V1", "RayPPOTrainer"),
}
PRESETS = "gigpo,aem,seal,epo"
LIMIT_S = 1500


class Wrong(AssertionError):
    """What a step found."""


def environment(version: str) -> Path:
    """The interpreter of this version; made where it is not there."""
    base = subprocess.run(
        [sys.executable, "-c", "import verl, sysconfig; print(verl.__version__); print(sysconfig.get_paths()['purelib'])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if base[-2] == version:
        return Path(sys.executable)
    folder = Path(os.environ.get("VERL_ENTROPY_MATRIX", ROOT / ".venv-matrix")).absolute() / version
    python = folder / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "zz_base.pth").write_text(f"{base[-1]}\n")
    wanted = [f"verl=={version}", *(OLDER if version < "0.9" else ())]
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", *wanted], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
    return python


class Matrix:
    """The steps of one version."""

    def __init__(self, version: str, host: str, python: Path, folder: Path):
        self.version, self.host, self.python, self.folder = version, host, python, folder
        self.old = version < "0.9"
        loading = {"VERL_USE_EXTERNAL_MODULES": "verl_entropy.plugin"} if self.old else {}
        paths = [str(ROOT), str(HERE / "real"), str(HERE / "cpu")]
        patient = {"RAY_raylet_start_wait_time_s": "300"}  # on a busy machine
        self.env = {**os.environ, **loading, **patient, "PYTHONPATH": os.pathsep.join(paths), "VERL_ENTROPY_CHOSEN": ""}

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
        reference = self._engine(Path(sys.executable), "v1", {**self.env, "VERL_USE_EXTERNAL_MODULES": ""})
        if self.host == "V1":
            found = self._engine(self.python, "v1", self.env)
        else:
            found = self._engine(self.python, "ray", self.env)
        gap = float((found["advantages"] - reference["advantages"]).abs().max())
        tolerance = 2e-2 if self.version < "0.8" else 1e-5  # verl 0.7 computes under bf16 autocast whatever the setting
        loss = abs(found["loss"] - reference["loss"])
        if found["gradients"].keys() == reference["gradients"].keys():
            grads = max(float((found["gradients"][n] - g).abs().max()) for n, g in reference["gradients"].items())
        else:  # verl 0.7 builds FSDP1 whatever the strategy, whose parameters are flat: the norm of all of them
            grads = abs(found["grad_norm"] / reference["grad_norm"] - 1)
        small = gap < max(1e-6, tolerance * (self.version < "0.8")) and loss < tolerance and grads < tolerance
        text = f"advantages {gap:.0e}, loss {loss:.0e}, gradients {grads:.0e}"
        return _need(small and torch.isfinite(found["advantages"]).all(), text, text)

    def _engine(self, python: Path, host: str, env: dict[str, str]) -> dict:
        import ranks
        import torch

        out = self.folder / f"numbers-{self.version}-{host}-{python.parents[1].name}"
        names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        own = {**env, **names, "MASTER_PORT": str(ranks._free_port()), "VERL_PLATFORM": "cpu", "MKL_CBWR": "AUTO,STRICT"}
        command = [str(python), str(HERE / "engine/hosts_rank.py"), str(self.folder / "tiny"), str(out), f"{host}:{PRESETS}"]
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            raise Wrong(done.stderr[-1500:])
        return torch.load(f"{out}.0", map_location="cpu", weights_only=False)[f"{host}:{PRESETS}"]

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
            name, *runs.OURS, *overrides, *v1, *(OLD if self.old else ()), *(OLD_07 if self.version < "0.8" else ())
        )
        command = [str(self.python), *command[1:]]
        if self.old:  # keys of 0.9
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
            raise Wrong(f"exit {code}: {result.log[-2500:]}")
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
    return {"ok": ok, "note": note, "seconds": round(time.monotonic() - start)}


def _kept() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main(versions: list[str]) -> int:
    import tempfile

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ve-matrix-") as folder:
        for word in versions or HOSTS:
            version, _, some = word.partition(":")
            python = environment(version)
            for host in HOSTS[version]:
                matrix = Matrix(version, host, python, Path(folder))
                before = _kept().get(f"{version} {host}", {}).get("steps", {}) if some else {}
                row = {"date": datetime.date.today().isoformat(), "commit": commit, "steps": before}
                for name in some.split(",") if some else STEPS:
                    if some and "/" in name and name.split("/")[0] != host:
                        continue
                    name = name.rpartition("/")[2]
                    row["steps"][name] = found = step(getattr(matrix, name))
                    failed += not found["ok"]
                    print(
                        f"{version} {host} {name}: {'ok' if found['ok'] else 'FAILED'} ({found['seconds']} s) {found['note'][:300]}",
                        flush=True,
                    )
                kept = {**_kept(), f"{version} {host}": row}  # another call may have written
                RESULTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
