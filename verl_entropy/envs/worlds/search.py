# SPDX-License-Identifier: Apache-2.0
"""Search-augmented question answering: ``<search> words </search>`` asks a retriever, ``<answer> text </answer>`` ends it."""

from __future__ import annotations

import collections
import logging
import re
import string
from collections.abc import Mapping
from typing import Any

from verl_entropy.envs.tasks import Answer, TaskEnv, at_least, choose, file_of_split, read_rows, text_of
from verl_entropy.envs.worlds.search_corpus import SPLITS, Passage, Question, world
from verl_entropy.envs.worlds.search_retriever import Retriever, embedded, over_http

logger = logging.getLogger(__name__)

HOW = "Write <search> words </search> to search, or <answer> text </answer> to give the answer and end."
PASSAGE_CHARS = 2000  # of one passage; Wikipedia passages of 100 words have about 600
METRICS = ("em", "f1")
_TAG = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_BRACKET = re.compile(r"(search|answer)\s*\[(.*)\]", re.DOTALL | re.IGNORECASE)


class SearchEnv(TaskEnv):
    """Answer a question with the help of a search engine.

    ``retriever``: ``embedded`` (BM25 over ``corpus``, or over a bundled corpus about an invented country) or the URL of a
    server with Search-R1's protocol. ``questions``: a .jsonl or .parquet with ``question`` and ``answer`` (or
    ``golden_answers``), one file or {split: file}; left out: questions about the bundled corpus.
    Reward at the answer: exact match (``reward="em"``) or F1 (``"f1"``); both are in ``info``.
    """

    SPLITS = SPLITS

    def __init__(
        self,
        split: str = "train",
        retriever: str = "embedded",
        questions: str | Mapping[str, str] | None = None,
        corpus: str | None = None,
        topk: int = 3,
        max_turns: int = 4,
        reward: str = "em",
        retriever_timeout_s: float = 10.0,
        retriever_retries: int = 2,
    ) -> None:
        super().__init__(split, max_turns)
        self.topk, self.reward = at_least("topk", topk, 1), choose("reward", reward, METRICS)
        at_least("retriever_timeout_s", retriever_timeout_s, 0.001, whole=False)
        at_least("retriever_retries", retriever_retries, 0)
        self._source = questions
        self._questions: dict[str, tuple[Question, ...]] = {}
        self._read(split)
        self._retriever: Retriever
        if retriever == "embedded":
            self._retriever = embedded(corpus)
        else:
            if corpus is not None:
                raise ValueError(f"corpus={corpus!r} is read by retriever=embedded only; the server has its own. Leave it out")
            self._retriever = over_http(str(retriever), float(retriever_timeout_s), retriever_retries)
        self._question: Question | None = None

    def expert_actions(self) -> list[str] | None:
        """One search per hop, then the answer; None for a user's questions, whose searches nobody knows."""
        if self._question is None or self._question.searches is None:
            return None
        searches = [f"<search> {query} </search>" for query in self._question.searches]
        return [*searches, f"<answer> {self._question.answers[0]} </answer>"]

    # -- the adapter's part of TaskEnv

    def _count(self, split: str) -> int:
        return len(self._read(split))

    def _begin(self, split: str, number: int) -> str:
        self._question = self._read(split)[number]
        self._scores = {"em": 0.0, "f1": 0.0}
        self._won = False
        return HOW

    def _act(self, action: str) -> Answer:
        verb, text = parse_action(action)
        if verb == "search":
            return format_passages(self._retriever.search(text, self.topk)), 0.0, False
        if verb == "answer":
            answers = self._question.answers
            self._scores = {"em": exact_match(text, answers), "f1": f1_score(text, answers)}
            self._won = self._scores["em"] == 1.0
            return "The answer is given.", self._scores[self.reward], True
        return f"This is neither a search nor an answer. {HOW}", 0.0, False

    def _details(self) -> dict[str, Any]:
        return {
            "won": self._won,
            "score": self._scores[self.reward],
            **self._scores,
            "task": self._question.text,
            "task_type": self._question.kind,
        }

    # -- private

    def _read(self, split: str) -> tuple[Question, ...]:
        if split not in self._questions:
            if self._source is None:
                self._questions[split] = world().questions[split]
            else:
                path = file_of_split("questions", self._source, split)
                self._questions[split] = tuple(read_rows("questions", path, _question))
        return self._questions[split]


def parse_action(action: str) -> tuple[str, str]:
    """(``search`` or ``answer``, its text); ("", "") unless there is exactly one of them. ``search[words]`` is read too."""
    tags = _TAG.findall(action)
    bracket = None if tags else _BRACKET.fullmatch(action.strip())
    found = [bracket.groups()] if bracket else tags
    if len(found) != 1 or not found[0][1].strip():
        return "", ""
    return found[0][0].lower(), " ".join(found[0][1].split())


def format_passages(passages: list[Passage]) -> str:
    """The results as the agent reads them."""
    lines = [f"[{i}] {(p.title + ': ') if p.title else ''}{p.text[:PASSAGE_CHARS]}" for i, p in enumerate(passages, 1)]
    return "\n".join(("<information>", *(lines or ["Nothing was found."]), "</information>"))


def normalize_answer(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in bare.split() if word not in ("a", "an", "the"))


def exact_match(prediction: str, answers: tuple[str, ...]) -> float:
    """1 if the normal forms of the prediction and of any accepted answer are equal, 0 else.

    Of texts that have no normal form (articles and punctuation alone) the bare lower-case texts are compared: "The" is not "A".
    """
    return float(any(_key(prediction) == _key(answer) for answer in answers))


def _key(text: str) -> tuple[str, str]:
    normal = normalize_answer(text)
    return normal, "" if normal else " ".join(text.lower().split())


def f1_score(prediction: str, answers: tuple[str, ...]) -> float:
    """The best harmonic mean of word precision and recall over the accepted answers."""
    return max(_f1(normalize_answer(prediction).split(), normalize_answer(answer).split()) for answer in answers)


def _f1(predicted: list[str], wanted: list[str]) -> float:
    common = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    return 2.0 * common / (len(predicted) + len(wanted)) if common else 0.0


skipped: collections.Counter[str] = collections.Counter()
"""Accepted answers of this process that were left out, because articles and punctuation are all they have."""


def _skipped(count: int, what: str) -> None:
    if not skipped["answers"]:
        logger.warning("%s has no word of its own and is left out; further ones are counted, not named", what)
    skipped["answers"] += count


def _question(row: Mapping[str, Any]) -> Question:
    """A row of a user's file; verl's own layout (reward_model.ground_truth.target) is read as well."""
    truth = (row.get("reward_model") or {}).get("ground_truth") if isinstance(row.get("reward_model"), Mapping) else None
    nested = truth.get("target") if isinstance(truth, Mapping) else truth
    given = next((v for v in (row.get("golden_answers"), row.get("answers"), row.get("answer"), nested) if v is not None), None)
    listed = [given] if isinstance(given, str | int | float) else given if isinstance(given, list | tuple) else ()
    texts = [str(answer).strip() for answer in listed if isinstance(answer, str | int | float)]
    answers = tuple(text for text in texts if normalize_answer(text))
    if len(answers) < len(listed):
        _skipped(
            len(listed) - len(answers),
            f"accepted answer {next(a for a in listed if str(a).strip() not in answers)!r} of {str(row.get('question'))[:80]!r}",
        )
    if not answers:
        raise ValueError(f"needs a non-empty 'answer' or 'golden_answers'; it has {', '.join(map(str, row)) or 'nothing'}")
    return Question(text_of(row, "question"), answers, str(row.get("data_source") or "question"))
