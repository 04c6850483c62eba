# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, its width, its exit codes, and that it starts fast."""

import json
import re
import subprocess
import sys

import pytest

from verl_entropy import cli
from verl_entropy.commands import explain
from verl_entropy.config import presets
from verl_entropy.methods import registry

KEY = re.compile(r"\S*(algorithm|actor_rollout_ref)\.\S+|\S+")


def run(capsys, *argv):
    code = cli.main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


def too_wide(text):
    """Lines of more than 80 columns, but for a single word (a configuration key) that has no place to break."""
    return [line for line in text.splitlines() if len(line) > 80 and not KEY.fullmatch(line.strip())]


def test_list_names_every_algorithm_and_preset(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0 and not too_wide(out)
    assert all(a.key in out for a in registry.methods())
    assert set(presets.preset_names()) <= set(re.findall(r"\w+", out))


def test_list_as_json_and_of_one_kind(capsys):
    found = json.loads(run(capsys, "list", "--json", "--kind", "loss")[1])
    assert [a["name"] for a in found["algorithms"]] == registry.names("loss")
    assert set(found["presets"]) == set(presets.preset_names()) and all(found["presets"].values())


@pytest.mark.parametrize("name", sorted({a.name for a in registry.methods()}))
def test_explain_gives_equation_source_key_and_every_setting(capsys, name):
    code, out, _ = run(capsys, "explain", name)
    assert code == 0 and not too_wide(out)
    for a in registry.methods():
        if a.name == name:
            assert a.source.split()[0] in out and a.key in out
            assert all(f"{a.path}.{field}=" in out for field in a.settings.__dataclass_fields__)
            assert re.search(r"=|-coef H|<-", " ".join(explain.equation(a.function)))


def test_explain_tells_conflicts_from_both_sides_and_defaults_as_overrides(capsys):
    for one, other in (("repo_r", "repo_d"), ("repo_d", "repo_r")):
        assert other in json.loads(run(capsys, "explain", one, "--json")[1])[0]["refused_with"]
    out = run(capsys, "explain", "aem")[1]
    assert "aem.temperature=1.0" in out  # 1.0 is no true
    assert "repo_r.target=null" in run(capsys, "explain", "repo_r")[1]


@pytest.mark.parametrize("name", ["epo_decay", "gspo_repo_r"])
def test_explain_of_a_preset_is_its_file(capsys, name):
    code, out, _ = run(capsys, "explain", name)
    assert code == 0 and presets.text(name).strip() in out


def test_explain_of_an_unknown_name_says_the_nearest(capsys):
    code, _, err = run(capsys, "explain", "gigpoo")
    assert code == 2 and "Did you mean gigpo?" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda c: c.name)
def test_help_of_every_command_fits_and_states_its_exit_codes(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command.name, "--help"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0 and not too_wide(out)
    assert "exit codes: 0 done" in out and command.found in " ".join(out.split())


@pytest.mark.parametrize("command", [c for c in cli.COMMANDS if c.name != "table"], ids=lambda c: c.name)
def test_every_command_but_table_has_json(capsys, command):
    with pytest.raises(SystemExit):
        cli.main([command.name, "--help"])
    assert "--json" in capsys.readouterr().out


def test_the_commands_that_need_no_torch_do_not_import_it():
    code = (
        "import sys; from verl_entropy import cli\n"
        "for argv in (['list'], ['explain', 'aem'], ['table'], ['table', 'commands']): cli.main(argv)\n"
        "assert not {'torch', 'verl', 'numpy', 'ray', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_the_glossary_is_printed_without_torch():
    code = (
        "import sys; from verl_entropy import cli; cli.main(['glossary']); assert not {'torch', 'verl', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_glossary_has_every_metric_and_finds_a_word(capsys):
    from verl_entropy.diagnostics import glossary

    found = json.loads(run(capsys, "glossary", "--json")[1])
    assert {e["key"] for e in found} == {e.key for e in glossary.GLOSSARY}
    code, out, _ = run(capsys, "glossary", "duplication")
    assert code == 0 and "duplication" in out and not too_wide(out)
    table = run(capsys, "glossary", "--markdown")[1].splitlines()
    assert len(table) == len(found) + 2 and all(re.search(r"(?<!\\)\|.*\|$", row) for row in table)
    assert run(capsys, "glossary", "nonesuch")[0] == 2
    for word in ("turn_entropy/3", "verl_entropy/turn_entropy/3", "actor/verl_entropy/turn_entropy/3"):
        assert run(capsys, "glossary", word)[1].startswith("verl_entropy/turn_entropy/<k>")
    assert glossary.find("actor/entropy").key == "actor/entropy" and glossary.find("turn_entropy/3/x") is None


def test_strip_head_of_nothing_says_so(capsys, tmp_path):
    pytest.importorskip("torch")
    code, _, err = run(capsys, "strip-head", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 2 and "no such folder" in err


def test_report_diff_and_advise_on_verls_own_log(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for name, offset in (("a", 0.0), ("b", 0.5)):
        lines = [{"step": s, "data": {"actor/entropy": 1.0 - 0.01 * s + offset * (s > 3), "x": 1.0}} for s in range(1, 12)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    code, out, _ = run(capsys, "diff", a, b)
    assert code == 1 and "step 4" in out
    code, out, _ = run(capsys, "diff", a, a, "--json")
    assert code == 0 and json.loads(out)["parted"] is None
    code, out, _ = run(capsys, "advise", a, "--json")
    assert code == int(bool(json.loads(out)["items"]))
    code, out, _ = run(capsys, "report", a, b, "--out", str(tmp_path / "r.html"), "--json")
    assert code == 0 and json.loads(out)["html"] == str(tmp_path / "r.html")
    (tmp_path / "c.jsonl").write_text("".join((tmp_path / "a.jsonl").read_text().splitlines(keepends=True)[:7]))
    assert run(capsys, "diff", a, str(tmp_path / "c.jsonl"))[0] == 1  # equal as far as it goes, but shorter
    assert "<html" in (tmp_path / "r.html").read_text()[:200].lower()
    code, _, err = run(capsys, "report", str(tmp_path / "none.jsonl"))
    assert code == 2 and "none.jsonl" in err


def test_a_missing_library_is_named_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "verl_entropy.runs.report", None)

    def absent(args):
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("verl_entropy.commands.report.run", absent)
    code, _, err = run(capsys, "report", "x")
    assert code == 2 and "pip install 'verl-entropy[report]'" in err and "Traceback" not in err


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m verl_entropy.cli list | head -1"
    out = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in out.stderr and out.stdout.startswith("verl-entropy")


def test_an_unknown_command_says_the_nearest(capsys):
    code, out, err = run(capsys, "lsit")
    assert code == 2 and "Did you mean list?" in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize("argv", [["lsit", "--json"], ["explain", "gigpoo", "--json"], ["advise", "/nowhere", "--json"]])
def test_wrong_input_with_json_prints_json(capsys, argv):
    code, out, err = run(capsys, *argv)
    assert code == 2 and json.loads(out)["error"] and json.loads(out)["exit_code"] == 2 and err.count("\n") == 1


def test_wrong_arguments_with_json_print_json(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "--json", "--nonesuch"])
    assert stopped.value.code == 2 and json.loads(capsys.readouterr().out)["exit_code"] == 2


def _jinja():
    import jinja2

    jinja2.Template("{{ a")


def _tokenizers():
    import tokenizers

    tokenizers.Tokenizer.from_file("/nowhere/tokenizer.json")


def _safetensors():
    import safetensors

    safetensors.deserialize(b"garbage that is no header")


@pytest.mark.parametrize("fault", [_jinja, _tokenizers, _safetensors])
def test_an_exception_of_a_library_is_one_line(capsys, monkeypatch, fault):
    pytest.importorskip(fault.__name__.strip("_").replace("jinja", "jinja2"))
    monkeypatch.setattr("verl_entropy.commands.explain.run", lambda args: fault())
    code, _, err = run(capsys, "explain", "aem")
    assert code == 2 and err.count("\n") == 1 and "Fix: " in err


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def fault(args):
        raise KeyError("ours")

    monkeypatch.setattr("verl_entropy.commands.explain.run", fault)
    with pytest.raises(KeyError):
        cli.main(["explain", "aem"])
