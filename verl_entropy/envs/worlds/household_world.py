# SPDX-License-Identifier: Apache-2.0
"""What a household holds (tables), how rooms are laid out and how an episode is drawn from a seed."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cache

SPLITS = ("train", "seen", "unseen")

# The six families, under the names ALFWorld gives them, so that per-family results read the same.
PICK, LOOK = "pick_and_place_simple", "look_at_obj_in_light"
CLEAN, HEAT, COOL = "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep"
PICK_TWO = "pick_two_obj_and_place"
TASK_TYPES = (PICK, LOOK, CLEAN, HEAT, COOL, PICK_TWO)

GOALS = {
    PICK: "put {object} in {target}",
    LOOK: "look at {object} under {target}",
    CLEAN: "put clean {object} in {target}",
    HEAT: "put hot {object} in {target}",
    COOL: "put cool {object} in {target}",
    PICK_TWO: "put two {object} in {target}",
}

# verb -> (appliance it needs, state it gives). Hot and cool exclude each other.
APPLIANCES = {"clean": ("sinkbasin", "clean"), "heat": ("microwave", "hot"), "cool": ("fridge", "cool")}
TASK_VERB = {CLEAN: "clean", HEAT: "heat", COOL: "cool"}

OPENABLE = frozenset({"fridge", "microwave", "cabinet", "drawer"})
LAMPS = {"bedroom": "desklamp", "livingroom": "floorlamp"}
LAMP_PLACES = ("desk", "sidetable", "dresser", "coffeetable")

# room -> (receptacles that are always there, receptacles drawn from: a name listed twice may come twice)
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kitchen": (
        ("fridge", "microwave", "sinkbasin", "countertop"),
        ("diningtable", "cabinet", "cabinet", "drawer", "shelf", "stove", "garbagecan"),
    ),
    "bedroom": (("desk", "bed"), ("dresser", "sidetable", "drawer", "drawer", "shelf", "armchair")),
    "livingroom": (("sidetable", "sofa"), ("coffeetable", "tvstand", "armchair", "shelf", "drawer", "cabinet")),
    "bathroom": (("bathtub", "toilet"), ("cabinet", "drawer", "shelf", "towelrack", "garbagecan")),
}

# object -> (receptacle types it is found in and may be asked for in, verbs that may be applied to it)
_FOOD = ("fridge", "countertop", "diningtable", "garbagecan")
_DISH = ("cabinet", "shelf", "countertop", "diningtable")
_TOOL = ("drawer", "countertop", "diningtable")
_SMALL = ("desk", "drawer", "sidetable", "dresser", "coffeetable")
_READ = ("desk", "bed", "sofa", "shelf", "coffeetable", "sidetable", "dresser")
_BATH = ("toilet", "bathtub", "cabinet", "drawer", "towelrack")
OBJECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "apple": (_FOOD, ("clean", "heat", "cool")),
    "egg": (_FOOD, ("clean", "heat", "cool")),
    "potato": (_FOOD, ("clean", "heat", "cool")),
    "tomato": (_FOOD, ("clean", "heat", "cool")),
    "bread": (_FOOD, ("heat", "cool")),
    "lettuce": (_FOOD, ("clean", "cool")),
    "mug": ((*_DISH, "desk", "coffeetable", "sidetable"), ("clean", "heat", "cool")),
    "cup": (_DISH, ("clean", "heat", "cool")),
    "plate": (_DISH, ("clean", "heat", "cool")),
    "bowl": (_DISH, ("clean", "cool")),
    "pan": (("stove", "countertop", "cabinet"), ("clean",)),
    "fork": (_TOOL, ("clean",)),
    "spoon": (_TOOL, ("clean",)),
    "knife": (_TOOL, ("clean",)),
    "pen": (_SMALL, ()),
    "pencil": (_SMALL, ()),
    "keys": (_SMALL, ()),
    "watch": ((*_SMALL, "tvstand"), ()),
    "phone": ((*_SMALL, "bed", "sofa"), ()),
    "book": (_READ, ()),
    "laptop": (("desk", "bed", "sofa", "coffeetable"), ()),
    "newspaper": (("sofa", "coffeetable", "armchair", "bed"), ()),
    "pillow": (("bed", "sofa", "armchair"), ()),
    "remote": (("sofa", "armchair", "tvstand", "coffeetable"), ()),
    "vase": (("shelf", "coffeetable", "dresser", "tvstand"), ()),
    "candle": (("toilet", "shelf", "coffeetable", "cabinet"), ()),
    "soap": (_BATH, ("clean",)),
    "cloth": (_BATH, ("clean",)),
}

PLACES = ". Places: "
"""Between a task and the list of receptacles, where the task carries one."""

MAX_PER_RECEPTACLE = 3  # at the start; keeps what is seen at one place to a short sentence


@dataclass(frozen=True)
class Difficulty:
    """Size of the world. `max_plan` bounds the shortest plan (everything known) in turns."""

    houses: tuple[tuple[str, ...], ...]  # room lists; layout i is of kind houses[i % len(houses)]
    extra_receptacles: tuple[int, int]  # how many optional receptacles a room gets
    distractors: tuple[int, int]
    min_plan: int
    max_plan: int
    max_turns: int
    train_layouts: int
    unseen_layouts: int


DIFFICULTIES = {
    # A small kitchen: what a model of 0.2 M parameters masters within a minute of imitation (the quickstart).
    "tiny": Difficulty((("kitchen",),), (1, 1), (0, 1), 3, 6, 8, 4, 2),
    # One room, four to seven receptacles, plans of 3 to 8 turns: what a model of 0.2 M parameters can learn on a CPU.
    "easy": Difficulty((("kitchen",), ("bedroom",), ("livingroom",)), (2, 3), (1, 3), 3, 8, 12, 24, 12),
    # Two or three rooms and up to twenty objects; 50 turns is ALFWorld's usual limit.
    "full": Difficulty(
        (
            ("kitchen", "bedroom"),
            ("kitchen", "livingroom"),
            ("kitchen", "bedroom", "bathroom"),
            ("kitchen", "livingroom", "bathroom"),
            ("kitchen", "livingroom", "bedroom"),
        ),
        (1, 3),
        (8, 14),
        5,
        18,
        50,
        60,
        20,
    ),
}


@dataclass(frozen=True)
class Layout:
    """Rooms with their numbered receptacles, and the lamps with the receptacle each stands on."""

    rooms: dict[str, tuple[str, ...]]
    lamps: dict[str, str]

    @property
    def room_of(self) -> dict[str, str]:
        return {receptacle: room for room, group in self.rooms.items() for receptacle in group}

    @property
    def signature(self) -> str:
        """Equal for two layouts that an agent could not tell apart."""
        return repr((sorted((room, sorted(group)) for room, group in self.rooms.items()), sorted(self.lamps.items())))


@dataclass(frozen=True)
class Episode:
    """A task and the state of the house when it begins."""

    layout: Layout
    task_type: str
    object: str
    target: str  # receptacle type, for LOOK the lamp
    places: dict[str, str]  # item -> receptacle
    room: str

    @property
    def task(self) -> str:
        return GOALS[self.task_type].format(object=self.object, target=self.target)

    @property
    def signature(self) -> str:
        return f"{self.layout.signature} {self.task} {sorted(self.places.items())} {self.room}"


def kind(name: str) -> str:
    """Type of a numbered thing: `drawer 2` -> `drawer`."""
    return name.split()[0]


def _draw_layout(rng: random.Random, rooms: tuple[str, ...], spec: Difficulty) -> Layout:
    counts: dict[str, int] = {}

    def number(name: str) -> str:
        counts[name] = counts.get(name, 0) + 1
        return f"{name} {counts[name]}"

    furnished, lamps = {}, {}
    for room in rooms:
        fixed, optional = ROOMS[room]
        extra = rng.sample(optional, rng.randint(*spec.extra_receptacles))
        furnished[room] = tuple(number(name) for name in (*fixed, *sorted(extra)))
        if room in LAMPS:
            lamps[number(LAMPS[room])] = rng.choice([r for r in furnished[room] if kind(r) in LAMP_PLACES])
    return Layout(furnished, lamps)


@cache
def layouts(difficulty: str, split: str) -> tuple[Layout, ...]:
    """The layouts of a split; those of `unseen` differ from every layout of `train` (and `seen` shares `train`'s)."""
    spec = DIFFICULTIES[difficulty]
    rng, unique = random.Random(f"layouts/{difficulty}"), {}
    total = spec.train_layouts + spec.unseen_layouts
    while len(unique) < total:
        layout = _draw_layout(rng, spec.houses[len(unique) % len(spec.houses)], spec)
        unique.setdefault(layout.signature, layout)
    found = tuple(unique.values())
    return found[spec.train_layouts :] if split == "unseen" else found[: spec.train_layouts]


@cache
def _goals(difficulty: str, split: str, task_type: str) -> tuple[tuple[Layout, tuple[tuple[str, str], ...]], ...]:
    """Every layout of the split that allows the task, with its possible (object, target) pairs."""
    found = []
    for layout in layouts(difficulty, split):
        kinds = {kind(receptacle) for receptacle in layout.room_of}
        pairs = tuple(
            (name, target)
            for name, (places, verbs) in OBJECTS.items()
            if TASK_VERB.get(task_type, "none") in (*verbs, "none")
            for target in ([kind(lamp) for lamp in layout.lamps] if task_type == LOOK else places)
            if (task_type == LOOK or target in kinds) and kinds & (set(places) - {target})
        )
        appliance = APPLIANCES[TASK_VERB[task_type]][0] if task_type in TASK_VERB else None
        if pairs and (appliance is None or appliance in kinds):
            found.append((layout, pairs))
    return tuple(found)


@cache
def possible_tasks(difficulty: str) -> tuple[str, ...]:
    """Task families that every split of a difficulty allows: a kitchen has no lamp, and two objects take a plan of 8 turns."""
    too_long = PICK_TWO if DIFFICULTIES[difficulty].max_plan < 8 else ""
    return tuple(t for t in TASK_TYPES if t != too_long and all(_goals(difficulty, split, t) for split in SPLITS))


def _draw(rng: random.Random, difficulty: str, split: str, task_type: str) -> Episode | None:
    """One candidate episode, or None when the drawn objects do not fit."""
    spec = DIFFICULTIES[difficulty]
    layout, pairs = rng.choice(_goals(difficulty, split, task_type))
    name, target = rng.choice(pairs)
    room_of, places, load = layout.room_of, {}, dict.fromkeys(layout.room_of, 0)

    def put(item: str, avoid: str = "") -> bool:
        homes = OBJECTS[kind(item)][0]
        free = [r for r in room_of if kind(r) in homes and kind(r) != avoid and load[r] < MAX_PER_RECEPTACLE]
        if free:
            places[item] = rng.choice(free)
            load[places[item]] += 1
        return bool(free)

    for number in range(1, 3 if task_type == PICK_TWO else 2):
        if not put(f"{name} {number}", avoid=target):
            return None
    others, counts = [other for other in OBJECTS if other != name], {}
    for other in rng.choices(others, k=rng.randint(*spec.distractors)):
        if put(f"{other} {counts.get(other, 0) + 1}"):
            counts[other] = counts.get(other, 0) + 1
    return Episode(layout, task_type, name, target, places, rng.choice(list(layout.rooms)))


def plan_length(episode: Episode) -> int:
    """Turns an agent needs that knows where everything is and takes the nearest receptacle of each type (greedy)."""
    room_of, turns, here, room, opened = episode.layout.room_of, 0, "", episode.room, set()

    def visit(receptacle: str, inside: bool) -> None:
        nonlocal turns, here, room
        if here != receptacle:
            turns += 1 + (room_of[receptacle] != room)
            here, room = receptacle, room_of[receptacle]
        if inside and kind(receptacle) in OPENABLE and receptacle not in opened:
            opened.add(receptacle)
            turns += 1

    def nearest(name: str) -> str:
        return min((r for r in room_of if kind(r) == name), key=lambda r: room_of[r] != room)

    goal = None
    for item in sorted(item for item in episode.places if kind(item) == episode.object):
        visit(episode.places[item], inside=True)
        turns += 2  # take, and use or move
        if episode.task_type == LOOK:
            lamps = episode.layout.lamps
            visit(min((r for lamp, r in lamps.items() if kind(lamp) == episode.target), key=str), inside=False)
            continue
        if episode.task_type in TASK_VERB:
            visit(nearest(APPLIANCES[TASK_VERB[episode.task_type]][0]), inside=False)
            turns += 1
        goal = goal or nearest(episode.target)
        visit(goal, inside=True)
    return turns


def _in_split(episode: Episode, split: str) -> bool:
    """`train` and `seen` share layouts: a checksum of the whole episode sends it to exactly one of them."""
    held_out = zlib.crc32(episode.signature.encode()) % 5 == 0  # a fifth of all episodes is never trained on
    return split == "unseen" or held_out == (split == "seen")


def draw_episode(seed: int, difficulty: str, split: str, task_types: tuple[str, ...]) -> Episode:
    """The episode of a seed: same arguments, same episode, on every machine and Python version."""
    spec, rng = DIFFICULTIES[difficulty], random.Random(f"{difficulty}/{split}/{seed}")
    task_type = rng.choice(task_types)
    while True:
        episode = _draw(rng, difficulty, split, task_type)
        if episode is None or not _in_split(episode, split):
            continue
        if spec.min_plan <= plan_length(episode) <= spec.max_plan:
            return episode
