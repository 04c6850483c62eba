# SPDX-License-Identifier: Apache-2.0
"""The diagnostics in the trainer's process: the sample before the log-prob pass, the metrics at the end of the advantage phase,
the run file at the end of the step, the action on an eruption after the update. Reads what is there; trains nothing.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics import glossary, likelihood, live, representation, sampling
from verl_entropy.diagnostics.interference import interference
from verl_entropy.diagnostics.settings import ACTIONS, PATH, Live
from verl_entropy.hosts.common.trainer_keys import CLIPPED, NUM_SAMPLED, ROW, ROW_SIZE, SAMPLE_CODE, SAMPLE_LEAD, SAMPLED
from verl_entropy.log import say
from verl_entropy.runs.runfile import RunWriter
from verl_entropy.upstream.rows import pad_rows

SAMPLE_FIELDS = (SAMPLE_CODE, SAMPLE_LEAD, SAMPLED)
COORDINATES = 8
"""Principal components of a trajectory's representation that the run file keeps: a picture needs two."""
SAID = {
    "eruption": "entropy erupts",
    "runaway": "entropy runs away",
    "collapse": "entropy has collapsed",
    "template_collapse": "responses repeat one another while entropy stands",
    "dead": "the run learns nothing",
    "non_finite": "entropy, loss or gradient norm is not finite",
}
"""What the console says of an event that asks for an action."""


class DiagnosticsSide:
    """Everything of one run; the trainer's wrapper calls it."""

    def __init__(self, settings: Live):
        self.settings = settings
        self.live = live.LiveDiagnostics(settings)
        self.writer: RunWriter | None = None
        self._lead_R: np.ndarray | None = None
        """Of the batch under way, if it has a sample."""
        self._columns: dict[str, np.ndarray] | None = None
        self._samples: list[dict[str, Any]] = []
        self._told: list[tuple[dict[str, Any], int, list[int]]] = []
        """Turns of the samples, each with its row and its tokens' places in that row's response."""
        self._last_step: int | None = None
        self._action, self._reason = "none", "eruption"
        self._seconds = 0.0
        self._differs = False

    # ------------------------------------------------------------------ sample

    def put_sample(self, batch: Any, step: int) -> Any:
        """Mark the sample's tokens in the queue, and ask the log-prob pass for it, where this step has one."""
        self._lead_R = None
        if not self.settings.costly_at(step):
            return batch
        import transfer_queue as tq
        from tensordict import TensorDict

        start = time.perf_counter()
        mask = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])["response_mask"]
        padding_R = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        sample = self.sample(step, mask, list(batch.keys), padding_R)
        if sample is None:
            return batch
        fields = TensorDict({SAMPLE_CODE: sample[0], SAMPLE_LEAD: sample[1]}, batch_size=len(batch))
        put = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        put.extra_info.update(batch.extra_info)
        put.extra_info[NUM_SAMPLED] = int(sample[1].max())
        self._seconds += time.perf_counter() - start
        return put

    def sample(
        self, step: int, mask: torch.Tensor, keys: list[str], padding_R: list[bool]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Columns SAMPLE_CODE (nested as ``mask``) and SAMPLE_LEAD (R,) where this step has a sample, else None."""
        self._lead_R = None
        columns = sample_columns(mask, keys, padding_R, self.settings) if self.settings.costly_at(step) else None
        if columns is None:
            return None
        code_N, self._lead_R = columns
        return torch.nested.nested_tensor_from_jagged(torch.as_tensor(code_N), mask.offsets()), torch.as_tensor(self._lead_R)

    def fields(self, step: int) -> list[str]:
        """Fields of the queue that the metrics of this step read beyond the trainer's."""
        sampled = [SAMPLED] if self._lead_R is not None else []
        texts = ["responses"] if self._wants_text(step) else []
        return sampled + texts + (["prompts"] if self._wants_samples(step) else [])

    def _wants_text(self, step: int) -> bool:
        return self.settings.costly_at(step) or self._wants_samples(step)

    def _wants_samples(self, step: int) -> bool:
        return self.writer is not None and self.writer.wants_samples(step)

    # ------------------------------------------------------------------ metrics

    def step(self, ctx: Any, rows: Any, tokenizer: Any) -> dict[str, float]:
        """Metrics of a batch whose advantages are done; several batches of one step move the detector once."""
        start = time.perf_counter()
        first = self._last_step is None or ctx.step > self._last_step
        extra, found = self._sampled(ctx, rows)
        responses_RT = None
        if "responses" in rows.keys():
            responses_RT = pad_rows(rows["responses"], ctx.mask_RT.shape[1])
        texts = None
        if responses_RT is not None and self.settings.costly_at(ctx.step):
            texts = turn_texts(ctx.turns, responses_RT, tokenizer, self.settings.max_texts)
        if first:
            metrics = self.live.step(ctx, texts=texts, extra=extra)
            self._ask()
            for message in self.live.messages:
                say(message.removeprefix("verl-entropy: "))
            self._last_step, self._columns, self._samples, self._told = ctx.step, None, [], []
        else:
            metrics = live.step_diagnostics(ctx, self.settings, texts)
        if self.writer is not None:
            wanted = self._wants_samples(ctx.step)
            prompts = rows["prompts"].unbind() if wanted and "prompts" in rows.keys() else None
            self._keep(ctx, found, responses_RT if wanted else None, tokenizer, prompts)
        self._seconds += time.perf_counter() - start
        return {**metrics, **extra}

    def _sampled(self, ctx: Any, rows: Any) -> tuple[dict[str, float], dict[str, Any]]:
        """Metrics of the sampled trajectories; their numbers in the batch, coefficients and coordinates."""
        if self._lead_R is None or SAMPLED not in rows.keys():
            return {}, {}
        gram_JJ, mean_JD = sampling.unpack(rows[SAMPLED].unbind(), self._lead_R, int(self._lead_R.max()))
        lead = np.argsort(self._lead_R, kind="stable")[-len(gram_JJ) :]
        trajectory_R = torch.full((len(ctx.mask_RT),), -1).index_put((ctx.turns.row_K,), ctx.turns.trajectory_K)
        trajectory_J = trajectory_R[torch.as_tensor(lead.copy())]
        kept = trajectory_J >= 0  # a transform or a correction may have dropped a whole trajectory
        return sampled_metrics(ctx, trajectory_J[kept], gram_JJ[kept][:, kept], mean_JD[kept])

    def _keep(self, ctx: Any, found: dict[str, Any], responses_RT: torch.Tensor | None, tokenizer: Any, prompts: Any) -> None:
        """Turn columns and trajectories for the run file."""
        columns = live.turn_columns(ctx)
        if found:
            values_J = np.full(ctx.turns.num_trajectories, np.nan, dtype=np.float32)
            values_J[found["trajectory"]] = found["coefficient"]
            columns["interference"] = values_J[columns["trajectory"]]
        self._columns = columns if self._columns is None else _join(self._columns, columns)
        if responses_RT is None or self._samples:
            return
        most = self.settings.run_file.max_samples
        chosen = found["trajectory"][:: max(len(found["trajectory"]) // most, 1)] if found else None
        self._samples = live.trajectories(ctx, responses_RT, tokenizer.decode, limit=most, chosen=chosen, prompts=prompts)
        for sample in self._samples:
            turns_K = (ctx.turns.trajectory_K == sample["trajectory"]).nonzero().flatten().tolist()
            for turn, k in zip(sample["turns"], turns_K, strict=True):
                row = int(ctx.turns.row_K[k])
                self._told.append((turn, row, (ctx.turns.turn_RT[row] == k).nonzero().flatten().tolist()))
        if found:
            self._samples = with_representations(self._samples, found, ctx.turns)

    # ------------------------------------------------------------------ clipped tokens

    def worker_columns(self, ctx: Any) -> dict[str, torch.Tensor]:
        """The column ROW in a step whose trajectories are stored: the update reports which of their tokens the loss clipped."""
        first = self._last_step is None or ctx.step > self._last_step
        return {ROW: torch.arange(1, len(ctx.mask_RT) + 1)} if first and self._wants_samples(ctx.step) else {}

    def take_clipped(self, metrics: dict[str, Any]) -> None:
        """Take what the update reports of them out of its metrics, and tell it of the stored turns: 1 above, -1 below, 0 neither."""
        codes = metrics.pop(CLIPPED, None)
        if codes is None:
            return
        side = {abs(code): 1 if code > 0 else -1 for code in codes if code}
        for turn, row, places in self._told:
            turn["clip"] = [side.get((row + 1) * ROW_SIZE + place, 0) for place in places]

    # ------------------------------------------------------------------ run file

    def open(self, config: Any, resumed: bool = True) -> None:
        """Open the run file, before anything is trained; a run that only validates would begin a training run's file anew.

        ``resumed``: verl goes on from a checkpoint, and with it the run that is stored in the folder; otherwise that is another run,
        which is moved aside.
        """
        s = self.settings.run_file
        if s.folder is None or self.writer is not None or config.trainer.get("val_only", False):
            return
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
        name = str(config.trainer.get("experiment_name") or "")
        try:
            self.writer = RunWriter(s.folder, s, config=plain, name=name, fresh=not resumed)
        except OSError as error:
            raise ConfigError(f"{PATH}.run_file.folder={s.folder}: cannot be written ({error}). Give another folder.") from None
        if self.writer.aside is not None:
            say(f"run file {s.folder}: this run resumes no checkpoint; the run that was there is now in {self.writer.aside}")

    def finish(self, step: int, metrics: dict[str, Any]) -> None:
        """The end of a step: everything that verl is going to log goes into the run file."""
        start = time.perf_counter()
        self._compare_policies(step, metrics)
        metrics[live.PREFIX + "timing_s/diagnostics"] = self._seconds
        self._seconds = 0.0
        self.write(step, metrics, self._columns, self._samples)
        self._columns, self._samples, self._told = None, [], []
        if self.settings.profile == "compact":
            kept = glossary.compact(metrics)
            metrics.clear()
            metrics.update(kept)
        self._seconds += time.perf_counter() - start  # counted in the next step

    def _compare_policies(self, step: int, metrics: dict[str, Any]) -> None:
        """Warn, once per stretch of steps, when the sampled tokens are another policy's than the one that is trained."""
        gap = metrics.get(live.POLICY_GAP)
        differs = gap is not None and gap > live.OTHER_POLICY
        if differs and not self._differs:
            say(
                f"WARNING: step {step}: probabilities of the sampled tokens differ by {gap:.2g} in the mean between rollout and trainer "
                "(bf16: below .01). The rollout engine has other weights than the trainer: if several runs share this host, see that "
                "each has the plugin or a Ray job id of its own; otherwise compare dtypes and quantisation of the two."
            )
        self._differs = differs

    def write(self, step: int, metrics: dict[str, Any], columns=None, samples=None) -> None:
        """Store a step; a full or lost disk ends the run file, not the training."""
        if self.writer is None:
            return
        last = self.writer.last
        if last is not None and step <= last:
            say(f"run file {self.writer.folder}: steps {step} to {last} of an earlier session are replaced")
        try:
            self.writer.step(step, metrics, columns, samples)
        except OSError as error:
            say(f"run file {self.writer.folder}: {error}. Nothing more is written to it; the training goes on.")
            self.writer = None

    # ------------------------------------------------------------------ action

    def act(self, trainer: Any, metrics: dict[str, Any] | None = None) -> None:
        """Do what ``on_eruption`` and its like ask for, once the step's update is done and before verl saves.

        ``metrics``: the step's so far, the update's loss and gradient norm among them; the events they show are added.
        """
        if metrics is not None:
            self.live.complete(trainer.global_steps, metrics)
            for message in self.live.messages:
                say(message.removeprefix("verl-entropy: "))
            self._ask()
        action, self._action = self._action, "none"
        if action == "none":
            return
        step, trained = trainer.global_steps, trainer.config.trainer
        advice = f"set {PATH}.run_file.folder to see why"
        if self.writer is not None:
            advice = f"`verl-entropy advise {self.writer.folder}` says what to try"
        say(f"WARNING: {SAID[self._reason]} (step {step}); {advice}. on_{self._reason}={action}")
        due = trained.save_freq > 0 and (step % trained.save_freq == 0 or step >= trainer.total_training_steps)
        if not due and (action == "checkpoint" or (action == "stop" and trained.save_freq > 0)):
            trainer._save_checkpoint()
        if action == "stop":
            say(f"training ends after step {step} of {trainer.total_training_steps}")
            trainer.total_training_steps = step

    def _ask(self) -> None:
        """Keep the strongest action that the diagnostics asked for, with its event."""
        if ACTIONS.index(self.live.action) > ACTIONS.index(self._action):
            self._action, self._reason = self.live.action, self.live.reason

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        return self.live.state_dict()

    def load_state_dict(self, values: dict[str, Any] | None) -> None:
        """State of a checkpoint; none, or one of another version, starts the diagnostics afresh."""
        if values is None:
            return
        try:
            self.live.load_state_dict(values)
            self.live.resumed()
        except (ValueError, KeyError, TypeError) as error:
            say(f"diagnostics start afresh: the checkpoint's state is another version's ({error})")
            self.live = live.LiveDiagnostics(self.settings)


def sample_columns(
    mask: torch.Tensor, keys: list[str], padding_R: list[bool], settings: Live
) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes of all response tokens (N,) and leads of the rows (R,); None without a trained token.

    ``mask``: nested response mask; ``keys``: ``<uid>_<session>_<index>`` of the rows.
    """
    mask_N = mask.values().bool().numpy()
    length_R = mask.offsets().diff().numpy()
    row_N = np.repeat(np.arange(len(keys)), length_R)
    trained_R = (np.bincount(row_N, weights=mask_N, minlength=len(keys)) > 0) & ~np.asarray(padding_R)
    sessions = [key.rsplit("_", 1)[0] for key in keys]
    rows = np.flatnonzero(trained_R)
    numbers = sampling.choose(
        [sessions[r] for r in rows], [sessions[r].rsplit("_", 1)[0] for r in rows], settings.sample_trajectories
    )
    if not numbers:
        return None
    trajectory_R = np.full(len(keys), -1)
    trajectory_R[rows] = [numbers.get(sessions[r], -1) for r in rows]
    lead_R = np.zeros(len(keys), dtype=np.int64)
    found, first = np.unique(trajectory_R, return_index=True)
    lead_R[first[found >= 0]] = found[found >= 0] + 1
    return sampling.mark(mask_N, trajectory_R[row_N], settings.sample_tokens), lead_R


def sampled_metrics(
    ctx: Any, trajectory_J: torch.Tensor, gram_JJ: torch.Tensor, mean_JD: torch.Tensor
) -> tuple[dict[str, float], dict[str, Any]]:
    """Separation and interference of the sampled trajectories; c_j is over the sampled rollouts of j's prompt."""
    turns, metrics = ctx.turns, {}
    correct_J = turns.success_J[trajectory_J]
    for name, value in representation.representation_similarity(mean_JD, correct_J).items():
        metrics[f"representation/{name}"] = value
    coefficient_J = torch.full((len(trajectory_J),), torch.nan)
    if bool(torch.isfinite(gram_JJ).all()):
        advantage_J = likelihood.per_trajectory(turns.mean(ctx.advantages_RT), turns)[1].float()[trajectory_J]
        group_J = turns.group_J[trajectory_J]
        parts = []
        for group in group_J.unique().tolist():
            inside = group_J == group
            part = interference(gram_JJ[inside][:, inside], advantage_J[inside])
            coefficient_J[inside] = part["coefficient_J"]
            parts.append(torch.stack([part["drift"], part["drift_positive"], part["drift_negative"]]))
        drift, positive, negative = torch.stack(parts).mean(0).tolist()
        metrics.update({"interference/drift": drift, "interference/drift_positive": positive})
        metrics.update({"interference/drift_negative": negative, "interference/cosine": _cosine(gram_JJ, group_J)})
    found = {"trajectory": trajectory_J.numpy(), "coefficient": coefficient_J.numpy(), "coordinates": _coordinates(mean_JD)}
    return {live.PREFIX + name: value for name, value in metrics.items() if np.isfinite(value)}, found


def _cosine(gram_JJ: torch.Tensor, group_J: torch.Tensor) -> float:
    """Mean cosine of different gradients of a group, of those that have a length; NaN without such a pair."""
    norm_J = gram_JJ.double().diagonal().clamp_min(0.0).sqrt()
    pairs = (group_J.unsqueeze(0) == group_J.unsqueeze(1)).fill_diagonal_(False)
    pairs &= (norm_J > 0).unsqueeze(0) & (norm_J > 0).unsqueeze(1)
    cosine = gram_JJ.double()[pairs] / (norm_J.unsqueeze(0) * norm_J.unsqueeze(1))[pairs]
    return float(cosine.clamp(-1.0, 1.0).mean()) if bool(pairs.any()) else float("nan")


def _coordinates(mean_JD: torch.Tensor) -> list[list[float]]:
    """Principal components of the representations, at most COORDINATES; none where a hidden state is not finite."""
    if not bool(torch.isfinite(mean_JD).all()):
        return [[] for _ in range(len(mean_JD))]
    centred = mean_JD.double() - mean_JD.double().mean(0)
    left, scale, _ = torch.linalg.svd(centred, full_matrices=False)
    return [[round(v, 5) for v in row] for row in (left * scale)[:, :COORDINATES].tolist()]


def with_representations(samples: list[dict[str, Any]], found: dict[str, Any], turns: Any) -> list[dict[str, Any]]:
    """Samples with their coordinates, and the sampled trajectories without a text after them."""
    coordinates = dict(zip(found["trajectory"].tolist(), found["coordinates"], strict=True))
    shown = [{**s, "representation": coordinates[s["trajectory"]]} for s in samples]
    have = {s["trajectory"] for s in samples}
    rest = [
        {"trajectory": j, "score": float(turns.score_J[j]), "success": bool(turns.success_J[j]), "representation": xy}
        for j, xy in coordinates.items()
        if j not in have
    ]
    return shown + rest


def turn_texts(turns: Any, responses_RT: torch.Tensor, tokenizer: Any, most: int) -> list[str]:
    """Texts of at most ``most`` turns, evenly spaced."""
    places = np.linspace(0, turns.num_turns - 1, min(most, turns.num_turns)).round().astype(int)
    row_K = turns.row_K.tolist()
    ids = [responses_RT[row_K[k]][turns.turn_RT[row_K[k]] == k].tolist() for k in places]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def _join(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of two batches of a step; trajectories and groups of the second are numbered on."""
    shift = {k: int(a[k].max(initial=-1)) + 1 for k in ("trajectory", "group")}
    return {k: np.concatenate([a[k], b[k] + shift.get(k, 0)]) for k in a.keys() & b.keys()}
