# SPDX-License-Identifier: Apache-2.0
"""A catalogue of invented products and the shopping goals drawn from it, both from a seed; every word is this project's."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from functools import lru_cache

from verl_entropy.envs.worlds.search_index import BM25Index

SPLITS = ("train", "dev", "test")
HELD_OUT = {"test": 200, "dev": 100}
"""Goals held out of training; the rest is `train`."""
GOALS_PER_PRODUCT = 2

_COLOURS = ("black", "white", "navy", "red", "olive", "beige", "grey", "teal", "coral", "mustard")
_SIZES = ("x-small", "small", "medium", "large", "x-large", "xx-large")
_SCENTS = ("lavender", "citrus", "cedar", "rose", "unscented", "mint")
_FLAVOURS = ("vanilla", "cocoa", "salted caramel", "lemon", "plain", "hazelnut", "chilli")
_PACKS = ("single", "pack of 2", "pack of 4", "pack of 6", "pack of 12")
_LENGTHS = ("1 meter", "2 meters", "3 meters", "5 meters")
_FINISHES = ("oak", "walnut", "ash", "bamboo", "birch")

# department -> category -> (kinds, attributes, {option: values}, price range)
_Spec = tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]], tuple[int, int]]
DEPARTMENTS: dict[str, dict[str, _Spec]] = {
    "clothing": {
        "tops": (
            ("t-shirt", "hoodie", "rain jacket", "cardigan", "tank top"),
            ("machine washable", "long sleeve", "slim fit", "quick drying", "organic cotton", "wrinkle free", "with pockets"),
            {"color": _COLOURS, "size": _SIZES},
            (12, 90),
        ),
        "footwear": (
            ("running shoes", "ankle boots", "sandals", "house slippers"),
            ("non slip", "memory foam", "water resistant", "arch support", "wide toe", "vegan leather"),
            {"color": _COLOURS, "size": ("36", "37", "38", "39", "40", "41", "42", "43", "44")},
            (18, 140),
        ),
        "bags": (
            ("backpack", "tote bag", "belt bag", "duffel bag"),
            ("padded straps", "laptop sleeve", "water resistant", "foldable", "hidden pocket", "recycled fabric"),
            {"color": _COLOURS},
            (15, 110),
        ),
    },
    "electronics": {
        "audio": (
            ("headphones", "earbuds", "portable speaker", "soundbar"),
            ("noise cancelling", "water resistant", "long battery life", "fast charging", "hands free", "stereo sound"),
            {"color": _COLOURS[:6]},
            (25, 260),
        ),
        "cables": (
            ("charging cable", "video cable", "network cable", "extension cord"),
            ("gold plated", "braided", "high speed", "tangle free", "heavy duty", "right angle"),
            {"color": _COLOURS[:4], "length": _LENGTHS},
            (5, 45),
        ),
        "desk gear": (
            ("wireless mouse", "mechanical keyboard", "webcam", "monitor stand"),
            ("ergonomic", "quiet keys", "plug and play", "height adjustable", "backlit", "low latency"),
            {"color": _COLOURS[:6]},
            (14, 180),
        ),
    },
    "home": {
        "furniture": (
            ("bookshelf", "coffee table", "bar stool", "night stand", "shoe rack"),
            ("easy assembly", "solid wood", "space saving", "scratch resistant", "metal frame", "non slip feet"),
            {"finish": _FINISHES, "size": _SIZES[1:4]},
            (30, 320),
        ),
        "bedding": (
            ("pillowcase", "duvet cover", "throw blanket", "mattress topper"),
            ("machine washable", "hypoallergenic", "breathable", "super soft", "fade resistant", "double sided"),
            {"color": _COLOURS, "size": ("twin", "full", "queen", "king")},
            (14, 150),
        ),
        "lighting": (
            ("desk lamp", "string lights", "night light", "floor lamp"),
            ("dimmable", "energy saving", "touch control", "battery powered", "warm glow", "flicker free"),
            {"color": _COLOURS[:5]},
            (9, 130),
        ),
    },
    "beauty": {
        "skin care": (
            ("face cream", "body lotion", "cleansing balm", "sunscreen"),
            ("fragrance free", "cruelty free", "sensitive skin", "non greasy", "plant based", "fast absorbing"),
            {"scent": _SCENTS, "pack": _PACKS[:3]},
            (6, 60),
        ),
        "hair care": (
            ("shampoo", "conditioner", "hair oil", "detangling brush"),
            ("sulfate free", "color safe", "anti frizz", "cruelty free", "travel size", "damage repair"),
            {"scent": _SCENTS},
            (5, 48),
        ),
    },
    "grocery": {
        "snacks": (
            ("granola bars", "rice crackers", "trail mix", "dried mango"),
            ("gluten free", "low sugar", "high protein", "dairy free", "non gmo", "individually wrapped"),
            {"flavor": _FLAVOURS, "pack": _PACKS},
            (4, 40),
        ),
        "drinks": (
            ("ground coffee", "green tea", "protein shake", "oat drink"),
            ("caffeine free", "fair trade", "low sugar", "shelf stable", "keto friendly", "small batch"),
            {"flavor": _FLAVOURS, "pack": _PACKS},
            (6, 55),
        ),
    },
}

_BRANDS = (
    "Aldermoor", "Brindlewick", "Cassowind", "Dunmere", "Elverstone", "Fernhollow", "Gildenray", "Harrowbay", "Ironlarch",
    "Juniperline", "Kestrelby", "Lumenfold", "Marrowdale", "Northquill", "Osierbrook", "Pelliston", "Quarrymint", "Rookhaven",
    "Saltmarsh", "Thistledown", "Umberfield", "Veldtree", "Willowgate", "Yarrowby",
)  # fmt: skip
_USES = ("everyday use", "travel", "small apartments", "gifts", "the office", "the weekend", "families", "beginners")
_PRAISE = (
    "Exactly as pictured.",
    "Arrived a day late but works well.",
    "Bought a second one for my sister.",
    "Good value for the money.",
    "The packaging could be better.",
)


@dataclass(frozen=True)
class Product:
    """One article; ``options`` maps an option's name to the values on offer."""

    code: str
    brand: str
    department: str
    category: str
    kind: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: float
    description: str
    reviews: tuple[str, ...]

    @property
    def title(self) -> str:
        shown = ", ".join(self.attributes[1:3])
        return f"{self.brand} {self.attributes[0]} {self.kind}" + (f", {shown}" if shown else "")

    @property
    def features(self) -> str:
        return " ".join(f"{attribute.capitalize()}." for attribute in self.attributes)

    @property
    def text(self) -> str:
        """What the search engine reads."""
        values = " ".join(value for group in self.options.values() for value in group)
        return f"{self.title} {self.category} {self.department} {self.features} {values} {self.description}"


@dataclass(frozen=True)
class Goal:
    """What to buy: a kind of product with attributes and option values, for less than a price."""

    kind: str
    category: str
    department: str
    attributes: tuple[str, ...]
    options: dict[str, str]
    price: float

    @property
    def instruction(self) -> str:
        chosen = ", ".join(f"{name} {value}" for name, value in self.options.items())
        wish = f"I need {' and '.join(self.attributes)} {self.kind}" + (f" in {chosen}" if chosen else "")
        return f"{wish}, for less than {self.price:.2f} dollars."

    @property
    def query(self) -> str:
        """Search words that the instruction itself gives."""
        return " ".join((*self.attributes, self.kind, *self.options.values()))


@dataclass(frozen=True)
class Catalogue:
    """Products, the index over their texts, and the goals of every split."""

    products: tuple[Product, ...]
    index: BM25Index
    goals: dict[str, tuple[Goal, ...]]
    by_code: dict[str, Product]


_building = threading.Lock()


def catalogue(products: int, seed: int) -> Catalogue:
    """The catalogue of a seed; one for all environments of a process."""
    with _building:
        return _catalogue(products, seed)


@lru_cache(maxsize=4)
def _catalogue(count: int, seed: int) -> Catalogue:
    rng = random.Random(f"catalogue/{count}/{seed}")
    kinds = [
        (department, category, kind)
        for department, categories in DEPARTMENTS.items()
        for category, spec in categories.items()
        for kind in spec[0]
    ]
    products = tuple(_product(rng, number, *kinds[number % len(kinds)]) for number in range(count))
    index = BM25Index([product.text for product in products], "webshop_like")
    return Catalogue(products, index, _goals(rng, products), {product.code: product for product in products})


def _product(rng: random.Random, number: int, department: str, category: str, kind: str) -> Product:
    _, attributes, options, (low, high) = DEPARTMENTS[department][category]
    mine = tuple(rng.sample(attributes, rng.randint(2, 4)))
    offered = {}
    for name, values in options.items():
        some = sorted(rng.sample(values, rng.randint(2, min(5, len(values)))), key=values.index)
        offered[name] = tuple(some)
    use, brand = rng.choice(_USES), rng.choice(_BRANDS)
    description = f"{kind.capitalize()} by {brand}, made for {use}."
    price = rng.randrange(low * 100, high * 100, 5) / 100
    reviews = tuple(rng.sample(_PRAISE, rng.randint(0, 2)))
    return Product(f"w{number:05d}", brand, department, category, kind, mine, offered, price, description, reviews)


def _goals(rng: random.Random, products: tuple[Product, ...]) -> dict[str, tuple[Goal, ...]]:
    """Goals that at least one product meets; no two with the same wish, so that no split shares one."""
    unique: dict[tuple, Goal] = {}
    for product in products:
        for _ in range(GOALS_PER_PRODUCT):
            attributes = tuple(sorted(rng.sample(product.attributes, rng.randint(1, 2))))
            options = {name: rng.choice(values) for name, values in product.options.items()}
            # The bound is a multiple of ten, one to three steps above the price.
            price = 10.0 * (int(product.price // 10) + rng.randint(1, 3))
            key = (product.kind, attributes, tuple(options.items()))
            goal = Goal(product.kind, product.category, product.department, attributes, options, price)
            unique.setdefault(key, goal)
    goals = list(unique.values())
    rng.shuffle(goals)
    held_out = sum(HELD_OUT.values())
    if len(goals) <= held_out:  # a small catalogue: the same shares as of the default's 2,000
        cuts = (len(goals) // 10, len(goals) * 3 // 20)
    else:
        cuts = (HELD_OUT["test"], held_out)
    parts = (goals[cuts[1] :], goals[cuts[0] : cuts[1]], goals[: cuts[0]])
    return {split: tuple(part) for split, part in zip(SPLITS, parts, strict=True)}
