# SPDX-License-Identifier: Apache-2.0
"""ALFWorld: games drawn from the package's material, the splits by scene, downloaded games, and what is said without it."""

import importlib.util
import json
import random

import pytest
from specs.alfworld import missing

from verl_entropy import envs
from verl_entropy.envs.simulators import alfworld_games

needs_alfworld = pytest.mark.skipif(bool(missing()), reason=f"alfworld: {missing()}")


@needs_alfworld
def test_drawn_problems_keep_to_their_scenes_and_tasks():
    import alfworld.gen.constants as constants

    from verl_entropy.envs.simulators.alfworld_scenes import TASK_TYPES, draw

    scenes = {split: set() for split in ("train", "seen", "unseen")}
    for split, seen in scenes.items():
        for task_type in TASK_TYPES:
            drawn = [draw(random.Random(f"{split}{n}"), split, task_type) for n in range(40)]
            found = [problem for problem in drawn if problem is not None]
            assert len(found) > 8, task_type
            for problem in found:
                seen.add(problem.scene)
                kinds = {kind for _, kind in problem.receptacles}
                assert problem.object in [kind for _, kind, _ in problem.objects]
                assert problem.lamp or problem.target in kinds
                assert problem.lamp or not {problem.target} & {"SinkBasin"} or task_type != "pick_clean_then_place_in_recep"
                for _, kind, holder in problem.objects:
                    home = dict(problem.receptacles)[holder]
                    assert kind.endswith("Lamp") or kind in constants.VAL_RECEPTACLE_OBJECTS[home]
    assert scenes["train"] <= set(constants.TRAIN_SCENE_NUMBERS) and scenes["unseen"] <= set(constants.TEST_SCENE_NUMBERS)
    assert not scenes["unseen"] & (scenes["train"] | scenes["seen"])


@needs_alfworld
def test_rows_name_their_split_and_every_task_type():
    from verl_entropy.envs.simulators.alfworld import AlfworldEnv

    rows = AlfworldEnv.episodes("unseen", source="generated")
    assert len(rows) == 6 * alfworld_games.GAMES_PER_TYPE["unseen"]
    assert {r["options"]["split"] for r in rows} == {"unseen"} and len({r["task_type"] for r in rows[:6]}) == 6


@needs_alfworld
def test_a_game_folder_is_played_as_a_download(tmp_path, monkeypatch):
    """Made games have the form of ALFWORLD_DATA: AlfredTWEnv itself lists and accepts them; an unsolvable one it leaves out."""
    monkeypatch.setenv("VERL_ENTROPY_CACHE", str(tmp_path / "cache"))
    task_type = "pick_and_place_simple"
    made = [alfworld_games.game("seen", task_type, index, tmp_path / "data") for index in range(2)]
    game = json.loads(made[1].read_text())
    made[1].write_text(json.dumps({**game, "solvable": False}))
    settings = {"source": "downloaded", "data": str(tmp_path / "data")}
    cls = envs.resolve("alfworld")
    rows = cls.episodes("seen", **settings)
    assert [r["options"]["game"] for r in rows] == [str(made[0].relative_to(tmp_path / "data"))]
    environment = cls(split="seen", **settings)
    observation, info = environment.reset(seed=5)
    assert info["task_type"] == task_type and info["task"] in observation and "help" not in info["admissible_actions"]
    # Without a walkthrough in the file the hand-coded expert is asked.
    game = json.loads(made[0].read_text())
    made[0].write_text(json.dumps({**game, "walkthrough": None}))
    for action in environment.expert_actions():
        _, reward, terminated, _, info = environment.step(action.upper())  # the engine knows lower case only
    assert terminated and info["won"] and reward == 10.0
    environment.close()
    with pytest.raises(ValueError, match=r"no games in json_2\.1\.1/train.*alfworld-download"):
        cls(split="train", **settings)


@needs_alfworld
def test_games_of_a_data_set_are_made_beforehand_and_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("VERL_ENTROPY_CACHE", str(tmp_path))
    cls, row = envs.resolve("alfworld"), {"split": "seen", "task_type": "pick_and_place_simple", "index": 0}
    cls.prepare([row, row, {"game": "a downloaded one"}])
    (made,) = tmp_path.rglob("game.tw-pddl")
    assert "making 1 ALFWorld games" in capfd.readouterr().err
    cls.prepare([row])
    assert not capfd.readouterr().err and alfworld_games.game(*row.values()) == made
    assert not list(tmp_path.rglob("*.part"))


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"alfworld.*pip install alfworld.*GPL-3"):
        alfworld_games.require_alfworld()
    with pytest.raises(ValueError, match="pip install alfworld"):
        alfworld_games.generated_folder()  # what `data` asks for first


def test_folders_appear_whole(tmp_path):
    files = {"traj_data.json": {}, "game.tw-pddl": {"a": 1}}
    alfworld_games._publish(tmp_path / "game", files)
    alfworld_games._publish(tmp_path / "game", {**files, "game.tw-pddl": {"a": 2}})  # the first one stays
    assert json.loads((tmp_path / "game" / "game.tw-pddl").read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["game"]
