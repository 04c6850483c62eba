# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, and its exit status."""

import json

import pytest

from verl_entropy import cli, presets, registry


def run(capsys, *argv):
    code = cli.main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_list_names_every_algorithm_and_preset(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(a.key in out for a in registry.ALGORITHMS)
    assert all(f"+entropy={name}" in out for name in presets.preset_names())


@pytest.mark.parametrize("name", sorted({a.name for a in registry.ALGORITHMS}))
def test_explain_gives_source_key_and_every_setting(capsys, name):
    code, out, _ = run(capsys, "explain", name)
    assert code == 0
    for a in registry.ALGORITHMS:
        if a.name == name:
            assert a.source in out and a.key in out
            assert all(f"{a.path}.{field}" in out for field in a.settings.__dataclass_fields__)


def test_explain_of_an_unknown_name_lists_the_known(capsys):
    code, _, err = run(capsys, "explain", "nonesuch")
    assert code == 2 and "gigpo" in err


def test_doctor_is_content_here(capsys):
    pytest.importorskip("verl")
    code, out, _ = run(capsys, "doctor")
    assert code == 0 and "FAIL" not in out and "entry point verl.plugins" in out


def test_strip_head_of_nothing_says_so(capsys, tmp_path):
    code, _, err = run(capsys, "strip-head", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 2 and "no such folder" in err


def test_report_diff_and_advise_on_verls_own_log(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for name, offset in (("a", 0.0), ("b", 0.5)):
        lines = [{"step": s, "data": {"actor/entropy": 1.0 - 0.01 * s + offset * (s > 3), "x": 1.0}} for s in range(1, 12)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    code, out, _ = run(capsys, "diff", a, b)
    assert code == 0 and "step 4" in out
    code, out, _ = run(capsys, "diff", a, a, "--json")
    assert code == 0 and json.loads(out)
    assert run(capsys, "advise", a)[0] == 0
    assert run(capsys, "report", a, b, "--out", str(tmp_path / "r.html"))[0] == 0
    assert "<html" in (tmp_path / "r.html").read_text()[:200].lower()
    code, _, err = run(capsys, "report", str(tmp_path / "none.jsonl"))
    assert code == 2 and "none.jsonl" in err
