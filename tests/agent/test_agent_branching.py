# SPDX-License-Identifier: Apache-2.0
"""Branching rollouts: the sessions of a prompt, their tickets and rounds, and the leaves that come out."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import random

import pytest
from agent_envs import RELEASE, Cloned, Forgetful, Trouble
from agent_fakes import answer, play

from verl_entropy import envs
from verl_entropy.agent import branching
from verl_entropy.agent.branching import ROLLOUT, Ticket, Tree, seated
from verl_entropy.agent.environment import snapshot_of
from verl_entropy.agent.multispan import SpanAgentLoop
from verl_entropy.agent.pool import EnvPool, close_all
from verl_entropy.agent.stepwise import StepwiseAgentLoop
from verl_entropy.config.settings import ConfigError
from verl_entropy.methods.rollouts.branching import BRANCHING, Branching

LAYOUTS = pytest.mark.parametrize("cls", [StepwiseAgentLoop, SpanAgentLoop])
ROOM = {"response_length": 400, "prompt_length": 400}


@pytest.fixture(autouse=True)
def fresh():
    Cloned.resets = Forgetful.count = Trouble.built = 0
    RELEASE.clear()
    yield
    RELEASE.set()
    close_all()
    assert not branching._trees  # every tree went with its last session


def grow(cls, env, script, n, entropy=lambda prompt: 1.0, told=None, session=None, rollout=None, **settings):
    """n sessions of one prompt under the method."""
    row = {ROLLOUT: json.dumps({"n": n, "state": told or {}}), "global_steps": 1, **(session or {})}
    algorithm = {"entropy": {"rollout": "branching", "branching": settings}}
    given = {"algorithm": algorithm, "log_probs": entropy, "rollout": rollout, **ROOM}
    leaves, server = play(cls, env, script, row=row, n=n, **given)
    for leaf in leaves:
        if isinstance(leaf, BaseException):
            raise leaf
    return leaves, server


def up(number, prompt):
    return answer("up")


def unsure_at(*heights):
    """Entropy 3 where one of these heights is now, else 1."""
    return lambda prompt: 3.0 if any(prompt.rpartition("now :")[2].startswith(f" height {h}") for h in heights) else 1.0


def records(leaf):
    return [turn for row in leaf for turn in row.extra_fields["turns"]]


def origins(leaves):
    return [[turn["origin"] for turn in records(leaf)] for leaf in leaves]


@LAYOUTS
@pytest.mark.parametrize("env", ["agent_envs:Climb", "agent_envs:Cloned"])
def test_leaves_go_on_from_where_the_policy_was_unsure(cls, env):
    """Two roots of four; at height 2 both are unsure, so that the two others go on from there."""
    settings = {"name": env, "kwargs": {"goal": 4}}
    leaves, server = grow(cls, settings, up, 4, unsure_at(2), roots=2)
    assert origins(leaves) == [["0.0"] * 4, ["1.0"] * 4, ["0.0"] * 2 + ["2.0"] * 2, ["1.0"] * 2 + ["3.0"] * 2]
    assert len(server.calls) == 2 * 4 + 2 * 2  # 12 answers for 16 turns
    for leaf, parent in ((2, 0), (3, 1)):
        assert [turn["copied"] for turn in records(leaves[leaf])] == [True, True, False, False]
        same = {"entropy", "action", "observation", "reward", "turn"}
        assert [{k: t[k] for k in same} for t in records(leaves[leaf])[:2]] == [
            {k: t[k] for k in same} for t in records(leaves[parent])[:2]
        ]
        shared = list(zip(leaves[leaf], leaves[parent], strict=True))[: 2 if cls is StepwiseAgentLoop else 1]
        for mine, theirs in shared:
            assert mine.prompt_ids == theirs.prompt_ids
            tokens = len(theirs.response_ids) if cls is StepwiseAgentLoop else theirs.response_mask.index(0)
            assert mine.response_ids[:tokens] == theirs.response_ids[:tokens]
            assert mine.response_logprobs[:tokens] == theirs.response_logprobs[:tokens]
    for leaf in leaves:
        assert leaf[-1].extra_fields["success"] and leaf[-1].reward_score == 1.0 and leaf[-1].num_turns == 8
        assert leaf[-1].extra_fields["reward_extra_info"]["episode_length"] == 4.0
    assert Cloned.resets == (2 if env.endswith("Cloned") else 0)  # the others were not played again


def test_a_branch_keeps_the_request_id_of_its_server_and_an_own_one_where_ids_decide_what_is_drawn():
    env = {"name": "agent_envs:Climb", "kwargs": {"goal": 4}}
    _, server = grow(StepwiseAgentLoop, env, up, 2, unsure_at(2), roots=1)
    assert len({call[0] for call in server.calls}) == 1
    _, server = grow(StepwiseAgentLoop, env, up, 2, unsure_at(2), roots=1, rollout={"full_determinism": True})
    assert [call[0] for call in server.calls].count("det-0-0-1") == 2


@LAYOUTS
def test_the_released_rule_branches_a_turn_late(cls):
    """Unsure at height 1: the paper samples that turn anew, the released code the one after it."""
    env = {"name": "agent_envs:Climb", "kwargs": {"goal": 4}}
    leaves, _ = grow(cls, env, up, 2, unsure_at(1), roots=1)
    assert origins(leaves)[1] == ["0.0"] + ["1.0"] * 3
    leaves, _ = grow(cls, env, up, 2, unsure_at(1), roots=1, rule="released", gamma=10.0, told={"first": 2.9})
    assert origins(leaves)[1] == ["0.0"] * 2 + ["1.0"] * 2


@LAYOUTS
def test_as_many_roots_as_leaves_is_the_plain_loop_bit_for_bit(cls):
    env = {"name": "agent_envs:Climb", "kwargs": {"goal": 3}}
    plain, asked = play(cls, env, up, n=3, log_probs=lambda prompt: 2.0, row={"global_steps": 1}, **ROOM)
    leaves, server = grow(cls, env, up, 3, lambda prompt: 2.0, roots=3)
    assert sorted(str(call[1:]) for call in server.calls) == sorted(str(call[1:]) for call in asked.calls)
    for leaf, other in zip(leaves, plain, strict=True):
        for row, wanted in zip(leaf, other, strict=True):
            for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns"):
                assert getattr(row, name) == getattr(wanted, name)
            own = {"entropy", "origin", "copied", "branched", "prompt_tokens"}
            turns = [{k: v for k, v in turn.items() if k not in own} for turn in row.extra_fields["turns"]]
            assert turns == wanted.extra_fields["turns"]
            assert own.isdisjoint(wanted.extra_fields["turns"][0])


def test_validation_samples_plainly():
    leaves, server = play(
        StepwiseAgentLoop,
        {"name": "agent_envs:Climb", "kwargs": {"goal": 2}},
        up,
        n=3,
        algorithm={"entropy": {"rollout": "branching", "branching": {"roots": 1}}},
        **ROOM,
    )
    assert [len(leaf) for leaf in leaves] == [2, 2, 2] and len(server.calls) == 6


def test_certain_chains_leave_the_rest_as_roots():
    env = {"name": "agent_envs:Climb", "kwargs": {"goal": 2}}
    leaves, _ = grow(StepwiseAgentLoop, env, up, 4, roots=1)
    assert origins(leaves) == [[f"{i}.0"] * 2 for i in range(4)]


def test_one_prompt_in_few_environments_does_not_wait_for_ever():
    """Four roots, two environments: who has none holds nobody up."""
    env = {"name": "agent_envs:Climb", "kwargs": {"goal": 3}, "num_envs": 2}
    leaves, _ = grow(StepwiseAgentLoop, env, up, 8, unsure_at(1, 2), roots=4)
    assert len(leaves) == 8 and all(leaf[-1].extra_fields["success"] for leaf in leaves)


def test_branches_without_an_environment_hold_no_round_up():
    """Two environments; three go on from the root's first branch point, of which one gets a place, and one session still waits."""
    env = {"name": "agent_envs:Climb", "kwargs": {"goal": 4}, "num_envs": 2}
    leaves, _ = grow(StepwiseAgentLoop, env, up, 5, unsure_at(1, 2, 3), roots=1, beam=4)
    assert [leaf[-1].extra_fields["success"] for leaf in leaves] == [True] * 5


# ----------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("cls", "action"),
    [*((cls, action) for cls in (StepwiseAgentLoop, SpanAgentLoop) for action in ("crash", "hang")), (StepwiseAgentLoop, "exit")],
)
def test_n_leaves_though_environments_die(cls, action):
    """Every third answer kills its environment, or hangs it until the time limit; every session is a leaf all the same."""
    env = {"name": "agent_envs:Trouble", "kwargs": {"goal": 4}, "step_timeout_s": 2.0 if action == "hang" else 30.0}
    env |= {"isolation": "process" if action == "exit" else "thread", "episode_retries": 40}
    chance = random.Random(1)

    def script(number, prompt):
        return answer(action if number in (3, 7, 11) or chance.random() < 0.05 else "up")

    leaves, _ = grow(cls, env, script, 6, unsure_at(1, 2, 3), roots=2)
    assert len(leaves) == 6 and all(leaf and leaf[-1].extra_fields["success"] for leaf in leaves)
    errors = [leaf[-1].extra_fields["env_error"] for leaf in leaves]
    assert any(errors)
    for leaf in leaves:  # a leaf is one way through the world, whoever sampled its turns
        assert [turn["turn"] for turn in records(leaf)] == [0, 1, 2, 3]
        assert [turn["observation"] for turn in records(leaf)] == [f"height {h}" for h in range(4)]


def test_a_dead_root_leaves_its_tickets_to_their_holders():
    """The root branches at height 2 and dies for good in the next step; its branch goes on, the last session starts as a root."""
    env = {"name": "agent_envs:Trouble", "kwargs": {"goal": 3}, "episode_retries": 0, "on_env_failure": "drop"}
    texts = {0: "up", 1: "up", 2: "crash"}
    leaves, _ = grow(StepwiseAgentLoop, env, lambda number, prompt: answer(texts.get(number, "up")), 3, unsure_at(2), roots=1)
    assert leaves[0] == []  # verl's rule for an episode whose environment keeps failing
    assert origins(leaves[1:]) == [["0.0", "0.0", "1.0"], ["2.0"] * 3]


def test_an_environment_that_shows_other_things_the_second_time_is_not_gone_on_from():
    env = {"name": "agent_envs:Forgetful", "kwargs": {"goal": 3}}
    leaves, _ = grow(StepwiseAgentLoop, env, up, 2, unsure_at(2), roots=1)
    assert origins(leaves) == [["0.0"] * 3, ["1.1"] * 3]  # the second attempt, as a root
    assert "played again, turn 2 shows" in leaves[1][-1].extra_fields["env_error"]


def test_an_environment_that_can_neither_clone_nor_replay_is_refused():
    with pytest.raises(ConfigError, match="Neither: the rollout method goes on from other sessions' turns"):
        grow(StepwiseAgentLoop, {"name": "agent_envs:Neither"}, up, 2, roots=1)


def test_a_sampler_without_log_probs_is_refused():
    with pytest.raises(RuntimeError, match="calculate_log_probs=True"):
        grow(StepwiseAgentLoop, {"name": "agent_envs:Climb"}, up, 2, False, roots=1)


def test_entropy_of_the_most_likely_words_is_asked_for_and_does_not_travel_with_the_rows():
    leaves, server = grow(StepwiseAgentLoop, {"name": "agent_envs:Climb"}, up, 2, roots=1, measure="top10", vocabulary=100)
    assert all(call[2]["top_logprobs"] == 10 for call in server.calls)
    tokens, p = len(server.calls[0][3]), math.exp(-1.0)
    assert records(leaves[0])[0]["entropy"] == pytest.approx(tokens * 10 * p / math.log(100))
    assert "top_log_probs" not in leaves[0][0].extra_fields


def test_top_log_probs_where_the_server_gives_none():
    scheme = BRANCHING.apply(Branching(measure="top10"), {})
    with pytest.raises(RuntimeError, match="measure=top10"):
        scheme.entropy([-1.0], None)


def test_a_cancelled_parent_gives_its_promise_back():
    """It dies between the decision and the ticket: who waited goes on waiting, and then starts as a root."""

    async def main():
        scheme = BRANCHING.apply(Branching(roots=1, alpha=9.0), {})
        with seated("u", 0, "", lambda: Tree(scheme, 2)) as parent, seated("u", 1, "", lambda: Tree(scheme, 2)) as child:
            assert await parent.start() is None
            waiting = asyncio.create_task(child.start())
            assert await parent.decide(1.0, 1.0, "") == [1]
            parent.tree.leave(parent)
            assert await asyncio.wait_for(waiting, 5) is None

    asyncio.run(main())


def test_a_snapshot_is_the_environment_as_it_was():
    async def main(isolation):
        pool = EnvPool(Cloned, isolation=isolation)
        async with pool.lease() as one, pool.lease() as other:
            await one.reset(3)
            await one.step("up")
            kept = await one.snapshot()
            await one.step("up")
            await other.restore(kept)
            assert (await other.step("down")).observation == "height 0"
            assert (await one.step("up")).observation == "height 3"
        pool.close()

    for isolation in ("thread", "process"):
        asyncio.run(main(isolation))


@pytest.mark.parametrize(
    "name", [n for n, path in envs.ENVIRONMENTS.items() if ".worlds." in path and snapshot_of(n, "", "") == "clone"]
)
def test_a_clone_of_our_own_worlds_goes_on_as_the_original(name):
    """Those that say that they clone."""
    rng, one = random.Random(0), envs.make(name)
    _, info = one.reset(seed=5)
    for _ in range(4):
        info = one.step(rng.choice(info["admissible_actions"]))[-1]
    other = pickle.loads(pickle.dumps(one))
    for _ in range(8):
        action = rng.choice(info["admissible_actions"])
        answer, again = one.step(action), other.step(action)
        assert answer == again
        info = answer[-1]


# ----------------------------------------------------------------------------- decisions


def released(entropies, first, draws, n, m, gamma=0.2):
    """The released loop, written from its description: rounds of all live chains; one draw a chain; a fresh root when none is left.

    Returns who branched from whom after which turn, in order.
    """
    chains, leaves, streak, found = [(i, 0) for i in range(m)], m, 0, []
    while chains or leaves < n:
        if not chains:
            chains, leaves = [(leaves, 0)], leaves + 1
        grown, branched = [], False
        for chain, turn in chains:
            if turn + 1 >= len(entropies[chain]):
                continue
            grown.append((chain, turn + 1))
            if (
                leaves < n
                and (draws(chain, turn + 1) + gamma * (entropies[chain][turn] - first)) * max(0.0, 1 - 0.05 * streak) >= 0.5
            ):
                found.append((leaves, chain, turn))
                grown.append((leaves, turn + 1))
                leaves, branched = leaves + 1, True
        streak = streak + 1 if branched else 0
        chains = sorted(grown)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_released_rule_decision_by_decision(seed):
    """Recorded entropies of eight chains of one to six turns, through the tree, against the loop of the released code."""
    rng = random.Random(seed)
    entropies = [[rng.uniform(0.0, 3.0) for _ in range(rng.randint(1, 6))] for _ in range(8)]
    n, m, first = 8, rng.randint(1, 4), 1.0

    def draws(chain, turn):
        return random.Random(f"0/row/{chain}/{turn}").random()

    found = []

    async def session(number, scheme):
        with seated("u", number, "row", lambda: Tree(scheme, n)) as seat:
            ticket = await seat.start()
            begin = 0 if ticket is None else len(ticket.turns)
            for turn in range(begin, len(entropies[number])):
                await asyncio.sleep(rng.random() / 1000)  # whoever is faster
                if turn > begin or (ticket is None and turn > 0):
                    children = await seat.decide(entropies[number][turn - 1], entropies[number][0], str(turn))
                    found.extend((child, number, turn - 1) for child in children)
                    seat.give(Ticket((None,) * turn, (), (), None, None, None, seat.streak, "", ""))

    async def main():
        scheme = BRANCHING.apply(Branching(rule="released", roots=m), {"first": first})
        await asyncio.gather(*(session(i, scheme) for i in range(n)))

    asyncio.run(main())
    assert sorted(found) == sorted(released(entropies, first, draws, n, m))
