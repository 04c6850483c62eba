# SPDX-License-Identifier: Apache-2.0
"""The READMEs are true: generated parts, links, and the commands, presets, keys and files that they name."""

import importlib.util
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import readme

import verl_entropy
from verl_entropy import cli
from verl_entropy.config import presets

ROOT = Path(__file__).parents[2]
OURS = ("verl_entropy", "recipes", "examples", "patches", "tests")
PAGES = [ROOT / "README.md", *(path for folder in OURS for path in sorted((ROOT / folder).glob("**/README.md")))]
PAGES = [page for page in PAGES if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def read(page):
    return page.read_text(encoding="utf-8")


def code_of(page):
    """What a page shows as shell or as a word of code; comments are none of it."""
    text = re.sub(r"<!--.*?-->", "", read(page), flags=re.S)
    return " ".join(m[1] or m[2] for m in re.finditer(r"^```bash$(.*?)^```$|`([^`\n]+)`", text, re.S | re.M))


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", read(page), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page):
    """Relative links of a page that lead to no file, or to no heading."""
    broken = []
    for target in LINK.findall(read(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", readme.parts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_parts_are_up_to_date(page):
    assert readme.render(page, read(page)) == read(page), "run python tests/readme.py"


def test_every_generated_part_has_its_place():
    with pytest.raises(ValueError, match="expected one line <!-- table: verl-entropy table -->"):
        readme.render(ROOT / "README.md", "a page that lost the comments around its table")
    opened = {(page, words) for page in PAGES for words in re.findall(r"^<!-- (.+) -->\n", read(page), re.M)}
    opened = {(page, words) for page, words in opened if not words.startswith(("end of", "LEAD"))}
    assert opened == {(page, words) for page, places in readme.parts().items() for words in places}


@by_name
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(
        "# A heading, with `code`\n[a](README.md) [b](#a-heading-with-code) [c](#none) [d](none.md) [e](https://x.org)\n"
    )
    assert broken_links(page) == ["#none", "none.md"]


def test_the_first_page_is_short():
    assert len(read(ROOT / "README.md").splitlines()) <= 165
    assert len(read(ROOT / "verl_entropy/README.md").splitlines()) <= 120


def test_every_page_can_be_reached_from_the_first():
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / target.partition("#")[0]).resolve() for target in LINK.findall(read(page))]
        todo += [t / "README.md" if t.is_dir() else t for t in targets if t.name == "README.md" or (t / "README.md").is_file()]
    assert set(PAGES) - reached == set()


@by_name
def test_presets_commands_and_modules_that_are_named_exist(page):
    text = read(page)
    named = {n for group in re.findall(r"\+entropy=\[?([a-z_,]+)", text) for n in group.split(",") if n}
    assert named <= set(presets.preset_names())
    commands = set(re.findall(r"verl-entropy ([a-z][a-z-]+)", code_of(page)))
    choices = next(a for a in cli.parser()._actions if a.dest == "command").choices
    assert commands <= set(choices), commands - set(choices)
    for module in set(re.findall(r"python3? -m (verl_entropy[\w.]*)", text)):
        assert importlib.util.find_spec(module), module


@by_name
def test_scripts_that_are_named_parse(page):
    scripts = set(re.findall(r"(?:bash|sbatch) ((?:examples|tests|patches)/[\w./-]+\.(?:sh|slurm))", read(page)))
    for script in (script for script in scripts if "NAME" not in script):
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


WRITTEN = frozenset({"verl_entropy.json", "config.json", "run.json", "ppo_trainer.yaml"})
"""Names of files that a run or a program writes, or that verl has."""


@pytest.mark.parametrize("page", [p for p in PAGES if "patches" not in p.parts], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_folders_that_are_named_exist(page):
    """Beside the page, or counted from the repository, the package or its hosts; the pages of patches/ name files of verl."""
    names = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|sh|slurm|yaml|md))|[\w.-]+\.json)`", read(page))) - WRITTEN
    names = {name for name in names if not re.search("GROUP|NAME", name)}
    places = (page.parent, ROOT, ROOT / "verl_entropy", ROOT / "verl_entropy/hosts")
    assert [name for name in names if not any((place / name).exists() for place in places)] == []


def description(monkeypatch):
    """What setup.py gives as the page of the package index, and the function that makes it."""
    import setuptools

    given = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    return given, runpy.run_path(str(ROOT / "setup.py"))["long_description"]


def test_links_on_the_package_index_work(monkeypatch):
    given, make = description(monkeypatch)
    for repository, text in (("", make("")), ("https://example.org/o/verl-entropy", make("https://example.org/o/verl-entropy"))):
        targets = LINK.findall(text)
        assert targets and all(target.startswith("https://") for target in targets)
        own = [target for target in targets if repository and target.startswith(repository)]
        assert len(own) == (len([t for t in LINK.findall(read(ROOT / "README.md")) if "://" not in t]) if repository else 0)
        for target in own:
            assert (ROOT / target.removeprefix(f"{repository}/blob/v{verl_entropy.__version__}/")).is_file(), target
    assert "`verl_entropy/README.md`" in make("")
    assert given["long_description"] in (make(""), make()) and given["long_description_content_type"] == "text/markdown"


def test_the_pages_of_the_package_are_in_the_wheel(monkeypatch):
    here, installed = ROOT / "verl_entropy", Path(verl_entropy.__file__).parent
    pages = {path.relative_to(here) for path in here.rglob("*.md")}
    given, _ = description(monkeypatch)
    packed = {path.relative_to(here) for pattern in given["package_data"]["verl_entropy"] for path in here.glob(pattern)}
    assert len(pages) > 5 and pages <= packed
    assert pages == {path.relative_to(installed) for path in installed.rglob("*.md")}


def test_what_ci_runs_is_what_a_user_runs():
    ci = read(ROOT / ".ci/run")
    assert "exec bash tests/run.sh" in ci and "`bash tests/run.sh`" in read(ROOT / "README.md")


def test_the_quickstart_says_what_it_takes():
    words = ["bash", "examples/quickstart.sh", "--help"]
    out = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "quickstart.sh [--preset gigpo,aem,seal]" in out and "bash examples/quickstart.sh\n" in read(ROOT / "README.md")
