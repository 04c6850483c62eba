# SPDX-License-Identifier: Apache-2.0
"""Draws ALFWorld problems from what its package carries: ALFRED's 120 scenes, what fits where, and the goals of six tasks."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
LOOK, PICK_TWO = TASK_TYPES[1], TASK_TYPES[5]
# Task -> (property that its object needs, receptacle that gives it and so cannot be the target).
TREATMENT = {
    TASK_TYPES[2]: ("Cleanable", "SinkBasin"),
    TASK_TYPES[3]: ("Heatable", "Microwave"),
    TASK_TYPES[4]: ("Coolable", "Fridge"),
}
LAMPS = ("DeskLamp", "FloorLamp")
LAMP_PLACES = ("Desk", "SideTable", "Dresser", "CoffeeTable", "Shelf", "Sofa", "ArmChair", "DiningTable", "Bed")
# The scenes list which types they have, but only the openable ones one by one; of the others a scene has about so many.
COUNTS = {"Shelf": (2, 4), "CounterTop": (2, 3), "StoveBurner": (4, 4), "SideTable": (1, 2), "DiningTable": (1, 2)}
COUNTS |= {"Cabinet": (4, 8), "Drawer": (3, 6)}
NOT_RECEPTACLES = {"Sink", "Bathtub", "PaintingHanger"}  # their basins are; nothing is ever put on a hanger
DISTRACTOR = 0.6  # share of the object types of a scene that lie about, which gives the 10 to 30 objects of ALFRED's scenes


@dataclass(frozen=True)
class Problem:
    """A task in a furnished scene. ``receptacles`` are (id, type), ``objects`` (id, type, receptacle's id)."""

    task_type: str
    scene: int
    object: str
    target: str
    lamp: str
    receptacles: tuple[tuple[str, str], ...]
    objects: tuple[tuple[str, str, str], ...]
    start: str
    locations: tuple[str, ...]


def draw(rng: random.Random, split: str, task_type: str) -> Problem | None:
    """One candidate; None if the drawn scene or object does not allow the task."""
    c = _constants()
    numbers = c.TEST_SCENE_NUMBERS if split == "unseen" else c.TRAIN_SCENE_NUMBERS
    kinds = [c.SCENE_TYPE[kind] for kind in sorted(c.GOALS_VALID[task_type])]
    scene = rng.choice([n for n in sorted(numbers) if any(n in kind for kind in kinds)])
    types, openable = _layout(scene)
    receptacles = _furnish(rng, types, openable)
    present = {kind for _, kind in receptacles}
    small = sorted(t for t in types & set(c.OBJECTS_SET) - _static() - set(LAMPS) if any(_fits(t, r) for r in present))
    lamp = rng.choice([t for t in LAMPS if t in types] or [""]) if task_type == LOOK else ""
    pairs = _pairs(task_type, small, present)
    if not pairs or (task_type == LOOK and not lamp):
        return None
    wanted, target = rng.choice(pairs)
    count = (2 if task_type == PICK_TWO else 1) + rng.randint(0, 1)
    objects = _place(rng, wanted, count, receptacles, avoid=target)
    for other in small:
        if other != wanted and rng.random() < DISTRACTOR:
            objects += _place(rng, other, rng.choice((1, 1, 2)), receptacles)
    lamps = [row for kind in LAMPS if kind in types for row in _place_lamp(rng, kind, receptacles)]
    if sum(kind == wanted for _, kind, _ in objects) < count or (lamp and not any(kind == lamp for _, kind, _ in lamps)):
        return None
    places = _locations(rng, len(receptacles) + 1)
    return Problem(
        task_type, scene, wanted, "" if lamp else target, lamp, tuple(receptacles), (*objects, *lamps), places[-1], places[:-1]
    )


def trajectory(problem: Problem) -> dict[str, Any]:
    """What ALFWorld reads from traj_data.json."""
    return {
        "task_type": problem.task_type,
        "scene": {"floor_plan": f"FloorPlan{problem.scene}", "scene_num": problem.scene},
        "pddl_params": {
            "object_target": problem.object,
            "parent_target": problem.target,
            "toggle_target": problem.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": []},
    }


def to_pddl(problem: Problem) -> str:
    """The problem in ALFWorld's planning domain."""
    import alfworld.gen.goal_library as goals

    small = sorted(set(_constants().OBJECTS_SET) - _static())
    names = ["agent1 - agent", *(f"{t}Type - otype" for t in small), *(f"{t}Type - rtype" for t in sorted(_static()))]
    names += [f"{identity} - object" for identity, _, _ in problem.objects]
    names += [f"{identity} - receptacle" for identity, _ in problem.receptacles]
    names += [f"{place} - location" for place in (*problem.locations, problem.start)]
    goal = goals.gdict[problem.task_type]["pddl"].format(obj=problem.object, recep=problem.target, toggle=problem.lamp)
    # The goals of the package write # for the hyphen of a type, and close the parenthesis of the problem themselves.
    lines = "\n".join(names), "\n".join(_facts(problem, small)), goal.replace("#", "-").rstrip()
    return "(define (problem generated)\n(:domain alfred)\n(:objects\n{}\n)\n(:init\n{}\n)\n{}".format(*lines)


def _facts(problem: Problem, small: list[str]) -> list[str]:
    c, where = _constants(), dict(zip((r for r, _ in problem.receptacles), problem.locations, strict=True))
    facts = ["(= (total-cost) 0)", f"(atLocation agent1 {problem.start})"]
    for identity, kind in problem.receptacles:
        facts += [f"(receptacleType {identity} {kind}Type)", f"(receptacleAtLocation {identity} {where[identity]})"]
        facts += [f"(openable {identity})"] if kind in c.OPENABLE_CLASS_LIST else []
    facts += [f"(canContain {r}Type {t}Type)" for r in sorted(_static()) for t in small if _fits(t, r)]
    for identity, kind, holder in problem.objects:
        facts += [f"(objectType {identity} {kind}Type)", f"(inReceptacle {identity} {holder})"]
        facts += [f"(objectAtLocation {identity} {where[holder]})"]
        facts += [f"({'toggleable' if kind in LAMPS else 'pickupable'} {identity})"]
        abilities = ("Cleanable", "Heatable", "Coolable", "Sliceable")
        facts += [f"({name.lower()} {identity})" for name in abilities if kind in c.VAL_ACTION_OBJECTS[name]]
        facts += [f"(isReceptacleObject {identity})"] if kind in c.MOVABLE_RECEPTACLES else []
    return facts


def _pairs(task_type: str, small: list[str], present: set[str]) -> list[tuple[str, str]]:
    """(object, target) that the scene and the task allow; for LOOK the target is any place, and not used."""
    ability, appliance = TREATMENT.get(task_type, ("", ""))
    if appliance and appliance not in present:
        return []
    able = _constants().VAL_ACTION_OBJECTS.get(ability, small)
    return [(t, r) for t in small if t in able for r in sorted(present) if _fits(t, r) and r != appliance]


def _furnish(rng: random.Random, types: set[str], openable: list[str]) -> list[tuple[str, str]]:
    found = [(_mangle(name), name.split("|")[0]) for name in openable if name.split("|")[0] in _static()]
    listed = {kind for _, kind in found}
    for kind in sorted(types & _static() - listed):
        low, high = COUNTS.get(kind, (1, 1))
        found += [(_identity(rng, kind), kind) for _ in range(rng.randint(low, high))]
    return found


def _place(
    rng: random.Random, kind: str, count: int, receptacles: list[tuple[str, str]], avoid: str = ""
) -> list[tuple[str, str, str]]:
    homes = [identity for identity, r in receptacles if _fits(kind, r) and r != avoid]
    return [(_identity(rng, kind), kind, rng.choice(homes)) for _ in range(count)] if homes else []


def _place_lamp(rng: random.Random, kind: str, receptacles: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    homes = [identity for identity, r in receptacles if r in LAMP_PLACES]
    return [(_identity(rng, kind), kind, rng.choice(homes))] if homes else []


def _locations(rng: random.Random, count: int) -> tuple[str, ...]:
    cells = rng.sample(range(41 * 41), count)  # ALFRED's grid of quarter metres, 10 m wide
    return tuple(_mangle(f"loc|{cell // 41 - 20}|{cell % 41 - 20}|{rng.randint(0, 3)}|30") for cell in cells)


def _identity(rng: random.Random, kind: str) -> str:
    where = "|".join(f"{rng.uniform(-3, 3):+06.2f}" for _ in range(3))
    # The simulator calls a sink's basin Sink|x|y|z|SinkBasin, and ALFWorld's names depend on that.
    return _mangle(f"{kind.removesuffix('Basin')}|{where}|{kind}" if kind.endswith("Basin") else f"{kind}|{where}")


def _mangle(name: str) -> str:
    for mark, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_"), (",", "_comma_")):
        name = name.replace(mark, word)
    return name


def _fits(kind: str, receptacle: str) -> bool:
    return kind in _constants().VAL_RECEPTACLE_OBJECTS.get(receptacle, ())


def _constants() -> Any:
    import alfworld.gen.constants as constants

    return constants


@functools.cache
def _static() -> frozenset[str]:
    c = _constants()
    return frozenset(set(c.RECEPTACLES) - set(c.MOVABLE_RECEPTACLES) - NOT_RECEPTACLES)


@functools.cache
def _layout(scene: int) -> tuple[set[str], list[str]]:
    folder = Path(_constants().__file__).parent / "layouts"
    types = json.loads((folder / f"FloorPlan{scene}-objects.json").read_text())
    openable = json.loads((folder / f"FloorPlan{scene}-openable.json").read_text())
    return set(types), sorted(openable)
