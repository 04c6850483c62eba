# SPDX-License-Identifier: Apache-2.0
"""The agent loops on real environments and a scripted rollout server."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from agent_envs import RELEASE, Trouble
from agent_fakes import answer, build, play, tokenizer

from verl_entropy.agent.multispan import SpanAgentLoop
from verl_entropy.agent.pool import BROKEN, PoolBroken, close_all
from verl_entropy.agent.stepwise import StepwiseAgentLoop
from verl_entropy.batch.turns import build_turns
from verl_entropy.config.settings import ConfigError

CLIMB = {"name": "agent_envs:Climb"}
TROUBLE = {"name": "agent_envs:Trouble"}
LOOPS = [StepwiseAgentLoop, SpanAgentLoop]
LAYOUTS = pytest.mark.parametrize("cls", LOOPS)


@pytest.fixture(autouse=True)
def fresh():
    Trouble.built = 0
    RELEASE.clear()
    yield
    RELEASE.set()
    close_all()


def up(number, prompt):
    return answer("up")


def script(*actions):
    """Answers in this order; a text with tags is sent as it is. The last one repeats."""
    texts = [a if "<" in a else answer(a) for a in actions]
    return lambda number, prompt: texts[min(number, len(texts) - 1)]


def test_registered_under_their_names():
    from verl.experimental.agent_loop import agent_loop

    import verl_entropy.agent

    verl_entropy.agent.register()
    for name, cls in (("stepwise_env", StepwiseAgentLoop), ("span_env", SpanAgentLoop)):
        assert agent_loop._agent_loop_registry[name]["_target_"] == f"{cls.__module__}.{cls.__name__}"


class TestStepwise:
    def test_a_turn_is_a_row_with_its_own_prompt(self):
        (session,), server = play(StepwiseAgentLoop, {**CLIMB, "history_length": 1}, up, row={"extra_info": {"seed": 1}})
        assert len(session) == 3 == len(server.calls)
        prompts = [server.tokenizer.decode(row.prompt_ids) for row in session]
        actions = ". can : up , up two , down . <im_end> <im_start> assistant"
        assert prompts[0] == f"<im_start> user goal : reach 3 . now : height 0 {actions}"
        assert prompts[2] == f"<im_start> user goal : reach 3 . last : height 1 -> up . now : height 2 {actions}"

    def test_trained_token_for_token(self):
        (session,), server = play(StepwiseAgentLoop, CLIMB, script("up", "nowhere", "up"))
        for row, (_, sent, _, sampled) in zip(session, server.calls, strict=True):
            assert row.prompt_ids == sent and row.response_ids == sampled and row.response_mask == [1] * len(sampled)
        assert [row.response_logprobs[0] for row in session] == [-1.0, -2.0, -3.0]
        assert [row.extra_fields["min_global_steps"] for row in session] == [0, 1, 2]
        assert len({request for request, *_ in server.calls}) == 1  # one server, so that its prefix cache helps

    def test_prompts_stay_within_their_length(self):
        (session,), server = play(StepwiseAgentLoop, {**CLIMB, "kwargs": {"goal": 9}}, up, prompt_length=32)
        assert len(session) == 9 and all(len(row.prompt_ids) <= 32 for row in session)
        # The newest turn is kept, the one before it is cut as a whole.
        assert server.tokenizer.decode(session[8].prompt_ids).count("last") == 1

    def test_a_response_is_cut_to_its_length(self):
        (session,), server = play(StepwiseAgentLoop, {**CLIMB, "max_turns": 1}, up, response_length=4)
        assert len(session[0].response_ids) == 4 and server.calls[0][2]["max_tokens"] == 4
        assert session[0].extra_fields["turns"][0]["valid"] is False

    def test_stop_at_action(self):
        _, server = play(StepwiseAgentLoop, {**CLIMB, "stop_at_action": True}, up)
        assert server.calls[0][2]["stop_token_ids"] == [server.tokenizer.convert_tokens_to_ids("</action>")]

    def test_stop_at_any_of_several_closing_tags(self):
        env = {**CLIMB, "stop_at_action": True, "action_tags": ["search", "answer"], "max_turns": 1}
        said = script("<think> up </think> <search> up </search>")
        (session,), server = play(StepwiseAgentLoop, {**env, "prompt_template": "default"}, said, prompt_length=400)
        assert "<search> </search>" in server.tokenizer.decode(session[0].prompt_ids)
        assert server.calls[0][2]["stop_token_ids"] == server.tokenizer.convert_tokens_to_ids(["</search>", "</answer>"])
        turn = session[0].extra_fields["turns"][0]
        assert (turn["action"], turn["admissible"]) == ("<search> up </search>", False)  # of Climb's actions

    @pytest.mark.parametrize("tags", [{"action_tag": "act"}, {"action_tags": ["search", "act"]}])
    def test_stop_needs_tags_of_one_token(self, tags):
        with pytest.raises(ConfigError, match="stop_at_action=True: </act>"):
            play(StepwiseAgentLoop, {**CLIMB, "stop_at_action": True, **tags}, up)

    @pytest.mark.parametrize(("limit", "valid"), [(5, False), (6, True)])
    def test_an_action_longer_than_allowed_is_none(self, limit, valid):
        env = {**CLIMB, "max_action_chars": limit, "max_turns": 1}
        (session,), _ = play(StepwiseAgentLoop, env, script("up two"))
        assert session[0].extra_fields["turns"][0]["valid"] is valid

    def test_the_whole_answer_acts(self):
        env = {**CLIMB, "action_format": "whole", "require_think": False}
        (session,), _ = play(StepwiseAgentLoop, env, script("<think> hard </think> up"))
        assert [row.extra_fields["turns"][0]["action"] for row in session] == ["up", "up"]
        assert session[0].extra_fields["success"] and all(row.extra_fields["turns"][0]["valid"] for row in session)


class TestSpan:
    def test_one_row_with_a_span_per_turn(self):
        (session,), server = play(SpanAgentLoop, {**CLIMB, "kwargs": {"goal": 3}}, up, response_length=99)
        (row,) = session
        decode = server.tokenizer.decode
        assert decode(row.prompt_ids).startswith("<im_start> user goal : reach 3 . now : height 0 . can :")
        trained = [token for token, keep in zip(row.response_ids, row.response_mask, strict=True) if keep]
        assert trained == [token for *_, sampled in server.calls for token in sampled]
        masked = decode([token for token, keep in zip(row.response_ids, row.response_mask, strict=True) if not keep])
        user = "<im_start> user now : height {} . can : up , up two , down . <im_end> <im_start> assistant"
        assert masked == " ".join([user.format(1), user.format(2)])
        assert row.response_mask[0] == row.response_mask[-1] == 1

    def test_what_the_server_saw_is_the_row(self):
        (session,), server = play(SpanAgentLoop, {**CLIMB, "kwargs": {"goal": 4}}, script("up", "oops"), response_length=150)
        (row,) = session
        stream = row.prompt_ids + row.response_ids
        for _, sent, _, sampled in server.calls:
            assert stream[: len(sent) + len(sampled)] == sent + sampled
        log_probs = [p for p, keep in zip(row.response_logprobs, row.response_mask, strict=True) if keep]
        assert log_probs == [-(n + 1) - i / 1000 for n, call in enumerate(server.calls) for i in range(len(call[3]))]
        assert all(p == 0.0 for p, keep in zip(row.response_logprobs, row.response_mask, strict=True) if not keep)
        assert (row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) == (
            0,
            len(server.calls) - 1,
        )

    @pytest.mark.parametrize("length", range(1, 60, 3))
    def test_never_longer_than_the_response_length(self, length):
        (session,), server = play(SpanAgentLoop, {**CLIMB, "kwargs": {"goal": 9}}, up, response_length=length)
        (row,) = session
        assert len(row.response_ids) <= length and row.response_mask[-1] == 1
        assert len(row.extra_fields["turns"]) == len(server.calls) >= 1
        assert all(len(sent) - len(row.prompt_ids) + call["max_tokens"] <= length for _, sent, call, _ in server.calls)

    def test_room_for_a_whole_answer(self):
        env = {**CLIMB, "kwargs": {"goal": 9}, "max_tokens_per_turn": 9}
        (session,), server = play(SpanAgentLoop, env, up, response_length=40)
        assert [call["max_tokens"] for _, _, call, _ in server.calls] == [9, 9]
        assert all(turn["valid"] for turn in session[0].extra_fields["turns"])

    def test_stopping_at_the_action_would_break_the_chat(self):
        with pytest.raises(ConfigError, match="stepwise_env"):
            play(SpanAgentLoop, {**CLIMB, "stop_at_action": True}, up)

    def test_a_boundary_token_that_moves_to_the_context(self, monkeypatch):
        """GLM's form: the token that ends a response begins the next message, so verl masks it out."""
        from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult

        def merge(self, prefix, appended, **kwargs):
            return MergeResult(
                token_ids=[*prefix[:-1], *appended],
                appended_token_count=len(appended),
                removed_prefix_token_count=1,
            )

        monkeypatch.setattr(ContinuousTokenBuilder, "_merge_context_token_ids", merge)
        (session,), server = play(SpanAgentLoop, {**CLIMB, "kwargs": {"goal": 2}}, up, response_length=99)
        (row,) = session
        trained = [token for token, keep in zip(row.response_ids, row.response_mask, strict=True) if keep]
        assert trained == server.calls[0][3][:-1] + server.calls[1][3]


@LAYOUTS
class TestBoth:
    def test_rewards_penalties_and_flags_per_turn(self, cls):
        texts = script("up", "go nowhere", "<action> up </action>", "hard", "up two")
        (session,), _ = play(cls, {**CLIMB, "kwargs": {"goal": 4}}, texts, response_length=200)
        turns = [turn for row in session for turn in row.extra_fields["turns"]]
        assert [t["turn"] for t in turns] == [0, 1, 2, 3, 4]
        assert [t["reward"] for t in turns] == [0.0, 0.0, 0.0, 0.0, 1.0]
        assert [t["valid"] for t in turns] == [True, False, False, False, True]
        assert [t["admissible"] for t in turns] == [True, False, True, False, True]
        assert [t["penalty"] for t in turns] == [0.0, 0.1, 0.1, 0.1, 0.0]
        assert [t["action"] for t in turns] == ["up", "go nowhere", "up", "hard", "up two"]
        assert turns[2]["anchor"] == "reach 4\nheight 1" and turns[4]["anchor"] == "reach 4\nheight 2"
        last = session[-1]
        assert last.reward_score == pytest.approx(0.7) and last.num_turns == 10
        assert {row.reward_score for row in session} == {last.reward_score}
        assert last.extra_fields["success"] is True and last.extra_fields["task_type"] == "climb"
        assert last.extra_fields["reward_extra_info"] == pytest.approx(
            {
                "acc": 1.0,
                "success": 1.0,
                "return": 1.0,
                "penalty": 0.3,
                "episode_length": 5.0,
                "valid_actions": 0.4,
                "env_retried": 0.0,
                "cut_answers": 0.0,
                "cut_prompts": 0.0,
                "no_room": 0.0,
            }
        )

    def test_options_of_the_reward(self, cls):
        env = {**CLIMB, "penalty_in_score": False, "invalid_action_penalty": 0.5, "max_turns": 2}
        (session,), _ = play(cls, env, script("nowhere"), response_length=99)
        last = session[-1].extra_fields
        assert session[-1].reward_score == 0.0 and last["reward_extra_info"]["penalty"] == 1.0
        assert last["success"] is False and last["reward_extra_info"]["acc"] == 0.0

    def test_inadmissible_may_count_as_valid(self, cls):
        env = {**CLIMB, "require_admissible": False, "max_turns": 1}
        (session,), _ = play(cls, env, script("nowhere"))
        turn = session[0].extra_fields["turns"][0]
        assert (turn["valid"], turn["admissible"], turn["penalty"]) == (True, False, 0.0)

    @pytest.mark.parametrize(("mode", "action"), [("noop", "look"), ("first", "up")])
    def test_replacement_of_invalid_actions(self, cls, mode, action):
        env = {**CLIMB, "invalid_action": mode, "noop_action": "look", "max_turns": 1}
        (session,), _ = play(cls, env, script("hard hard <think>"))
        assert session[0].extra_fields["turns"][0]["action"] == action

    def test_numbers(self, cls):
        env = {**CLIMB, "action_format": "number", "kwargs": {"goal": 2}}
        (session,), server = play(cls, env, script("2"), response_length=99)
        assert "1 up , 2 up two , 3 down" in server.tokenizer.decode(session[0].prompt_ids)
        assert session[-1].extra_fields["turns"][0]["action"] == "up two" and session[-1].reward_score == 1.0

    def test_turn_limit_is_the_smaller_one(self, cls):
        multi_turn = {"multi_turn": {"max_assistant_turns": 3}}
        for env, turns in (({"max_turns": 2}, 2), ({"max_turns": 7}, 3)):
            (session,), _ = play(cls, {**CLIMB, **env}, script("down"), response_length=200, rollout=multi_turn)
            assert session[-1].extra_fields["reward_extra_info"]["episode_length"] == turns

    @pytest.mark.parametrize(
        ("row", "goal"),
        [
            ({"extra_info": {"seed": 2, "index": 1}}, 4),
            ({"extra_info": {"index": 1}}, 3),
            ({"extra_info": {"seed": 0, "options": {"goal": 7, "other": None}}}, 7),
            ({"extra_info": {"seed": 0, "options": '{"goal": 7, "other": null}'}}, 7),
        ],
    )
    def test_a_row_chooses_its_episode(self, cls, row, goal):
        (session,), server = play(cls, CLIMB, up, row=row, response_length=300)
        assert f"goal : reach {goal} ." in server.tokenizer.decode(session[0].prompt_ids)

    def test_groups_share_an_episode_without_a_seed(self, cls):
        sessions, _ = play(cls, CLIMB, up, row={"extra_info": None, "uid": "abc"}, n=4, response_length=200)
        assert len({tuple(session[0].prompt_ids) for session in sessions}) == 1

    def test_task_from_the_data_set(self, cls):
        class_path = {"name": "agent_loop_envs:Taskless"}
        prompt = [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "reach down"}]},
        ]
        (session,), server = play(cls, class_path, up, row={"raw_prompt": prompt})
        assert "goal : reach down ." in server.tokenizer.decode(session[0].prompt_ids)
        assert session[0].extra_fields["turns"][0]["anchor"] == "here"

    def test_no_log_probs(self, cls):
        (session,), _ = play(cls, CLIMB, up, log_probs=False, response_length=99)
        assert session[0].response_logprobs is None and "rollout_log_probs" not in session[0].as_dict()

    def test_64_sessions_share_their_environments(self, cls):
        sessions, server = play(cls, {**CLIMB, "num_envs": 5}, up, n=64, response_length=99)
        assert len(sessions) == 64 and all(session[-1].extra_fields["success"] for session in sessions)
        assert len(server.calls) == 128
        assert len([t for t in threading.enumerate() if t.name.startswith("env-")]) == 5

    @pytest.mark.parametrize("failure", ["crash", "hang", "old gym"])
    def test_a_failed_environment_costs_a_retry(self, cls, failure):
        """The first attempt's turns are thrown away: what is trained comes from one whole episode."""
        env = {**TROUBLE, "step_timeout_s": 1.0 if failure == "hang" else 60, "require_admissible": False}
        (session,), server = play(cls, env, script("up", failure, "up", "up"), response_length=99)
        assert len(server.calls) == 4
        trained = [t for row in session for t, keep in zip(row.response_ids, row.response_mask, strict=True) if keep]
        assert trained == server.calls[2][3] + server.calls[3][3]
        last = session[-1].extra_fields
        assert last["success"] and last["reward_extra_info"]["env_retried"] == 1.0
        assert {"crash": "out of order", "hang": "longer than", "old gym": "expected"}[failure] in last["env_error"]

    def test_a_session_that_keeps_failing_is_dropped_and_the_others_go_on(self, cls, caplog):
        def mixed(number, prompt):
            return answer("crash" if "reach 4" in prompt else "up")

        async def main():
            loop, _ = build(cls, {**TROUBLE, "episode_retries": 2}, mixed, response_length=99)
            seeds = [2, 0, 1]
            return await asyncio.gather(*(loop.run({"temperature": 1.0}, extra_info={"seed": s}) for s in seeds))

        failed, *others = asyncio.run(main())
        assert failed == [] and all(session[-1].reward_score == 1.0 for session in others)
        assert sum("attempt" in r.message for r in caplog.records) == 3
        assert any("seed 2 given up (drop)" in r.message and "out of order" in r.message for r in caplog.records)

    @pytest.mark.parametrize(("env", "algorithm"), [({"on_env_failure": "raise"}, {}), ({}, {"filter_groups": {"enable": True}})])
    def test_or_raises(self, cls, env, algorithm):
        (error,), _ = play(cls, {**TROUBLE, **env}, script("crash"), algorithm=algorithm)
        assert "out of order" in str(error)

    def test_a_reset_that_fails_at_first(self, cls):
        (session,), _ = play(cls, {**TROUBLE, "kwargs": {"fail_at_reset": 1}}, up, response_length=99)
        assert session[-1].extra_fields["success"] and "game file is broken" in session[-1].extra_fields["env_error"]

    def test_an_environment_that_always_fails_ends_the_run(self, cls, monkeypatch):
        import transfer_queue

        told = []

        async def put(key, partition_id, tag):
            told.append((partition_id, tag["message"]))

        monkeypatch.setattr(transfer_queue, "async_kv_put", put)
        sessions, _ = play(cls, {**TROUBLE, "max_env_failures": 4, "num_envs": 1}, script("crash"), n=8)
        assert sessions[:2] == [[], []] and isinstance(sessions[-1], PoolBroken)
        assert (BROKEN, str(sessions[-1])) in told and "max_env_failures=4" in told[0][1]

    def test_a_wrong_name_ends_the_run_at_once(self, cls):
        (error,), _ = play(cls, {"name": "household_of_mine"}, up)
        assert isinstance(error, PoolBroken) and "household_of_mine" in str(error)

    def test_an_empty_response_is_no_turn(self, cls, caplog):
        sessions, _ = play(cls, CLIMB, lambda number, prompt: answer("up") if number == 0 else "", response_length=99)
        assert sessions == [[]] and "returned no tokens" in caplog.text

    @pytest.mark.parametrize(
        ("tag", "form"),
        [("think", {}), ("action", {}), ("search", {"action_tags": ["search", "answer"], "require_admissible": False})],
    )
    def test_special_token_tags_are_seen(self, cls, monkeypatch, tag, form):
        import agent_fakes

        def special():
            words = tokenizer()
            words.add_special_tokens({"additional_special_tokens": ["<im_start>", f"<{tag}>", f"</{tag}>"]})
            return words

        monkeypatch.setattr(agent_fakes, "tokenizer", special)
        around = "search" if form else "action"
        said = f"<think> hard </think> <{around}> up </{around}> <im_end>"
        (session,), _ = play(cls, {**CLIMB, **form, "max_turns": 2}, lambda number, prompt: said, response_length=99)
        assert session[-1].extra_fields["reward_extra_info"]["valid_actions"] == 1.0

    def test_settings_of_the_agent_loop_file_win(self, cls):
        from hydra.utils import instantiate
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap

        async def main():
            loop, server = build(cls, {**CLIMB, "max_turns": 9}, up)
            entry = {
                "name": "x",
                "_target_": f"{cls.__module__}.{cls.__name__}",
                "env": {"max_turns": 3, "kwargs": {"goal": 5}},
            }
            return instantiate(
                entry,
                trainer_config=DictConfigWrap(loop.config),
                server_manager=server,
                tokenizer=server.tokenizer,
                processor=None,
                hf_model_type="llama",
                dataset_cls=None,
                data_config=DictConfigWrap(loop.data_config),
                tools=ToolListWrap([]),
            ).settings

        settings = asyncio.run(main())
        assert (settings.name, settings.max_turns, settings.kwargs) == ("agent_envs:Climb", 3, {"goal": 5})


@pytest.mark.parametrize("name", ["stepwise_env", "span_env"])
@pytest.mark.parametrize("seeds", [[0, 1], [0, "broken"]])
def test_through_verls_worker(name, seeds, monkeypatch):
    """verl's V1 worker makes the loop from its registry and runs it; only the store of rows is ours."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    stored = []

    async def put(**kwargs):
        stored.append(kwargs)

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", put)
    worker_cls = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class

    async def main():
        loop, server = build(SpanAgentLoop, TROUBLE, broken_or_up, response_length=99)
        worker = object.__new__(worker_cls)
        worker.config, worker.llm_client, worker.tokenizer, worker.processor = (
            loop.config,
            server,
            server.tokenizer,
            None,
        )
        worker.hf_model_type, worker.dataset_cls, worker.tools, worker.mm_processor_kwargs = (
            "llama",
            None,
            [],
            {},
        )
        worker.reward_loop_worker_handles, worker.distillation_enabled = [], False
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
        for session, seed in enumerate(seeds):
            info = {"seed": 0, "options": {"goal": 9}} if seed == "broken" else {"seed": seed}
            row = {"uid": "u", "session_id": session, "global_steps": 1, "raw_prompt": [], "extra_info": info}
            await worker._run_agent_loop({"temperature": 1.0}, trajectory, agent_name=name, trace=False, **row)

    def broken_or_up(number, prompt):
        return answer("crash" if "reach 9" in prompt else "up")

    asyncio.run(main())
    sessions = [session for session, seed in enumerate(seeds) if seed != "broken"]
    turns = {0: 2, 1: 3}
    assert [put["keys"] for put in stored] == [
        [f"u_{s}_{i}" for i in range(turns[s] if name == "stepwise_env" else 1)] for s in sessions
    ]
    assert len({tuple(sorted(put["fields"].keys())) for put in stored}) == 1
    for put in stored:
        assert all(tag["min_global_steps"] is not None for tag in put["tags"])
        assert [row.sum().item() for row in put["fields"]["rm_scores"].unbind()] == [1.0] * len(put["keys"])
        extra = list(put["fields"]["extra_fields"])
        assert all(fields["reward_extra_info"]["acc"] == 1.0 and fields["turns"] for fields in extra)


def as_turns(sessions):
    """The turns of sessions of one prompt group, as the trainer would see them."""
    flat = [(j, i, row) for j, session in enumerate(sessions) for i, row in enumerate(session)]
    width = max(len(row.response_ids) for *_, row in flat)
    mask = torch.zeros(len(flat), width, dtype=torch.long)
    for r, (*_, row) in enumerate(flat):
        mask[r, : len(row.response_mask)] = torch.tensor(row.response_mask)
    return build_turns(
        mask,
        ["u"] * len(flat),
        [j for j, *_ in flat],
        [i for _, i, _ in flat],
        [False] * len(flat),
        torch.tensor([row.reward_score for *_, row in flat]),
        turn_fields=[row.extra_fields["turns"] for *_, row in flat],
        success_R=[row.extra_fields["success"] for *_, row in flat],
    )


def test_both_layouts_give_the_same_turns():
    actions = {0: ["up two", "down", "up", "up"], 1: ["nowhere", "up two"]}

    def sessions(cls):
        played = [play(cls, {**CLIMB, "kwargs": {"goal": 2}}, script(*actions[s]), response_length=200)[0][0] for s in actions]
        return as_turns(played)

    step, span = sessions(StepwiseAgentLoop), sessions(SpanAgentLoop)
    assert step.num_turns == 3 and step.num_trajectories == 2
    for name in (
        "index_K",
        "trajectory_K",
        "reward_K",
        "penalty_K",
        "valid_K",
        "score_J",
        "success_J",
        "lengths_K",
    ):
        assert torch.equal(getattr(step, name), getattr(span, name)), name
    assert list(step.anchor_K) == list(span.anchor_K)


@LAYOUTS
def test_household(cls):
    """The package's own environment, with an agent that takes the first action and one that only talks."""
    env = {"name": "household", "max_turns": 4, "action_format": "number", "prompt_template": "default"}
    for text, valid in ((answer("1"), 1.0), ("can hard", 0.0)):
        sessions, _ = play(cls, env, lambda number, prompt, text=text: text, n=3, prompt_length=2000, response_length=2000)
        for session in sessions:
            info = session[-1].extra_fields["reward_extra_info"]
            assert info["episode_length"] == 4.0 and info["valid_actions"] == valid
            assert session[-1].extra_fields["task_type"]
