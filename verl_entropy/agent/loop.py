# SPDX-License-Identifier: Apache-2.0
"""What both agent loops share: settings, environments, sampling, and what is stored with a row. Imports verl.

Schema of ``extra_fields`` of every row (besides what the rollout server put there):

    turns              one dict per turn of the row: reward (environment's), penalty (>= 0), valid, anchor
                       (what identifies the state), turn (from 0, in the episode), admissible, action,
                       cut (the answer was cut, so not executed), prompt_cut (the observation lost words)
    success            the episode reached its goal
    task_type          the environment's name for the kind of task, or ""
    ended              why the episode ended: terminated, truncated, max_turns, no_room or cut
    env_error          why earlier attempts at this episode were given up, or ""
    min_global_steps,  versions of the weights that sampled the row
    max_global_steps
    reward_extra_info  numbers of the episode: acc and success (0/1), return, penalty, episode_length,
                       valid_actions (fraction), env_retried (0/1), cut_answers and cut_prompts (fractions of turns),
                       no_room (0/1: a chat without room, or that a cut answer ended)

``acc`` is verl's own name for the validation metric: with it, verl counts a dropped session as a failure in
``val-core`` and reports the rate without them as ``acc_success_only``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pickle
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import yaml
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.replica import TokenOutput

from verl_entropy.agent.branching import ROLLOUT, Tree, seated
from verl_entropy.agent.cut import tokens_cut
from verl_entropy.agent.environment import snapshot_of
from verl_entropy.agent.episode import Branch, Episode, EpisodeRunner, Policy, Said, SessionFailed, TurnState
from verl_entropy.agent.pool import BROKEN, EnvPool, PoolBroken, pool_of, shared_pool
from verl_entropy.agent.prompts import FittedPrompt, PromptBuilder
from verl_entropy.agent.settings import PATH, AgentSettings, check_texts
from verl_entropy.agent.template import answer_tags, check_template, end_texts, without_end
from verl_entropy.batch.foreign import ProtocolError, read_whole
from verl_entropy.config import plan
from verl_entropy.config.settings import ConfigError
from verl_entropy.methods.scheme import Scheme

logger = logging.getLogger(__name__)

SHORT_PROMPT = 512
"""Tokens: building a prompt of at most this many takes about as long as handing it to another thread and back."""

# verl makes an agent loop per session; the builder (template file, truncation count) is one per worker.
_prompt_builder = functools.cache(PromptBuilder)


@functools.cache
def _settings(sections: bytes) -> AgentSettings:
    """The settings of these pickled sections, parsed once per worker and not once per session."""
    return AgentSettings.from_mappings(*pickle.loads(sections))


@functools.lru_cache(maxsize=8)
def _scheme(algorithm: str, word: str) -> tuple[int, Scheme]:
    """The rollouts of a prompt and the rules of the run's rollout method, from its configuration and the trainer's word."""
    told = json.loads(word)
    choice = plan.read({"algorithm": yaml.safe_load(algorithm)}).rollout
    return told["n"], choice.method.apply(choice.settings, told["state"])


def repeatable_id(priority: int, row: Any, session: int) -> str:
    """Request id of a session under ``rollout.full_determinism``, where an id may decide what is drawn: each session's own."""
    return f"det-{int(priority)}-{row}-{session}"


@dataclass(frozen=True)
class Response:
    """One sampled response: the tokens exactly as the server returned them, cut to the budget."""

    token_ids: list[int]
    log_probs: list[float] | None
    text: str
    output: TokenOutput
    seconds: float
    cut: bool = False
    """It was ended by the budget or the server, not by the model."""

    def said(self, prompt_cut: bool, prompt_tokens: int) -> Said:
        """What an episode reads of it."""
        extra = self.output.extra_fields
        prefix = {"prompt_tokens": prompt_tokens}
        if extra.get("num_cached_tokens") is not None:
            prefix["cached_tokens"] = int(extra["num_cached_tokens"])
        return Said(self.text, self.cut, prompt_cut, self.log_probs, extra.pop("top_log_probs", None), prefix)


async def _end_the_run(error: PoolBroken) -> None:
    """Tell the trainer; verl itself takes the error for a failed prompt, and in asynchronous modes asks for another one for ever."""
    import transfer_queue as tq

    try:
        await tq.async_kv_put(key=f"worker_{os.getpid()}", partition_id=BROKEN, tag={"message": str(error)})
    except Exception:  # without a queue the error itself is all there is to say
        logger.exception("the trainer could not be told that the environments of this worker cannot be used")


class TextEnvAgentLoop(AgentLoopBase):
    """Base of both loops; ``env`` (from ``agent_loop_config_path``) is laid over ``data.env``."""

    def __init__(self, *args, env: Mapping[str, Any] | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        sections = (_plain(self.data_config.get("env")), _plain(env))
        self.settings = s = _settings(pickle.dumps(sections))
        self.prompt_length: int = self.rollout_config.prompt_length
        self.response_length: int = self.rollout_config.response_length
        check_texts(s)
        self.prompts = _prompt_builder(**s.prompts)
        special, tags = set(self.tokenizer.all_special_tokens), answer_tags(s)
        self._skip_special_tokens = not special & tags
        self._end_texts = () if self._skip_special_tokens else end_texts(self.tokenizer, s)
        _check_once(self, sections)
        # any special token that is no tag: a model may have several end tokens, the tokenizer names one
        self._end_ids = {self.tokenizer.convert_tokens_to_ids(token) for token in special - tags}
        self._stop_token_ids = self._closing_tag_ids() if s.stop_at_action else []
        # vLLM decodes every token while it samples, for a text that verl does not return.
        self._engine_params = {"detokenize": False} if self.rollout_config.get("name") == "vllm" else {}

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> Any:
        """Play one episode; no row at all if its environment kept failing (``data.env.on_env_failure``)."""
        seed = self._seed(kwargs)
        request_id = uuid4().hex
        if self.rollout_config.get("full_determinism", False):
            request_id = repeatable_id(priority, seed, kwargs.get("session_id", 0))
        runner = EpisodeRunner(self.settings, self._pool(), self.rollout_config.multi_turn.max_assistant_turns)
        options = _options(kwargs.get("extra_info") or {})
        try:
            with self._branch(kwargs, seed, request_id) as branch:
                if branch is not None and branch.top:
                    sampling_params = {**sampling_params, "top_logprobs": branch.top}
                episode, policy = await runner.run(
                    lambda: self.make_policy(sampling_params, request_id),
                    seed=seed,
                    options=options,
                    task=_last_user_text(kwargs.get("raw_prompt")),
                    branch=branch,
                )
        except PoolBroken as error:
            await _end_the_run(error)
            raise
        except SessionFailed as error:
            logger.warning("episode of seed %d given up (%s): %s", seed, self._failure_policy(), error)
            if self._failure_policy() == "raise":
                raise
            return []
        return self.outputs(episode, policy)

    # -- the two row layouts

    def make_policy(self, sampling_params: dict[str, Any], request_id: str) -> Policy:
        """A policy for one attempt at an episode."""
        raise NotImplementedError

    def outputs(self, episode: Episode, policy: Any) -> list[AgentLoopOutput]:
        """The rows of a finished episode."""
        raise NotImplementedError

    # -- used by the policies

    async def fitted_prompt(self, state: TurnState) -> FittedPrompt:
        """The prompt of a turn, within ``rollout.prompt_length``."""
        fit = functools.partial(
            self.prompts.fit,
            self.continuous_token_builder.build_initial_tokens,
            self.prompt_length,
            state.task,
            state.observation,
            state.history,
            state.admissible,
            state.step,
            state.forms,
            state.details,
        )
        if self.prompt_length <= SHORT_PROMPT:
            return fit()
        return await self.loop.run_in_executor(None, fit)

    async def sample(self, prompt_ids: list[int], sampling_params: dict[str, Any], budget: int, request_id: str) -> Response:
        """One response of at most ``budget`` tokens."""
        budget = min(budget, self.settings.max_tokens_per_turn or budget, sampling_params.get("max_tokens") or budget)
        params = {**sampling_params, "max_tokens": budget}
        if not params.get("stop"):  # vLLM finds these strings in the text
            params |= self._engine_params
        if self._stop_token_ids:
            params["stop_token_ids"] = [*(sampling_params.get("stop_token_ids") or []), *self._stop_token_ids]
        started = time.monotonic()
        output: TokenOutput = await self.server_manager.generate(
            request_id=request_id, prompt_ids=list(prompt_ids), sampling_params=params
        )
        seconds = time.monotonic() - started
        ids = list(output.token_ids[:budget])
        if not ids:
            raise SessionFailed(f"the rollout server returned no tokens (stop_reason={output.stop_reason!r})")
        log_probs = list(output.log_probs[: len(ids)]) if output.log_probs else None
        if log_probs is not None and len(log_probs) != len(ids):
            raise RuntimeError(f"the rollout server returned {len(log_probs)} log-probs for {len(ids)} tokens")
        text = without_end(self.tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens), self._end_texts)
        ends = {*self._end_ids, *(params.get("stop_token_ids") or [])}
        return Response(ids, log_probs, text, output, seconds, tokens_cut(ids, budget, ends, output.stop_reason))

    def episode_fields(self, episode: Episode) -> dict[str, Any]:
        """The part of ``extra_fields`` that is the same for every row of an episode."""
        length = len(episode.turns)
        success = float(episode.success)
        return {
            "success": episode.success,
            "task_type": episode.task_type,
            "task": episode.task,
            "env_error": episode.env_error,
            "ended": episode.ended,
            "reward_extra_info": {
                "acc": success,
                "success": success,
                "return": episode.episode_return,
                "penalty": episode.penalty,
                "episode_length": float(length),
                "valid_actions": sum(turn.valid for turn in episode.turns) / max(1, length),
                "env_retried": float(bool(episode.env_error)),
                "cut_answers": sum(turn.cut for turn in episode.turns) / max(1, length),
                "cut_prompts": sum(turn.prompt_cut for turn in episode.turns) / max(1, length),
                "no_room": float(episode.ended in ("no_room", "cut")),
            },
        }

    # -- private

    @contextlib.contextmanager
    def _branch(self, row: Mapping[str, Any], seed: int, request_id: str) -> Iterator[Branch | None]:
        """This session under the run's rollout method; None without one, and in validation, for which the trainer sends no word."""
        if row.get(ROLLOUT) is None:
            yield None
            return
        n, scheme = _scheme(OmegaConf.to_yaml(self.config.algorithm, resolve=True), row[ROLLOUT])
        snapshot = snapshot_of(self.settings.name, "the rollout method", f"{PATH}.name")

        def own(policy: Any) -> Any:
            # the parent's id keeps the server, and with it the cache of the prefix; with full_determinism an id is one session's alone
            policy._request_id = request_id if self.rollout_config.full_determinism else policy._request_id
            return policy

        place = f"{seed}/{row.get('global_steps')}"
        with seated(row["uid"], int(row.get("session_id", 0)), place, lambda: Tree(scheme, n)) as seat:
            yield Branch(seat, snapshot, own)

    def _pool(self) -> EnvPool:
        s = self.settings

        def make() -> EnvPool:
            try:
                return pool_of(s)
            except ValueError as error:
                raise PoolBroken(f"{PATH}.name: {error}") from error

        return shared_pool(s.pool_key, make)

    def _seed(self, row: Mapping[str, Any]) -> int:
        """The same for all rollouts of a group: ``extra_info.seed``, else ``.index``, else from the uid."""
        info = row.get("extra_info") or {}
        for key in ("seed", "index"):
            if info.get(key) is not None:
                return read_whole(info[key], f"extra_info.{key}") + self.settings.seed
        _warn_unseeded()
        return (zlib.crc32(str(row.get("uid", "")).encode()) + self.settings.seed) % 2**31

    def _failure_policy(self) -> str:
        if self.settings.on_env_failure != "auto":
            return self.settings.on_env_failure
        # verl's group filter stops the run at a finished group without rows; a failed one it skips.
        filtered = OmegaConf.select(self.config, "algorithm.filter_groups.enable", default=False)
        return "raise" if filtered else "drop"

    def _closing_tag_ids(self) -> list[int]:
        return [self._single_token(f"</{tag}>") for tag in self.settings.answer_tags]

    def _single_token(self, tag: str) -> int:
        ids = self.tokenizer.encode(tag, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
            raise ConfigError(
                f"{PATH}.stop_at_action=True: {tag} is not one token of this tokenizer, and verl's rollout "
                f"servers stop at single tokens only. Set {PATH}.stop_at_action=False, or use one-token tags."
            )
        return ids[0]


_checked: set[bytes] = set()


def _check_once(loop: TextEnvAgentLoop, sections: Any) -> None:
    """Render one prompt when the first episode of these settings starts."""
    key = pickle.dumps((id(loop.tokenizer), sections))
    if key not in _checked:
        check_template(loop.tokenizer, loop.settings, loop.continuous_token_builder.build_initial_tokens)
        _checked.add(key)


@functools.cache
def _warn_unseeded() -> None:
    logger.warning(
        "the data set's rows have neither extra_info.seed nor extra_info.index: every step draws new "
        "episodes, and a second run draws others. Add the column to make runs repeatable."
    )


def _options(extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """``extra_info.options``: a mapping, or one as JSON text (in one file, keys of two environments may differ in type)."""
    options = extra_info.get("options")
    if isinstance(options, str) and options.strip():
        try:
            options = json.loads(options)
        except ValueError as error:
            raise ProtocolError(f"extra_info.options={options[:80]!r} of type str: no JSON ({error}).") from error
    if options is None or (not isinstance(options, Mapping) and np.size(options) == 0) or options == "":
        return {}
    if not isinstance(options, Mapping):
        raise ProtocolError(
            f"extra_info.options={str(options)[:80]!r} of type {type(options).__name__}: expected a mapping, or one as JSON text."
        )
    # A column of structs in a parquet file holds None for every key that a row does not set.
    return {key: value for key, value in options.items() if value is not None}


def _plain(section: Any) -> Any:
    return OmegaConf.to_container(section, resolve=True) if isinstance(section, DictConfig) else section


def _last_user_text(messages: Any) -> str:
    """The last user message of the data set's row; images and the like are left out."""
    for message in reversed(list(messages if messages is not None else [])):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            return content.strip()
        return " ".join(part.get("text", "") for part in content or [] if part.get("type") == "text").strip()
    return ""


def metrics(generate_s: float, environment_s: float, num_preempted: int | None) -> AgentLoopMetrics:
    """verl's per-row timings; the environment takes the place of tools."""
    return AgentLoopMetrics(
        generate_sequences=generate_s,
        tool_calls=environment_s,
        num_preempted=-1 if num_preempted is None else num_preempted,
    )
