# SPDX-License-Identifier: Apache-2.0
"""A run on disk: every metric of every step, per-turn arrays, and a few trajectories.

    run.json                       format, versions, configuration
    steps.jsonl                    one line a step: {"v": 1, "step": 7, "time": 1.7e9, "metrics": {...}}
    turns/step-000000007.parquet   arrays with one entry per turn, one file a step, joined now and then (rows-<first>-<last>)
    samples/step-000000010.json    trajectories: text, turns, rewards, entropy per token

A step's arrays and trajectories are written to a temporary name and renamed; then its line is appended in one write and
flushed to disk. The line makes the step count, so a kill at any moment loses at most the step that was being written. A reader
takes lines that end; what follows the last line end is a step under way. After a resume the line {"v": 1, "resume": step}
says that everything from that step on is void.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from verl_entropy import __version__
from verl_entropy.config.settings import setting
from verl_entropy.files import write_atomic

FORMAT = 1
META, STEPS, TURNS, SAMPLES = "run.json", "steps.jsonl", "turns", "samples"
JUDGED = "judge.jsonl"
"""Results of ``verl-entropy judge``."""
SESSION = re.compile(r"metrics-\d{8}-\d{6}")
"""Name, without ending, of the metrics file that ``launch.sh`` makes in the folder of a run, a new one each time it goes on."""
_STEP_FILE = re.compile(r"step-(\d+)\.(?:parquet|json)$")
_ROWS_FILE = re.compile(r"rows-(\d+)-(\d+)\.parquet$")
PER_TOKEN = ("tokens", "entropy", "log_prob", "advantages", "advantages_before", "ratio", "dropped", "clip")
"""Lists of a stored turn with an entry for each of its tokens."""
MAX_POINTS = 512
"""Samples without turns that a step keeps; as many as the settings can sample."""
MAX_PROBLEMS = 20
"""Problems that a reader spells out; the rest is counted."""


class RunFileError(ValueError):
    """No run can be read there; the message says what was looked for."""


@dataclass(frozen=True)
class RunSettings:
    """What a run writes, and how much of it."""

    turns_every: int = setting(1, "steps between two writings of per-turn arrays; 0: never", ge=0)
    max_turns: int = setting(4096, "turns of a step at most; more are thinned evenly", ge=1)
    join_every: int = setting(64, "files of turns that are joined into one", ge=2)
    samples_every: int = setting(10, "steps between two writings of trajectories; 0: never", ge=0)
    max_samples: int = setting(8, "trajectories of a step at most", ge=1)
    max_tokens: int = setting(4096, "tokens of a trajectory at most; the rest is cut and counted", ge=1)
    max_chars: int = setting(20000, "characters of a text at most", ge=1)
    samples_mb: float = setting(64.0, "size of all trajectories in MB; beyond it every second step's are removed", gt=0.0)
    flush: bool = setting(True, "wait until a step is on the disk (survives a power cut, not only a kill)")


# ----------------------------------------------------------------------------- writing


def _number(value: Any) -> float | int | None:
    """A metric as a JSON number; None for NaN, infinite and anything that is no number."""
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | np.integer):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    """``value`` made of what JSON has; unknown objects become their text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return _number(value)
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(v) for v in value]
    return str(value)


def _dump(value: Any) -> bytes:
    # ASCII: lone surrogates of a hostile text become escapes instead of an encoding error.
    return json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def move_aside(folder: Path) -> Path | None:
    """Move a run that has steps into ``earlier-<k>`` of its folder, and return that; None where there is none.

    The line of the last step makes a run, so steps.jsonl goes last: a kill between leaves a run that is moved at the next start.
    """
    steps = folder / STEPS
    if not steps.is_file() or not steps.stat().st_size:
        return None
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    target = folder / f"earlier-{number}"
    target.mkdir()
    for name in (META, TURNS, SAMPLES, JUDGED, STEPS):
        if (folder / name).exists():
            os.rename(folder / name, target / name)
    return target


def _versions() -> dict[str, str]:
    """Versions of what a run depends on, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in ("verl", "torch", "transformers", "vllm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class RunWriter:
    """Writes a run into ``folder``; ``step`` once per training step, from one process."""

    def __init__(
        self,
        folder: str | Path,
        settings: RunSettings | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        name: str = "",
        fresh: bool = False,
    ):
        """``fresh``: the run does not go on with the one that is stored there, which is then moved aside (``aside`` says where)."""
        self.folder, self.settings = Path(folder), settings or RunSettings()
        self.aside = move_aside(self.folder) if fresh else None
        for path in (self.folder, self.folder / TURNS, self.folder / SAMPLES):
            path.mkdir(parents=True, exist_ok=True)
        self._last = self._mend()
        meta = {"format": FORMAT, "verl_entropy": __version__, "name": name or self.folder.name, "started": time.time()}
        meta["versions"] = _versions()
        write_atomic(self.folder / META, _dump({**meta, "config": _plain(config or {})}), self.settings.flush)
        self._file = os.open(self.folder / STEPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _mend(self) -> int | None:
        """Close a line that a kill left open, remove temporary files; the last step written, or None."""
        for place in (self.folder, self.folder / TURNS, self.folder / SAMPLES):
            for path in place.glob(".*.tmp"):
                path.unlink()
        path = self.folder / STEPS
        if not path.is_file() or not path.stat().st_size:
            return None
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        steps = RunReader(self.folder).steps
        last = int(steps[-1]) if len(steps) else None
        self._drop_files(-1 if last is None else last + 1)  # arrays of a step whose line was never written
        return last

    def step(
        self,
        step: int,
        metrics: Mapping[str, Any],
        turns: Mapping[str, Sequence] | None = None,
        samples: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Store a step.

        Args:
            step: training step; one at or below the last one voids what was written from it on (a resumed run).
            metrics: numbers by name; NaN and infinite are stored as missing.
            turns: columns of equal length, one entry per turn.
            samples: trajectories: mappings with ``turns`` (each with ``text``, ``tokens``, ``entropy``, ``reward``), ``score``,
                ``success``, and anything else that is plain. Beyond ``max_samples`` only those without turns are kept (points
                of a picture).
        """
        s = self.settings
        if self._last is not None and step <= self._last:
            self._void(int(step))
        self._last = int(step)
        if turns is not None and s.turns_every and step % s.turns_every == 0:
            self._write_turns(int(step), turns)
        if samples and self.wants_samples(step):
            self._write_samples(int(step), samples)
        line = {"v": FORMAT, "step": int(step), "time": round(time.time(), 3)}
        self._append({**line, "metrics": {str(k): _number(v) for k, v in metrics.items()}})

    def wants_samples(self, step: int) -> bool:
        """Whether trajectories of this step would be stored; decode text only then."""
        return bool(self.settings.samples_every) and step % self.settings.samples_every == 0

    @property
    def last(self) -> int | None:
        """The last step that is stored; None before the first."""
        return self._last

    def close(self) -> None:
        """Close the file; every step is on disk already."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, record: Mapping[str, Any]) -> None:
        data = _dump(record) + b"\n"
        while data:  # one write in practice; a full disk may take a part
            data = data[os.write(self._file, data) :]
        if self.settings.flush:
            os.fsync(self._file)

    def _void(self, step: int) -> None:
        self._append({"v": FORMAT, "resume": step})
        self._drop_files(step)

    def _drop_files(self, step: int) -> None:
        """Remove arrays and trajectories from ``step`` on."""
        for path in (*(self.folder / SAMPLES).iterdir(), *(self.folder / TURNS).iterdir()):
            first, last = _range(path.name)
            if not math.isfinite(first):
                continue  # not a file of ours
            if first >= step:
                path.unlink()
            elif last >= step:
                self._save_rows([path], before=step)

    # ------------------------------------------------------------------ turns

    def _write_turns(self, step: int, turns: Mapping[str, Sequence]) -> None:
        import pyarrow as pa

        columns = {str(k): np.asarray(v) for k, v in turns.items()}
        lengths = {k: len(v) for k, v in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"turns of step {step} have columns of different length: {lengths}. Give one entry per turn.")
        count = next(iter(lengths.values()), 0)
        keep = slice(None)
        if count > self.settings.max_turns:
            keep = np.linspace(0, count - 1, self.settings.max_turns).round().astype(int)
        columns = {k: _narrow(v[keep]) for k, v in columns.items()}
        count = min(count, self.settings.max_turns)
        table = pa.table({"step": np.full(count, step, dtype=np.int64), **columns})
        self._save_table(table, self.folder / TURNS / f"step-{step:09d}.parquet")
        parts = sorted((self.folder / TURNS).glob("step-*.parquet"))
        if len(parts) >= self.settings.join_every:
            self._save_rows(parts)

    def _save_table(self, table: Any, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_atomic(path, sink.getvalue().to_pybytes(), self.settings.flush)

    def _save_rows(self, parts: list[Path], before: int | None = None) -> None:
        """Join files into one; readers drop doubles, so a kill between writing and removing does no harm."""
        import pyarrow.compute as pc

        table = _joined([_read_parquet(path) for path in parts])
        if before is not None:
            table = table.filter(pc.less(table["step"], before))
        if len(table):
            first, last = int(pc.min(table["step"]).as_py()), int(pc.max(table["step"]).as_py())
            target = self.folder / TURNS / f"rows-{first:09d}-{last:09d}.parquet"
            self._save_table(table, target)
            parts = [path for path in parts if path != target]
        for path in parts:
            path.unlink()

    # ------------------------------------------------------------------ samples

    def _write_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        s = self.settings
        told = [sample for sample in samples if sample.get("turns")]
        points = [sample for sample in samples if not sample.get("turns")][:MAX_POINTS]
        kept = [_bounded(_plain(sample), s.max_tokens, s.max_chars) for sample in (*told[: s.max_samples], *points)]
        record = {"v": FORMAT, "step": step, "left_out": max(len(told) - s.max_samples, 0), "samples": kept}
        write_atomic(self.folder / SAMPLES / f"step-{step:09d}.json", _dump(record), s.flush)
        files = sorted((self.folder / SAMPLES).glob("step-*.json"))
        while len(files) > 2 and sum(path.stat().st_size for path in files) > s.samples_mb * 1e6:
            for path in files[1:-1:2]:  # the first and the last stay
                path.unlink()
            files = sorted((self.folder / SAMPLES).glob("step-*.json"))


def _narrow(values: np.ndarray) -> np.ndarray:
    """Single precision is enough on disk."""
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _bounded(sample: dict[str, Any], max_tokens: int, max_chars: int) -> dict[str, Any]:
    """The sample with its tokens and texts cut; ``cut_tokens`` says how many were."""
    left, cut = max_tokens, 0
    turns = sample.get("turns")
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        for key in ("text", "prompt", "observation", "thought", "action"):
            if isinstance(turn.get(key), str):
                turn[key] = turn[key][:max_chars]
        length = max((len(turn[k]) for k in ("tokens", "entropy") if isinstance(turn.get(k), list)), default=0)
        for key in PER_TOKEN:
            if isinstance(turn.get(key), list):
                turn[key] = turn[key][:left]
        if isinstance(turn.get("tokens"), list):
            turn["tokens"] = [str(token)[:max_chars] for token in turn["tokens"]]
        cut += max(length - left, 0)
        left = max(left - length, 0)
    return {**sample, "cut_tokens": cut} if cut else sample


def _range(name: str) -> tuple[float, float]:
    """First and last step of a file of turns, from its name."""
    rows, single = _ROWS_FILE.search(name), _STEP_FILE.search(name)
    if rows:
        return float(rows.group(1)), float(rows.group(2))
    return (float(single.group(1)),) * 2 if single else (-math.inf, math.inf)


def _read_parquet(path: Path) -> Any:
    """A Parquet file as a table, read whole, so that a file replaced meanwhile does no harm."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(pa.BufferReader(path.read_bytes()))
    except pa.ArrowException as error:  # some are ValueErrors, some are not: to the caller it is a file that cannot be read
        raise OSError(f"{path.name}: not Parquet ({error})") from None


def _joined(tables: list[Any]) -> Any:
    """Tables below one another; a column that one of them lacks is null there."""
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise OSError(f"turns have columns of different kinds ({error})") from None


# ----------------------------------------------------------------------------- reading


class _Column:
    """Steps and values of one metric in the order they were read; 16 bytes a value, so that 10^5 steps fit in memory."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def put(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def void(self, step: int) -> None:
        kept = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if s < step]
        self.steps, self.values = array("q", [s for s, _ in kept]), array("d", [v for _, v in kept])

    def ordered(self) -> tuple[np.ndarray, np.ndarray]:
        """By step, the last value of each step."""
        steps, values = np.array(self.steps, dtype=np.int64), np.array(self.values, dtype=np.float64)
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        last = np.append(steps[1:] != steps[:-1], True)[: len(steps)]
        return steps[last], values[last]


class _Columns:
    """Metrics by name while lines are read."""

    def __init__(self) -> None:
        self.by_key: dict[str, _Column] = {}
        self.steps = _Column()

    def put(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.steps.put(step, 0.0)
        for key, value in metrics.items():
            if value is None:
                value = math.nan
            elif not isinstance(value, int | float) or isinstance(value, bool):
                continue
            column = self.by_key.get(key)
            if column is None:
                column = self.by_key[key] = _Column()
            try:
                column.put(step, float(value))
            except OverflowError:
                column.put(step, math.nan)

    def void(self, step: int) -> None:
        for column in (self.steps, *self.by_key.values()):
            column.void(step)


@dataclass
class _Place:
    """How far a file of lines was read."""

    offset: int = 0
    lines: int = 0
    newest: int | None = None
    foreign: bool = False
    file: tuple[int, int] | None = None


def _signature(path: Path | None) -> tuple[int, int] | None:
    """What changes with a file: its number and size; None where there is none."""
    try:
        found = path.stat() if path is not None else None
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size) if found else None


class RunReader:
    """Reads a run, also while it goes on: ours (a folder or its steps.jsonl) or verl's FileLogger (any .jsonl).

    Of a folder with several metrics files of a launcher each is a session that went on from a checkpoint of the one before.
    Bad lines are left out and told in ``problems``; only a path without any run file raises RunFileError.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.problems: list[str] = []
        self.under_way = False
        """The last line has no end: a step is being written, or the run was killed in it."""
        self._uncounted = 0
        self._places: dict[Path, _Place] = {}
        self._folder, files = self._locate()
        self._meta_read = _signature(self._folder / META if self._folder else None)
        self.meta = self._read_meta()
        self.name = str(self.meta.get("name") or (self._folder.name if self._folder else files[0].stem))
        config = self.meta.get("config")
        self.config: dict[str, Any] = config if isinstance(config, dict) else {}
        self._columns = _Columns()
        self._ordered: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._parsed: dict[Path, tuple[tuple[int, int], Any]] = {}
        self._files = files
        for file in files:
            self._places[file] = _Place()
            self._read_lines(file, resumed=file != files[0])
        self.steps = self._columns.steps.ordered()[0]
        if not len(self.steps):
            self._problem(f"{files[-1]}: no step in it yet")
        if self._uncounted:
            self.problems.append(f"and {self._uncounted} more")

    def refresh(self) -> bool:
        """Read what was appended since; False where the run is another one by now, and must be read anew.

        Cheap: only new lines are read and parsed.
        """
        if self._locate()[1] != self._files or self._meta_read != _signature(self._folder / META if self._folder else None):
            return False
        for file in self._files:
            place, now = self._places[file], _signature(file)
            if now is None or place.file is None or now[0] != place.file[0] or now[1] < place.offset:
                return False
        before = len(self.steps)
        for file in self._files:
            if _signature(file) != self._places[file].file:
                self._read_lines(file, resumed=False)
                self._ordered.clear()
        self.steps = self._columns.steps.ordered()[0]
        if not before and len(self.steps):
            self.problems = [text for text in self.problems if not text.endswith("no step in it yet")]
        return True

    def _locate(self) -> tuple[Path | None, list[Path]]:
        """The folder of a run file, if it is one, and the files with its lines."""
        if self.path.is_dir():
            if (self.path / STEPS).is_file() or (self.path / META).is_file():
                return self.path, [self.path / STEPS]
            found = sorted(self.path.glob("*.jsonl"))
            if len(found) == 1 or (found and all(SESSION.fullmatch(p.stem) for p in found)):
                return None, found
            names = ", ".join(p.name for p in found[:5]) or "no .jsonl file"
            raise RunFileError(f"{self.path}: no {STEPS}, and {names}. Give a run's folder or one .jsonl file.")
        if not self.path.is_file():
            raise RunFileError(f"{self.path}: no such file or folder. Give a run's folder or verl's .jsonl file.")
        return (self.path.parent if self.path.name == STEPS else None), [self.path]

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)
        else:
            self._uncounted += 1

    def _load(self, data: bytes, where: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            self._problem(f"{where}: not JSON ({str(error)[:60]})")
            return None

    def _read_meta(self) -> dict[str, Any]:
        if self._folder is None or not (self._folder / META).is_file():
            return {}
        meta = self._load((self._folder / META).read_bytes(), META)
        if not isinstance(meta, dict):
            return {}
        version = meta.get("format")
        if version != FORMAT:
            self._problem(f"{META}: format {version!r}, this version knows {FORMAT}; read as far as it is understood")
        return meta

    def _read_lines(self, file: Path, resumed: bool = False) -> None:
        """Read the lines from where the last reading of this file ended."""
        if not file.is_file():
            return
        place, columns = self._places[file], self._columns
        self.under_way = False
        place.file = _signature(file)
        with open(file, "rb") as lines:
            lines.seek(place.offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    self.under_way = True
                    if place.lines or not self._whole(line):
                        break
                place.offset += len(line)
                place.lines += 1
                if not line.strip():
                    continue
                where = f"{file.name}:{place.lines}"
                record = self._load(line, where)
                if record is None:
                    continue
                if isinstance(record, dict) and record.get("v", FORMAT) != FORMAT and not place.foreign:
                    place.foreign = True
                    self._problem(f"{where}: format {record['v']!r}, this version knows {FORMAT}")
                place.newest = self._take(record, where, columns, place.newest)
                if resumed and place.newest is not None:
                    columns.void(place.newest + 1)  # the first step may be the checkpoint's, validated again
                    resumed = False

    @staticmethod
    def _whole(line: bytes) -> bool:
        """A file of a single line without its end, made by another tool."""
        try:
            return isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            return False

    def _take(self, record: Any, where: str, columns: _Columns, newest: int | None) -> int | None:
        """Put one line's record into the columns; the highest step so far."""
        if not isinstance(record, dict):
            self._problem(f"{where}: expected an object with step and metrics")
            return newest
        if isinstance(record.get("resume"), int):
            columns.void(record["resume"])
            return None
        step = record.get("step", record.get("training/global_step"))
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
            self._problem(f"{where}: step {str(step)[:40]!r} is no step number")
            return newest
        metrics = record.get("metrics", record.get("data"))
        if metrics is None:
            metrics = {k: v for k, v in record.items() if k not in ("step", "v", "time")}
        if not isinstance(metrics, dict):
            self._problem(f"{where}: metrics are no object")
            return newest
        if newest is not None and step < newest:
            self._problem(f"{where}: step {step} after step {newest}; sorted by step")
        columns.put(step, metrics)
        return step if newest is None else max(step, newest)

    # ------------------------------------------------------------------ access

    @property
    def keys(self) -> list[str]:
        """Names of all metrics, in order of first appearance."""
        return list(self._columns.by_key)

    def __len__(self) -> int:
        return len(self.steps)

    def has(self, key: str) -> bool:
        """Whether the metric has a finite value at some step."""
        return bool(np.isfinite(self.series(key)[1]).any())

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps that have the metric, and its values (NaN where it was logged as missing)."""
        if key not in self._columns.by_key:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        if key not in self._ordered:
            self._ordered[key] = self._columns.by_key[key].ordered()
        return self._ordered[key]

    def turns(self, first: int = 0, last: int | None = None) -> dict[str, np.ndarray] | None:
        """Columns of the per-turn arrays of steps in [first, last], with ``step``; None without any.

        Steps whose line is missing are left out.
        """
        folder = self._folder / TURNS if self._folder else None
        if folder is None or not folder.is_dir():
            return None
        import pyarrow as pa

        live = self.steps[(self.steps >= first) & (self.steps <= (self.steps.max(initial=0) if last is None else last))]
        tables, schema, owned = [], pa.schema([]), np.zeros(0, dtype=np.int64)
        # A step's own file wins over a joined one that has it too.
        for path in sorted(folder.glob("*.parquet"), key=lambda p: (p.name.startswith("rows-"), p.name)):
            low, high = _range(path.name)
            if not len(live) or high < live[0] or low > live[-1]:
                continue
            try:
                table = _read_parquet(path)
                steps = table["step"].to_numpy()
                schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
            except FileNotFoundError:
                continue  # joined by the writer meanwhile
            except (pa.ArrowException, OSError, KeyError, ValueError) as error:
                self._problem(f"{path.name}: unreadable ({str(error)[:60]})")
                continue
            tables.append(table.filter(pa.array(np.isin(steps, live) & ~np.isin(steps, owned))))
            owned = np.union1d(owned, steps)
        if not tables:
            return None
        table = _joined(tables).sort_by("step")
        return {name: table[name].to_numpy() for name in table.column_names}

    def samples(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Step and its trajectories, by step."""
        folder = self._folder / SAMPLES if self._folder else None
        if folder is None or not folder.is_dir():
            return
        live = set(self.steps.tolist())
        for path in sorted(folder.glob("step-*.json")):
            match = _STEP_FILE.search(path.name)
            if match is None or int(match.group(1)) not in live:
                continue
            try:
                record = self._read_once(path)
            except FileNotFoundError:
                continue  # thinned by the writer meanwhile
            samples = record.get("samples") if isinstance(record, dict) else None
            if not isinstance(samples, list):
                self._problem(f"{path.name}: no list of samples")
                continue
            yield int(match.group(1)), [s for s in samples if isinstance(s, dict)]

    def _read_once(self, path: Path) -> Any:
        """The JSON of a file, parsed again only when the file is another one."""
        now = _signature(path)
        if now is None or path not in self._parsed or self._parsed[path][0] != now:
            self._parsed[path] = (now or (0, 0), self._load(path.read_bytes(), path.name))
        return self._parsed[path][1]
