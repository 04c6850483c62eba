# SPDX-License-Identifier: Apache-2.0
"""`verl-entropy evaluate`: rates and intervals, an OpenAI-compatible server over real HTTP, and a checkpoint on the CPU."""

import http.server
import itertools
import json
import re
import threading
from pathlib import Path

import pytest

from verl_entropy import cli
from verl_entropy.commands import evaluate as evaluate_command
from verl_entropy.evaluate import samplers, statistics, summary
from verl_entropy.evaluate.play import Outcome, turn_seed
from verl_entropy.quickstart import build


class Add:
    """A sum per step, two steps; the family is the parity of the seed."""

    SPLITS = ("seen", "unseen")

    @classmethod
    def episodes(cls, split, *, count=None, seed=0, **kwargs):
        first = 100 if split == "unseen" else 0
        return [{"seed": first + i, "options": {}, "task_type": "", "prompt": ""} for i in range(count or 6)]

    def reset(self, *, seed=None, options=None):
        if seed == 105:
            raise RuntimeError("this one is broken")
        self.seed, self.step_number = seed, 0
        return self._ask(), {"task": "Add.", "task_type": "even" if seed % 2 == 0 else "odd"}

    def _ask(self):
        return f"What is {self.seed} + {self.step_number} ?"

    def step(self, action):
        right = action == str(self.seed + self.step_number)
        self.step_number += 1
        won = right and self.step_number == 2
        return (
            self._ask(),
            float(won),
            not right or won,
            False,
            {"won": won, "task_type": "even" if self.seed % 2 == 0 else "odd"},
        )

    def close(self):
        pass


ADD = f"{Add.__module__}:Add"
RECIPES = str(Path(__file__).parents[2] / "recipes")


class Handler(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that can add, and fails on request."""

    requests: list
    busy = 0
    broken = ""
    apart = ""
    finish = "stop"

    def log_message(self, *args):
        pass

    def _send(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self._send(200, {"data": [{"id": name} for name in self.models]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests.append((self.path, body))
        if type(self).busy > 0:
            type(self).busy -= 1
            if type(self).busy == 1:
                return self.connection.close()  # no answer at all
            return self._send(503, {"error": "loading"})
        if self.broken:
            return self._send(400, {"error": self.broken})
        chat = self.path.endswith("/chat/completions")
        prompt = body["messages"][-1]["content"] if chat else self.tokenizer.decode(body["prompt"])
        a, b = map(int, re.findall(r"(\d+) \+ (\d+)", prompt)[-1])
        wrong = a % 2 == 1 and body["seed"] % 2 == 1  # odd sums are right half of the time
        text = f"<think> sum </think> <action> {a + b + wrong} </action>"
        message = {"role": "assistant", "content": text}
        if self.apart:  # a server with a reasoning parser
            message = {"role": "assistant", "content": text.split("</think>")[1], self.apart: " sum "}
        choice = {"message": message} if chat else {"text": text}
        choice["finish_reason"] = self.finish
        self._send(200, {"choices": [choice], "usage": {"completion_tokens": 5}})


@pytest.fixture
def server():
    handler = type("Fresh", (Handler,), {"requests": [], "models": ["adder"], "busy": 0, "broken": ""})
    crowd = type(
        "Crowd", (http.server.ThreadingHTTPServer,), {"request_queue_size": 128, "handle_error": lambda *_: None}
    )  # it closes a connection on purpose
    http_server = crowd(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http_server.serve_forever, daemon=True)
    thread.start()
    handler.url = f"http://127.0.0.1:{http_server.server_port}"
    yield handler
    http_server.shutdown()
    http_server.server_close()
    thread.join()


def evaluate(*args):
    return cli.main(["evaluate", *map(str, args)])


# ----------------------------------------------------------------------------- statistics


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17:857-872), Table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_the_published_interval(k, n, low, high):
    assert statistics.wilson(k, n) == pytest.approx((low, high), abs=5e-5)
    assert statistics.wilson(n - k, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 1), (6, 2, 3), (6, 0, 2), (6, 5, 2), (4, 4, 4)])
def test_pass_at_k_counts_the_subsets(n, c, k):
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert statistics.pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_the_bootstrap_draws_tasks():
    """Ten samples of a task are no ten tasks: the interval is that of the tasks' rates."""
    successes, samples = [10, 0] * 20, [10] * 40
    low, high, method = statistics.interval(successes, samples)
    assert method == "bootstrap over tasks" and high - low == pytest.approx(2 * 1.96 * 0.5 / 40**0.5, rel=0.1)
    assert statistics.interval([0, 0, 0], [4, 4, 4])[:2] == statistics.wilson(0, 3)
    assert statistics.interval([1, 0, 1], [1, 1, 1]) == (*statistics.wilson(2, 3), "Wilson")


def test_families_sides_and_failures_are_told_apart():
    outcomes = [Outcome("seen", t, k, t < 2, "a" if t < 2 else "b", turns=4, valid=2) for t in range(4) for k in range(2)]
    outcomes += [Outcome("valid_unseen", 0, k, False, "a", failed="crash") for k in range(2)]
    result = summary.summarise(outcomes, 2.0)
    seen = result["splits"]["seen"]
    assert (
        seen["success"] == 0.5
        and seen["families"]["a"]["success"] == 1.0
        and seen["families"]["b"]["pass_at_k"] == {"1": 0.0, "2": 0.0}
    )
    assert (result["iid"]["success"], result["ood"]["success"]) == (0.5, 0.0)
    assert result["splits"]["valid_unseen"]["environment_failures"] == 2 and seen["valid_actions"] == 0.5
    assert result["throughput"]["episodes_per_s"] == 5.0 and seen["per_seed"] == [0.5, 0.5]


# ----------------------------------------------------------------------------- an endpoint


def test_a_chat_endpoint(server, tmp_path, capsys):
    out = tmp_path / "result.json"
    args = ["--endpoint", server.url, "--env", ADD, "--split", "seen", "--split", "unseen", "--seeds", 4, "--out", out]
    assert evaluate(*args, "--set", "data.env.max_turns=5", "data.env.episode_retries=0") == 0
    printed, result = capsys.readouterr().out, json.loads(out.read_text())
    families = result["splits"]["seen"]["families"]
    assert families["even"]["success"] == 1.0 and 0.0 < families["odd"]["success"] < 1.0
    assert families["odd"]["pass_at_k"]["4"] > families["odd"]["pass_at_k"]["1"] == families["odd"]["success"]
    assert result["splits"]["unseen"]["environment_failures"] == 4 and "count as failures" in printed
    assert "unseen (ood)" in printed and "bootstrap over tasks" in printed and result["throughput"]["tokens_per_s"] > 0
    path, body = server.requests[0]
    assert (
        path == "/v1/chat/completions" and body["model"] == "adder" and body["temperature"] == 0.4 and body["max_tokens"] == 512
    )
    prompt = body["messages"][-1]["content"]
    assert "Task: Add." in prompt and "<think>" in prompt and "What is" in prompt
    assert evaluate(*args, "--set", "data.env.max_turns=5", "data.env.episode_retries=0") == 0
    again = json.loads(out.read_text())
    assert again["outcomes"] == result["outcomes"]  # seeds go to the server


def test_how_much_is_played_is_said_and_bounded(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluate_command, "TASKS", 4)
    out = tmp_path / "result.json"
    args = [
        "--endpoint",
        server.url,
        "--env",
        ADD,
        "--split",
        "seen",
        "--seeds",
        2,
        "--out",
        out,
        "--set",
        "data.env.max_turns=5",
    ]
    for more, tasks in (([], 4), (["--count", "all"], 6), (["--count", 3], 3)):
        assert evaluate(*args[:-2], *more, *args[-2:]) == 0
        assert len(json.loads(out.read_text())["outcomes"]) == 2 * tasks
        said = capsys.readouterr().out
        assert (
            f"seen: {tasks} of {6 if more != ['--count', 3] else 3} tasks (--count), 2 pass(es) (--seeds): {2 * tasks} epi"
            in said
        )


def test_a_busy_server_is_asked_again_and_a_refusal_is_one_message(server, capsys, monkeypatch):
    monkeypatch.setattr(samplers, "FIRST_WAIT_S", 0.01)
    server.busy = 3
    args = ["--endpoint", server.url + "/v1/", "--env", ADD, "--split", "seen", "--count", 1]
    assert evaluate(*args) == 0 and len(server.requests) == 3 + 2
    server.broken = "the context is too long"
    capsys.readouterr()
    assert evaluate(*args) == 2
    error = capsys.readouterr().err
    assert "answered 400" in error and "the context is too long" in error and len(error.splitlines()) == 1


def test_the_key_goes_to_the_endpoint_alone_and_into_no_message(server, capsys, monkeypatch):
    """Neither a redirect nor a key that cannot be sent may show it."""
    key, seen = "sk-very-secret-0123456789", []

    class Elsewhere(server):
        def do_GET(self):
            seen.append(dict(self.headers))
            self._send(200, {"data": [{"id": "adder"}]})

    class Moved(server):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"{elsewhere.url}/v1/models")
            self.send_header("Content-Length", "0")
            self.end_headers()

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Elsewhere, Moved)]
    for one in servers:
        one.url = f"http://127.0.0.1:{one.server_port}"
        threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    elsewhere, moved = servers
    args = ["--env", ADD, "--split", "seen", "--count", 1]
    try:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert evaluate("--endpoint", moved.url, *args) == 2
        assert "answered 302" in capsys.readouterr().err and seen == []
        monkeypatch.setenv("OPENAI_API_KEY", f"{key}\nX-More: 1")
        assert evaluate("--endpoint", server.url, *args) == 2
        error = capsys.readouterr().err
        assert "OPENAI_API_KEY: has spaces" in error and key not in error
    finally:
        for one in servers:
            one.shutdown()
            one.server_close()


def test_token_prompts_are_the_agent_loops(server):
    """With a tokenizer the server gets the ids of the fitted prompt, not messages."""
    pytest.importorskip("transformers")
    import asyncio

    from verl_entropy.agent.settings import AgentSettings
    from verl_entropy.data.expert_turns import TurnWriter, prompt_builder
    from verl_entropy.data.source import tasks
    from verl_entropy.evaluate.play import Ask, play
    from verl_entropy.quickstart.build import word_level

    words = "<unk> <|im_start|> <|im_end|> user assistant goal now : ? . + what is add".split() + [str(i) for i in range(10)]
    server.tokenizer = tokenizer = word_level(words, eos_token="<|im_end|>")
    settings = AgentSettings.from_mappings({"name": ADD, "prompt_template": "compact", "history_length": 0})
    writer = TurnWriter(settings, tokenizer, 40, 8)
    endpoint = samplers.Endpoint(server.url, samplers.Sampling(max_tokens=8, stop_token_ids=(7,)), tokens=True, concurrency=2)
    ask = Ask(prompt_builder(settings), endpoint, 40, 48, writer.tokenize)
    outcomes = asyncio.run(play(settings, [("seen", tasks(ADD, "seen", count=1))], ask))
    endpoint.close()
    path, body = server.requests[0]
    assert path == "/v1/completions" and body["prompt"] == writer.prompt("Add.", "What is 0 + 0 ?", [], (), 1).token_ids
    assert body["stop_token_ids"] == [7] and outcomes[0].success and outcomes[0].tokens == 10


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_a_thought_that_the_server_took_out_is_put_back(server, tmp_path, key):
    server.apart, out = key, tmp_path / "result.json"
    args = ["--endpoint", server.url, "--env", ADD, "--split", "seen", "--count", 1, "--out", out]
    assert evaluate(*args) == 0
    assert json.loads(out.read_text())["splits"]["seen"]["valid_actions"] == 1.0
    assert evaluate(*args, "--set", "data.env.think_in_prompt=true") == 0
    assert json.loads(out.read_text())["splits"]["seen"]["valid_actions"] == 1.0


def test_a_cut_answer_is_not_played(server, tmp_path, capsys):
    server.finish, out = "length", tmp_path / "result.json"
    assert evaluate("--endpoint", server.url, "--env", ADD, "--split", "seen", "--count", 2, "--out", out) == 0
    seen = json.loads(out.read_text())
    assert seen["splits"]["seen"]["success"] == 0.0 and seen["splits"]["seen"]["cut_answers"] == 1.0
    assert "were cut by --max-tokens=512" in capsys.readouterr().out and seen["outcomes"][0]["ended"] == "terminated"


def test_the_servers_own_sampling_defaults_do_not_count(server, tmp_path, capsys):
    out = tmp_path / "result.json"
    args = ["--endpoint", server.url, "--env", ADD, "--split", "seen", "--count", 1, "--out", out]
    neutral = {"top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert evaluate(*args) == 0
    sampling = json.loads(out.read_text())["sampling"]
    assert sampling == {"temperature": 0.4, "top_p": 1.0, "max_tokens": 512, **neutral}
    assert server.requests[-1][1].items() >= sampling.items()
    assert evaluate(*args, "--no-neutral") == 0
    assert "top_k" not in server.requests[-1][1] and json.loads(out.read_text())["sampling"]["presence_penalty"] == 0.0
    server.broken = "unknown parameter top_k"
    assert evaluate(*args) == 2 and "set --no-neutral" in capsys.readouterr().err


def test_a_growing_chat_holds_its_earlier_turns(server):
    import asyncio

    from verl_entropy.agent.settings import AgentSettings
    from verl_entropy.data.expert_turns import prompt_builder
    from verl_entropy.data.source import tasks
    from verl_entropy.evaluate.play import Ask, play

    settings = AgentSettings.from_mappings({"name": ADD})
    endpoint = samplers.Endpoint(server.url, samplers.Sampling(), concurrency=1)
    ask = Ask(prompt_builder(settings), endpoint, 100, 200, agent_loop="span_env")
    (outcome,) = asyncio.run(play(settings, [("seen", tasks(ADD, "seen", count=1))], ask))
    endpoint.close()
    second = server.requests[1][1]["messages"]
    assert outcome.success and [m["role"] for m in second] == ["user", "assistant", "user"]
    assert "<action> 0 </action>" in second[1]["content"] and "What is 0 + 1 ?" in second[2]["content"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--endpoint", "http://127.0.0.1:9", "--env", ADD], "does not answer"),
        (["--endpoint", "127.0.0.1:9", "--env", ADD], "expected a URL"),
        (["--env", ADD], "checkpoint, --endpoint: give one of them"),
        (["nowhere", "--env", ADD], "no Hugging Face checkpoint"),
        (["nowhere"], "--env: name the environment"),
        (["--endpoint", "http://127.0.0.1:9", "--env", ADD, "--seeds", "0"], "--seeds=0"),
        (["--endpoint", "http://127.0.0.1:9", "--env", ADD, "--temperature", "-1"], "--temperature=-1"),
        (
            ["--endpoint", "http://127.0.0.1:9", "--env", ADD, "--set", "data.env.kwargs.foo=1"],
            f"kwargs={{'foo': 1}}: environment {ADD}",
        ),
        (["--endpoint", "http://127.0.0.1:9", "--recipes", RECIPES, "--recipe", "nope=x"], "--recipe=nope=x: no file"),
    ],
)
def test_wrong_input_is_one_message(capsys, args, says):
    assert evaluate(*args, "--split", "seen") == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1


def test_an_agent_loop_that_cannot_be_played_is_refused(capsys):
    pytest.importorskip("verl")
    loop = "actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"
    recipe = ["--recipes", RECIPES, "--recipe", "first_look/textworld_express=grpo"]
    assert evaluate("--endpoint", "http://127.0.0.1:9", "--split", "dev", *recipe, "--set", loop) == 2
    error = capsys.readouterr().err
    assert f"{loop}: evaluate plays stepwise_env and span_env only" in error and len(error.splitlines()) == 1


def test_a_checkpoint_of_verl_is_to_be_merged(tmp_path, capsys, server):
    (tmp_path / "global_step_3" / "actor").mkdir(parents=True)
    assert evaluate(tmp_path / "global_step_3", "--env", ADD, "--split", "seen") == 2
    assert "verl.model_merger merge" in capsys.readouterr().err
    server.models = ["a", "b"]
    assert evaluate("--endpoint", server.url, "--env", ADD, "--split", "seen") == 2
    assert "Choose one with --model" in capsys.readouterr().err


# ----------------------------------------------------------------------------- a checkpoint on the CPU


def test_a_checkpoint_plays_the_same_alone_and_in_a_crowd(tmp_path):
    """The random numbers belong to the episode and its turn, not to the batch."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from verl_entropy.quickstart import build

    tokenizer, folder = build.build_tokenizer(), tmp_path / "model"
    build.build_model(len(tokenizer), 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = [
        "data.env.kwargs.difficulty=tiny",
        "data.env.max_turns=3",
        "data.env.prompt_template=brief",
        "data.env.show_admissible=false",
    ]
    settings += ["data.max_prompt_length=96", "data.max_response_length=8"]
    found = []
    for concurrency in (1, 6):
        out = tmp_path / f"{concurrency}.json"
        args = [
            "--env",
            "household",
            "--split",
            "seen",
            "--count",
            3,
            "--seeds",
            2,
            "--temperature",
            1.0,
            "--concurrency",
            concurrency,
        ]
        assert evaluate(folder, *args, "--out", out, "--json", "--set", *settings) == 0
        found.append(json.loads(out.read_text()))
    assert found[0]["outcomes"] == found[1]["outcomes"] and len(found[0]["outcomes"]) == 6
    assert all(o["turns"] == 3 and o["tokens"] > 0 and o["task_type"] for o in found[0]["outcomes"])


def test_turns_have_seeds_of_their_own():
    seeds = {turn_seed(s, t) for s in range(50) for t in range(50)}
    assert len(seeds) == 2500 and all(0 <= s < 2**31 for s in seeds)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.safetensors", b"no weights at all", "its weights cannot be loaded"),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Nonsense"}}', "cannot be loaded"),
        ("tokenizer.json", b"{", "cannot be loaded"),
        ("chat_template.jinja", b"{% for m in messages %}{{ m['x'] ", "cannot render a user message"),
    ],
)
def test_a_broken_checkpoint_is_one_line_that_names_it(tmp_path, capsys, file, content, said):
    tokenizer = build.build_tokenizer()
    folder = tmp_path / "checkpoint"
    build.build_model(len(tokenizer), 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / file).write_bytes(content)
    assert cli.main(["evaluate", str(folder), "--env", "household", "--split", "unseen", "--count", "2"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("verl-entropy evaluate: ") and said in error and (str(folder) in error or "chat template" in error)
