# SPDX-License-Identifier: Apache-2.0
"""A small encyclopedia of invented people and places, and one- and two-hop questions about it; all from a seed."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

SPLITS = ("train", "dev", "test")
PEOPLE, TOWNS, RIVERS, COMPANIES, BOOKS = 120, 60, 20, 40, 60
SEED = 20  # any fixed number; another one gives another encyclopedia of the same kind

_STARTS = (
    "Al",
    "Bre",
    "Cor",
    "Dal",
    "Er",
    "Fen",
    "Gar",
    "Hol",
    "Il",
    "Jor",
    "Kel",
    "Lor",
    "Mar",
    "Nor",
    "Or",
    "Pel",
    "Ras",
    "Sel",
)
_MIDDLES = ("a", "ba", "di", "ga", "le", "mi", "no", "ri", "so", "tu", "va", "we")
_TOWN_ENDS = ("bridge", "ford", "haven", "mouth", "stead", "wick", "borough", "dale")
_NAME_ENDS = ("n", "nd", "ra", "s", "th", "la", "x", "mir")
_FAMILY_ENDS = ("ander", "berg", "croft", "mont", "owski", "quist", "shaw", "veld")
_RIVER_ENDS = ("we", "sse", "ne", "ll", "rn", "vy")
_TRADES = ("botanist", "clockmaker", "composer", "geologist", "novelist", "painter", "ship builder", "surgeon", "weaver")
_GOODS = ("bicycles", "lanterns", "telescopes", "sewing machines", "pianos", "fishing nets", "compasses", "tin toys", "umbrellas")
_CROPS = ("barley", "cherries", "flax", "hops", "pears", "rye", "saffron", "walnuts")
_PROVINCES = ("Upper Tamerland", "Lower Tamerland", "Quillmark", "the Vesper Isles", "Ostrany", "Greywold")
_LAKES = ("Lake Anselm", "Lake Bruma", "Lake Cindra", "Lake Dovrel", "Lake Eskil", "Lake Fathom")
_TITLES = (
    "The Glass Orchard", "A Winter of Bells", "Salt on the Stairs", "The Last Ferryman", "Nine Quiet Rooms", "The Copper Tide",
    "Letters to a Lighthouse", "The Patient Cartographer", "Under the Plum Tree", "A Map of Small Hours",
)  # fmt: skip
_VOLUMES = ("", "The Return of ", "Notes on ", "The Making of ", "Before ", "After ")


@dataclass(frozen=True)
class Passage:
    """A text of the corpus."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question, its accepted answers, and (if known) the searches that find the answer."""

    text: str
    answers: tuple[str, ...]
    kind: str
    searches: tuple[str, ...] | None = None


@dataclass(frozen=True)
class World:
    """Passages and the questions of every split."""

    passages: tuple[Passage, ...]
    questions: dict[str, tuple[Question, ...]]


@lru_cache(maxsize=1)
def world() -> World:
    """The bundled corpus."""
    return _World(random.Random(SEED)).world()


class _World:
    """Draws the entities, then writes about them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._taken: set[str] = set()
        self.rivers = {self._name(_RIVER_ENDS): rng.choice(_LAKES) for _ in range(RIVERS)}
        self.towns = {self._name(_TOWN_ENDS): rng.choice(list(self.rivers)) for _ in range(TOWNS)}
        families = [self._name(_FAMILY_ENDS) for _ in range(PEOPLE // 2)]
        towns = list(self.towns)
        self.people = {f"{self._name(_NAME_ENDS)} {rng.choice(families)}": rng.choice(towns) for _ in range(PEOPLE)}
        people = list(self.people)
        self.companies = {f"{self._name(_NAME_ENDS)} Works": rng.choice(people) for _ in range(COMPANIES)}
        titles = [volume + title for volume in _VOLUMES for title in _TITLES]
        self.books = {title: rng.choice(people) for title in titles[:BOOKS]}

    def world(self) -> World:
        passages = (*self._towns(), *self._rivers(), *self._people(), *self._companies(), *self._books())
        found: dict[str, list[Question]] = {split: [] for split in SPLITS}
        for subject, question in self._questions():
            found[_split(subject)].append(question)
        return World(passages, {split: tuple(questions) for split, questions in found.items()})

    def _name(self, ends: tuple[str, ...]) -> str:
        while True:
            name = self._rng.choice(_STARTS) + self._rng.choice(_MIDDLES) + self._rng.choice(ends)
            if name not in self._taken:
                self._taken.add(name)
                return name

    def _towns(self) -> Iterator[Passage]:
        for town, river in self.towns.items():
            province, crop = self._rng.choice(_PROVINCES), self._rng.choice(_CROPS)
            text = f"{town} is a market town in {province}. The river {river} runs through it. Farms around it grow {crop}."
            yield Passage(town, text)

    def _rivers(self) -> Iterator[Passage]:
        for river, lake in self.rivers.items():
            province = self._rng.choice(_PROVINCES)
            yield Passage(river, f"The {river} is a river that rises in the hills of {province} and flows into {lake}.")

    def _people(self) -> Iterator[Passage]:
        for person, town in self.people.items():
            trade, year = self._rng.choice(_TRADES), self._rng.randint(1790, 1910)
            yield Passage(person, f"{person} was a {trade}, born in {year} in the town of {town}.")

    def _companies(self) -> Iterator[Passage]:
        self._goods = {company: self._rng.choice(_GOODS) for company in self.companies}
        for company, person in self.companies.items():
            year = self._rng.randint(1850, 1950)
            yield Passage(company, f"{company} is a company that makes {self._goods[company]}. {person} founded it in {year}.")

    def _books(self) -> Iterator[Passage]:
        for book, person in self.books.items():
            yield Passage(book, f"{book} is a novel by {person}, first printed in {self._rng.randint(1840, 1960)}.")

    def _questions(self) -> Iterator[tuple[str, Question]]:
        """(the entity that decides the split, question)."""
        for person, town in self.people.items():
            yield person, Question(f"In which town was {person} born?", (town,), "one_hop", (person,))
            river = self.towns[town]
            text = f"Which river runs through the town where {person} was born?"
            yield person, Question(text, (river, f"the river {river}"), "two_hop", (person, f"river {town}"))
        for town, river in self.towns.items():
            answers = (river, f"the river {river}")
            yield town, Question(f"Which river runs through {town}?", answers, "one_hop", (f"river {town}",))
            text = f"Into which lake does the river that runs through {town} flow?"
            yield town, Question(text, (self.rivers[river],), "two_hop", (f"river {town}", f"{river} flows into lake"))
        for company, person in self.companies.items():
            yield company, Question(f"Who founded {company}?", (person,), "one_hop", (company,))
            yield company, Question(f"What does {company} make?", (self._goods[company],), "one_hop", (company,))
            text = f"In which town was the founder of {company} born?"
            yield company, Question(text, (self.people[person],), "two_hop", (company, person))
        for book, person in self.books.items():
            yield book, Question(f'Who wrote the novel "{book}"?', (person,), "one_hop", (f"{book} novel",))
            text = f'In which town was the author of the novel "{book}" born?'
            yield book, Question(text, (self.people[person],), "two_hop", (f"{book} novel", person))


def _split(subject: str) -> str:
    """A checksum of the entity decides: a tenth dev, a fifth test, the rest train."""
    share = zlib.crc32(subject.encode()) % 10
    return "dev" if share == 0 else "test" if share <= 2 else "train"
