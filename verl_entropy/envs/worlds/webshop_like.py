# SPDX-License-Identifier: Apache-2.0
"""A shop with invented products: WebShop's pages, action grammar and reward rule, without its data. It is not WebShop."""

from __future__ import annotations

from typing import Any

from verl_entropy.envs.tasks import Answer, TaskEnv, at_least, choose
from verl_entropy.envs.webshop_rules import REWARDS, SEARCH_FORM, is_perfect, parse_action, reward_of, task_score
from verl_entropy.envs.worlds.webshop_like_catalogue import SPLITS, Goal, Product, catalogue

RESULTS, PER_PAGE = 50, 10  # WebShop's: at most 50 results, ten a page
MIN_PRODUCTS = 100  # fewer leave a kind without an alternative, so that every search is trivial
BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
PAGES = ("description", "features", "reviews", "attributes")
REFUSED = "That is not possible here."
FAMILY_MATCH = {"kind": 1.0, "category": 0.5, "department": 0.1}
"""WebShop's three type factors; it compares categories and the nouns of titles, this shop its own family tree."""


class WebShopLikeEnv(TaskEnv):
    """Find and buy the product that an instruction describes.

    Pages: search -> results (ten a page) -> item (options, description, features, reviews, attributes, buy now).
    Actions: ``search[words]`` on the search page, ``click[button]`` elsewhere; whatever else costs a turn and changes
    nothing. ``info["admissible_actions"]`` lists the clicks; the search page gives the form
    ``search[<your query>]`` in ``info["action_forms"]``, because every search is allowed.

    The purchase ends the episode with the task score r_type (attributes + options + price) / total in ``info["score"]``;
    ``reward="success"`` pays 10 for a score of 1 and 0 otherwise, ``reward="score"`` pays the score.
    """

    SPLITS = SPLITS

    def __init__(
        self,
        split: str = "train",
        products: int = 1000,
        catalogue_seed: int = 0,
        max_turns: int = 15,
        reward: str = "success",
    ) -> None:
        super().__init__(split, max_turns)
        at_least("products", products, MIN_PRODUCTS)
        at_least("catalogue_seed", catalogue_seed, 0)
        self.reward = choose("reward", reward, REWARDS)
        self._shop = catalogue(products, catalogue_seed)
        self._goal: Goal | None = None

    def expert_actions(self) -> list[str] | None:
        """Search with the instruction's own words, take the first product listed that fits, choose its options, buy."""
        if self._goal is None:
            return None
        actions = [f"search[{self._goal.query}]"]
        for place, product in enumerate(self._found(self._goal.query)):
            if is_perfect(score(product, self._goal.options, self._goal)):
                choices = [f"click[{value}]" for value in self._goal.options.values()]
                turns = [f"click[{NEXT}]"] * (place // PER_PAGE)
                return [*actions, *turns, f"click[{product.code}]", *choices, f"click[{BUY}]"]
        return None

    # -- the adapter's part of TaskEnv

    def _count(self, split: str) -> int:
        return len(self._shop.goals[split])

    def _begin(self, split: str, number: int) -> str:
        self._goal = self._shop.goals[split][number]
        self._score, self._won = 0.0, False
        self._to_search()
        return self._page()

    def _act(self, action: str) -> Answer:
        verb, argument = parse_action(action)
        if verb == "search" and self._at == "search" and argument:
            self._results, self._first, self._at = self._found(argument), 0, "results"
        elif verb == "click" and argument.lower() in self._buttons():
            if argument.lower() == BUY:
                return self._buy()
            self._click(argument.lower())
        else:
            return f"{REFUSED} {self._page()}", 0.0, False
        return self._page(), 0.0, False

    def _details(self) -> dict[str, Any]:
        details = {
            "won": self._won,
            "score": self._score,
            "task": self._goal.instruction,
            "task_type": self._goal.department,
        }
        if self._at == "search":
            return {**details, "action_forms": [SEARCH_FORM]}
        return {**details, "admissible_actions": [f"click[{button}]" for button in self._buttons()]}

    # -- private

    def _found(self, query: str) -> list[Product]:
        return [self._shop.products[number] for number, _ in self._shop.index.search(query, RESULTS)]

    def _to_search(self) -> None:
        self._at, self._results, self._first = "search", [], 0
        self._item: Product | None = None
        self._chosen: dict[str, str] = {}

    def _buttons(self) -> list[str]:
        if self._at == "search":
            return []
        if self._at == "results":
            shown = [product.code for product in self._listed()]
            more = [NEXT] if self._first + PER_PAGE < len(self._results) else []
            return [BACK, *([PREVIOUS] if self._first else []), *more, *shown]
        if self._at == "item":
            values = dict.fromkeys(value for group in self._item.options.values() for value in group)
            return [BACK, PREVIOUS, *values, *PAGES, BUY]
        return [BACK, PREVIOUS]

    def _listed(self) -> list[Product]:
        return self._results[self._first : self._first + PER_PAGE]

    def _click(self, button: str) -> None:
        if button == BACK:
            self._to_search()
        elif self._at == "results":
            if button in (NEXT, PREVIOUS):
                self._first += PER_PAGE if button == NEXT else -PER_PAGE
            else:
                self._item, self._chosen, self._at = self._shop.by_code[button], {}, "item"
        elif button == PREVIOUS:
            self._at = "results" if self._at == "item" else "item"
        elif button in PAGES:
            self._at = button
        else:
            name = next(name for name, values in self._item.options.items() if button in values)
            self._chosen[name] = button

    def _buy(self) -> Answer:
        self._score = score(self._item, self._chosen, self._goal)
        self._won, self._at = is_perfect(self._score), "bought"
        return f"Thank you for your order. [SEP] Score: {self._score:.2f}", reward_of(self._score, self.reward), True

    def _page(self) -> str:
        """The visible texts of the page, as WebShop's text mode joins them."""
        item = self._item
        if self._at == "search":
            parts = ["Instruction:", self._goal.instruction, "Search"]
        elif self._at == "results":
            number = self._first // PER_PAGE + 1
            parts = ["Back to Search", f"Page {number} (Total results: {len(self._results)})"]
            parts += [button for button in self._buttons() if button in (PREVIOUS, NEXT)]
            for product in self._listed():
                parts += [product.code, product.title, f"${product.price:.2f}"]
        elif self._at == "item":
            parts = ["Back to Search", PREVIOUS]
            for name, values in item.options.items():
                picked = f" (chosen: {self._chosen[name]})" if name in self._chosen else ""
                parts += [f"{name}{picked}", *values]
            parts += [item.title, f"Price: ${item.price:.2f}", *(page.capitalize() for page in PAGES), "Buy Now"]
        else:
            pages = {
                "description": item.description,
                "features": item.features,
                "reviews": " ".join(item.reviews) or "No reviews yet.",
                "attributes": ", ".join(item.attributes),
            }
            parts = ["Back to Search", PREVIOUS, pages[self._at]]
        return " [SEP] ".join(parts)


def score(product: Product, chosen: dict[str, str], goal: Goal) -> float:
    """The task score of buying ``product`` with the options ``chosen``."""
    family = next((level for level in FAMILY_MATCH if vars(product)[level] == vars(goal)[level]), None)
    attributes = sum(attribute in product.attributes for attribute in goal.attributes)
    offered = {name: value for name, value in chosen.items() if value in product.options.get(name, ())}
    options = sum(offered.get(name) == value for name, value in goal.options.items())
    price = product.price <= goal.price
    wanted = (len(goal.attributes), len(goal.options))
    return task_score(FAMILY_MATCH.get(family, 0.0), attributes, options, price, wanted)
