# SPDX-License-Identifier: Apache-2.0
"""Search QA: grammar, metrics, both retrievers with their failures, and that the bundled questions can be answered."""

import asyncio
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("bm25s")

from verl_entropy.agent.episode import EpisodeRunner
from verl_entropy.agent.parsing import format_response, parse_response
from verl_entropy.agent.pool import EnvPool
from verl_entropy.agent.prompts import PromptBuilder
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.envs.worlds import search_retriever
from verl_entropy.envs.worlds.search import SearchEnv, exact_match, f1_score, parse_action
from verl_entropy.envs.worlds.search_corpus import SPLITS, world
from verl_entropy.envs.worlds.search_retriever import HttpRetriever, RetrieverError


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("<search> big  river </search>", ("search", "big river")),
        ("I know. <ANSWER>Lake X</ANSWER>", ("answer", "Lake X")),
        ("search[big river]", ("search", "big river")),
        ("<search>a</search><answer>b</answer>", ("", "")),
        ("<search></search>", ("", "")),
        ("<search>a", ("", "")),
        ("<answer>a</search>", ("", "")),
    ],
)
def test_action_grammar(action, parsed):
    assert parse_action(action) == parsed


@pytest.mark.parametrize(
    ("given", "answers", "em", "f1"),
    [
        ("The Lake, Anselm!", ("lake anselm",), 1.0, 1.0),
        ("Lake Bruma", ("Lake Anselm", "lake bruma"), 1.0, 1.0),
        ("near Lake Anselm", ("Lake Anselm",), 0.0, 0.8),  # precision 2/3, recall 1
        ("O'Brien", ("obrien",), 1.0, 1.0),
        ("no idea", ("Lake Anselm",), 0.0, 0.0),
        ("The", ("A",), 0.0, 0.0),
        ("!", ("?",), 0.0, 0.0),
        ("lake lake", ("lake",), 0.0, 2 / 3),  # a word counts as often as it is wanted
    ],
)
def test_metrics_by_hand(given, answers, em, f1):
    assert exact_match(given, answers) == em
    assert f1_score(given, answers) == pytest.approx(f1)


def test_every_bundled_question_is_answered_by_what_its_searches_find():
    env = SearchEnv()
    for split in SPLITS:
        for number in range(env._count(split)):
            env.reset(options={"split": split, "task": number})
            *searches, answer = env.expert_actions()
            found = "".join(env.step(action)[0] for action in searches)
            assert env._question.answers[0] in found
            _, reward, terminated, truncated, info = env.step(answer)
            assert (reward, terminated, truncated, info["won"], info["em"], info["f1"]) == (1.0, True, False, True, 1.0, 1.0)


def test_splits_share_no_question_and_two_hops_need_two_searches():
    texts = {split: {q.text for q in world().questions[split]} for split in SPLITS}
    assert not (texts["train"] & texts["test"] or texts["train"] & texts["dev"] or texts["dev"] & texts["test"])
    env = SearchEnv(split="test")
    hidden = 0
    for question in world().questions["test"]:
        if question.kind == "two_hop":
            first = " ".join(p.text for p in env._retriever.search(question.searches[0], 3))
            hidden += question.answers[0] not in first
    assert hidden >= 50  # the first search alone rarely shows the answer


def test_f1_reward_wrong_answers_and_turn_limit():
    env = SearchEnv(reward="f1", max_turns=2)
    env.reset(seed=0)
    right = env._question.answers[0]
    _, reward, terminated, _, info = env.step(f"<answer>{right} perhaps</answer>")
    assert terminated and 0 < reward < 1 and reward == info["f1"] and not info["won"]
    env.reset(seed=0)
    assert "neither" in env.step("what?")[0] and env.step("<search>x</search>")[3]


# ----------------------------------------------------------------------------- Search-R1's protocol in the agent loop

TAGS = ("search", "answer")


def play(env, texts, seed=0):
    """An episode of the agent loops' runner with these responses, and what the model was told."""
    settings = AgentSettings.from_mappings({"name": "search", "action_tags": list(TAGS), "invalid_action_penalty": 0.01})
    prompts, seen = PromptBuilder(4, False, action_tags=TAGS), []

    class Scripted:
        async def act(self, state):
            seen.append(
                prompts.messages(state.task, state.observation, state.history, state.admissible, state.step)[-1]["content"]
            )
            return texts[state.step - 1]

    async def main():
        pool = EnvPool(lambda: env, num_envs=1)
        try:
            return (await EpisodeRunner(settings, pool).run(Scripted, seed=seed))[0]
        finally:
            pool.close()

    return asyncio.run(main()), seen


def test_bare_blocks_play_an_episode():
    env = SearchEnv()
    env.reset(seed=3)
    experts = env.expert_actions()
    episode, prompts = play(env, [f"<think>I wonder.</think>\n{action}" for action in experts], seed=3)
    assert episode.success and episode.penalty == 0 and all(turn.valid for turn in episode.turns)
    assert [turn.action for turn in episode.turns] == experts
    assert all("exactly one block <search> </search> or <answer> </answer>" in p and "<action>" not in p for p in prompts)
    assert f"action: {experts[0]}\n" in prompts[-1] + "\n" and "<information>" in prompts[-1]


def test_an_answer_without_one_block_is_invalid_and_the_environment_says_how():
    texts = [
        "<think>t</think> Lake X",
        "<think>t</think><search>a</search><answer>b</answer>",
        "<think>t</think><answer>no</answer>",
    ]
    episode, prompts = play(SearchEnv(), texts)
    assert [turn.valid for turn in episode.turns] == [False, False, True] and episode.penalty == pytest.approx(0.02)
    assert "neither a search nor an answer" in prompts[1] and episode.ended == "terminated" and not episode.success


def test_the_experts_answers_are_well_formed_although_their_thoughts_name_the_action():
    env = SearchEnv()
    env.reset(seed=0)
    for action in env.expert_actions():
        parsed = parse_response(
            format_response(action, f"The next step is: {action}", action_tags=TAGS), action_tags=TAGS, strict=True
        )
        assert parsed.valid() and parsed.action == action
        env.step(parsed.action)
    assert env._won


# ----------------------------------------------------------------------------- a retrieval server


GAPS = [{"document": {"contents": contents}} for contents in ("", "Rome\nA city.", " ")]


class Handler(BaseHTTPRequestHandler):
    """Search-R1's server in small; ``server.script`` holds what to do with the next requests."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request))
        act = self.server.script.pop(0) if self.server.script else "ok"
        if act == "slow":
            time.sleep(0.6)
        if isinstance(act, int):
            self.send_error(act)
            return
        documents = [{"document": {"id": str(i), "contents": f'"Title {i}"\nText {i}'}, "score": 1.0} for i in range(5)]
        body = {
            "bare": {"result": [[d["document"] for d in documents]]},
            "odd": {"hits": []},
            "text": None,
            "gaps": {"result": [GAPS]},
        }.get(act, {"result": [documents[: request["topk"]]]})
        data = b"<html>" if act == "text" else json.dumps(body).encode()
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has gone
            self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(search_retriever, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(search_retriever, "_alive", set())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.script, server.requests = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_http_protocol(server):
    env = SearchEnv(retriever=server.url, topk=2)
    env.reset(seed=0)
    seen = env.step("<search>big river</search>")[0]
    assert seen == "<information>\n[1] Title 0: Text 0\n[2] Title 1: Text 1\n</information>"
    assert server.requests[-1] == ("/retrieve", {"queries": ["big river"], "topk": 2, "return_scores": True})
    server.script = ["bare"]
    assert env.step("<search>x</search>")[0] == seen  # without scores
    SearchEnv(retriever=server.url)
    assert len(server.requests) == 3  # asked once whether it lives


@pytest.mark.parametrize("first", [503, "slow"])
def test_a_passing_failure_is_retried(server, first):
    client = HttpRetriever(server.url, 0.3, 2)
    server.script = [first]
    assert len(client.search("x", 3)) == 3 and len(server.requests) == 2


@pytest.mark.parametrize(
    ("script", "says", "requests"),
    [
        ([500, 500, 500], "answered 500", 3),
        (["slow"] * 3, "does not answer", 3),
        ([404], "answered 404", 1),
        (["odd"], "without result", 1),
        (["text"], "not JSON", 1),
    ],
)
def test_a_lasting_failure_is_one_message(server, script, says, requests):
    server.script = script
    with pytest.raises(RetrieverError, match=rf"{server.url}.*{says}.*retriever=embedded"):
        HttpRetriever(server.url, 0.3, 2).search("x", 3)
    assert len(server.requests) == requests


def test_a_dead_retriever_stops_the_start(server, monkeypatch):
    with pytest.raises(ValueError, match=r"127.0.0.1:1/retrieve.*does not answer.*Start the retrieval server"):
        SearchEnv(retriever="http://127.0.0.1:1", retriever_retries=0)


# ----------------------------------------------------------------------------- a user's files


def test_own_questions_and_corpus(tmp_path):
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "train.jsonl"
    corpus.write_text(
        '{"id": "0", "contents": "\\"Moon\\"\\nThe moon is made of rock."}\n{"title": "Sun", "text": "The sun is hot."}\n'
    )
    questions.write_text('{"question": "Of what is the moon made?", "golden_answers": ["rock", "stone"], "data_source": "nq"}\n')
    env = SearchEnv(questions={"train": str(questions)}, corpus=str(corpus))
    _, info = env.reset(seed=0)
    assert info["task_type"] == "nq" and env.expert_actions() is None
    assert "[1] Moon: The moon is made of rock." in env.step("<search>moon</search>")[0]
    assert env.step("<answer>Stone.</answer>")[1] == 1.0
    with pytest.raises(ValueError, match="no file for split 'test'"):
        env.reset(options={"split": "test"})


def test_parquet_in_verls_layout(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [{"question": "Who?", "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann", "Bob"]}}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    env = SearchEnv(questions=str(tmp_path / "q.parquet"))
    env.reset(seed=0)
    assert env._question.answers == ("Ann", "Bob")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["", "{oops"], "line 2"),
        (["", "", '{"question": "a", "answer": ["&", "the", null]}'], "line 3: needs a non-empty 'answer'"),
        (['{"answer": "b"}'], "line 1: needs a non-empty 'question'"),
        (["[1]"], "line 1: expected an object"),
        ([""], "holds no task"),
    ],
)
def test_a_bad_line_is_named(tmp_path, lines, says):
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=rf"questions=.*q\.jsonl.*{says}"):
        SearchEnv(questions=str(file))


def test_bad_elements_are_left_out_counted_and_named_once(tmp_path, caplog, server):
    from verl_entropy.envs.worlds import search

    file = tmp_path / "q.jsonl"
    good = ['{"question": "a", "answer": ["&", "b", "The"]}', '{"question": "c", "answer": ["!", "d"]}']
    file.write_text("\n".join([good[0], "{oops", '{"question": "a"}', good[1]]))
    before = search.skipped["answers"]
    env = SearchEnv(questions=str(file))
    assert [q.answers for q in env._read("train")] == [("b",), ("d",)] and search.skipped["answers"] == before + 3
    said = [r.getMessage() for r in caplog.records]
    assert [s for s in said if "2 of 4 rows are left out" in s and "line 2" in s] and sum(
        "accepted answer" in s for s in said
    ) <= 1
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"contents": ""}\n{"contents": "\\"Rome\\"\\nA city."}')
    assert [p.title for p in SearchEnv(corpus=str(corpus))._retriever.search("city", 3)] == ["Rome"]
    caplog.clear()
    server.script = ["gaps"]
    client = HttpRetriever(server.url, 5.0, 0)
    assert [p.title for p in client.search("city", 3)] == ["Rome"] and client.skipped == 2
    assert sum("left out" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"questions": "/no/file.jsonl"}, "no such file"),
        ({"corpus": "/no/file.jsonl"}, "no such file"),
        ({"retriever": "http://127.0.0.1:1", "corpus": "x"}, "embedded only"),
        ({"retriever_timeout_s": 0}, "retriever_timeout_s"),
    ],
)
def test_wrong_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        SearchEnv(**settings)


def test_a_corrupt_parquet_file_is_one_message(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "q.parquet").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        SearchEnv(questions=str(tmp_path / "q.parquet"))
