# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, at two widths and in both colour schemes: what it draws, what its buttons do, that nothing of a run
runs, that nothing is fetched; and ``watch`` with a run that goes on."""

from __future__ import annotations

import http.server
import shutil
import threading
import time
from pathlib import Path

import pytest
from synthetic_runs import HOSTILE, P, write_run

from verl_entropy.runs.report import build_report
from verl_entropy.runs.report.live import Server, Watched
from verl_entropy.runs.runfile import RunSettings, RunWriter

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver installed")
webdriver = pytest.importorskip("selenium.webdriver")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
FLAGS += ("--disable-component-update", "--disable-sync", "--hide-scrollbars")
BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}


@pytest.fixture(scope="module")
def hits():
    """Paths asked of a local server, and its address."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield asked, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def report(hits, tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    address = hits[1]
    attacks = (
        *HOSTILE,
        f"</style><img src={address}/image>",
        f"</details><script src={address}/script></script>",
        f"<style>@import '{address}/style'</style>",
        "</title><script>document.title='pwned'</script>",
    )
    names = (f"<img src={address}".replace("/", "_"), "<b>b</b>", "<a href='javascript:document.title=1'>c")
    runs = [write_run(root / name, seed=seed, texts=attacks) for seed, name in enumerate(names[:2])]
    runs += [write_run(root / names[2], seed=2, erupts=False, config={"lr": 2})]
    return build_report(runs, root / "page.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def opened(browser, address, width=1200, scheme="light", height=900):
    """The page with everything drawn."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.get_log("browser")
    browser.get(address)
    # Figures are drawn as they come near the window.
    until(browser, "document.querySelectorAll('figure').length > 0")
    for number in range(browser.execute_script("return document.querySelectorAll('figure').length")):
        browser.execute_script("document.querySelectorAll('figure')[arguments[0]].scrollIntoView()", number)
        until(browser, f"document.querySelectorAll('figure')[{number}].querySelector('.main-svg')")
    browser.execute_script("scrollTo(0, 0)")
    return browser


def until(browser, condition, seconds=30.0):
    """Wait for a condition in the page."""
    end = time.monotonic() + seconds
    while not browser.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < end, condition
        time.sleep(0.1)


def button(browser, name, within="document"):
    browser.execute_script(
        f"[...{within}.querySelectorAll('button')].find(b => b.textContent.startsWith(arguments[0])).click()", name
    )


ENTROPY = "document.querySelector('#entropy .plot')"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_it_is_drawn_and_fits(report, browser, hits, tmp_path, width, scheme):
    """Every figure, without a word in the console, a request, or anything of a run that runs."""
    opened(browser, report.html.as_uri(), width, scheme)
    assert browser.get_log("browser") == [] and hits[0] == []
    assert browser.title.startswith("Entropy report: <img src=")
    inner, content = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    assert content <= inner == width
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == BACKGROUND[scheme]
    plots = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(p => [p.getAttribute('aria-label'), p.data.length, "
        "p.getBoundingClientRect().width, p.querySelector('.main-svg').getBoundingClientRect().width])"
    )
    assert len(plots) == len(report.pngs)
    assert all(len(alt) > 60 and traces and abs(box - svg) < 2 and svg <= width for alt, traces, box, svg in plots)
    foreign = "document.images.length + document.querySelectorAll('iframe, object, link').length + document.scripts.length"
    assert browser.execute_script(f"return {foreign}") == 3  # the data and the two scripts of the page
    ink, text = browser.execute_script(
        f"return [{ENTROPY}.layout.font.color, getComputedStyle(document.querySelector('#entropy .xtick text')).fill]"
    )
    assert (ink == "#e6e9ed") == (scheme == "dark") and text == ("rgb(230, 233, 237)" if scheme == "dark" else "rgb(27, 31, 36)")
    shot = tmp_path / "page.png"
    assert browser.save_screenshot(str(shot)) and shot.stat().st_size > 20_000


def test_an_open_page_would_be_caught(browser, hits, tmp_path):
    """The checks of requests and console see what an unescaped page does."""
    page = tmp_path / "open.html"
    page.write_text(f"<img src={hits[1]}/seen><script>console.error('ran')</script>")
    browser.get(page.as_uri())
    time.sleep(0.5)
    assert "/seen" in hits[0] and any("ran" in line["message"] for line in browser.get_log("browser"))
    hits[0].clear()


def test_what_is_injected_later_is_stopped_by_the_policy(report, browser, hits):
    opened(browser, report.html.as_uri())
    browser.execute_script(
        "document.querySelector('main').insertAdjacentHTML('beforeend', arguments[0])",
        f"<img src='{hits[1]}/late' onerror='document.title=1'><b style='color:red' onclick='document.title=2' id=late>x</b>",
    )
    browser.execute_script("document.getElementById('late').click()")
    time.sleep(0.5)
    assert hits[0] == [] and browser.title.startswith("Entropy report")
    assert sum("Content Security Policy" in line["message"] for line in browser.get_log("browser")) >= 3


def test_a_reader_can_look_closer(report, browser):
    """Hover values, log scale, smoothing, zoom and its end, runs on and off."""
    opened(browser, report.html.as_uri())
    browser.execute_script(
        "document.getElementById('entropy').scrollIntoView()"
    )  # what is out of sight is drawn when it comes into sight
    browser.execute_script(f"Plotly.Fx.hover({ENTROPY}, [{{curveNumber: 0, pointNumber: 70}}])")
    until(browser, "document.querySelector('#entropy .hoverlayer text')")
    assert any(c.isdigit() for c in browser.execute_script("return document.querySelector('#entropy .hoverlayer').textContent"))
    assert browser.execute_script(f"return {ENTROPY}.layout.yaxis.type") == "linear"
    button(browser, "Log scale", "document.getElementById('entropy')")
    until(browser, f"{ENTROPY}.layout.yaxis.type === 'log'")
    calm = f"{ENTROPY}.data.find(t => t.name && t.name.includes('javascript')).y"
    rough = browser.execute_script(f"return {calm}")
    browser.execute_script(
        "const s = document.querySelector('#controls select'); s.value = '10'; s.dispatchEvent(new Event('change'))"
    )
    until(browser, f"{calm}[60] !== {rough[60]}")  # the figure is drawn anew some time after the choice
    smooth = browser.execute_script(f"return {calm}")
    assert smooth[60] == pytest.approx(sum(rough[51:61]) / 10) and len(smooth) == len(rough)
    assert "trailing mean of 10 points" in browser.execute_script(
        "return document.querySelector('#entropy figcaption').textContent"
    )
    browser.execute_async_script(f"Plotly.relayout({ENTROPY}, {{'xaxis.range[0]': 20, 'xaxis.range[1]': 40}}).then(arguments[0])")
    assert browser.execute_script(f"return {ENTROPY}.layout.xaxis.range") == [20, 40]
    button(browser, "Reset zoom", "document.getElementById('entropy')")
    until(browser, f"{ENTROPY}.layout.xaxis.range[1] > 100")
    drawn = browser.execute_script(f"return {ENTROPY}.data.length")
    browser.execute_script("document.querySelectorAll('.runlist input')[2].click()")
    until(browser, f"{ENTROPY}.data.length < {drawn}")
    assert browser.execute_script(f"return Boolean({ENTROPY}.data.find(t => t.name && t.name.includes('javascript')))") is False
    button(browser, "All runs")
    until(browser, f"{ENTROPY}.data.length === {drawn}")


def test_a_reader_can_take_the_figures_away(report, browser):
    """PNG and SVG by plotly.js under the page's policy, CSV and the table with the run's numbers."""
    opened(browser, report.html.as_uri())
    for kind, start in (("png", "data:image/png;base64,"), ("svg", "data:image/svg+xml,")):
        image = browser.execute_async_script(
            f"Plotly.toImage({ENTROPY}, {{format: '{kind}', width: 1000, height: 500}}).then(arguments[0], e => arguments[0](String(e)))"
        )
        assert image.startswith(start) and len(image) > 10_000
    browser.execute_script("URL.createObjectURL = (blob) => { window.saved = blob; return '#'; }")
    button(browser, "CSV", "document.getElementById('entropy')")
    lines = browser.execute_async_script("saved.text().then(arguments[0])").splitlines()
    assert lines[0].startswith("step,<img src=") and len(lines) == 121 and lines[120].startswith("120,")
    browser.execute_script("document.querySelector('#entropy details').open = true")
    until(browser, "document.querySelectorAll('#entropy td').length > 300")
    row = browser.execute_script("return [...document.querySelectorAll('#entropy tr')][120].innerText").split("\t")
    assert row == lines[120].split(",") and browser.get_log("browser") == []


def test_trajectories_are_filtered_coloured_and_set_side_by_side(report, browser):
    opened(browser, report.html.as_uri())

    def choose(label, value):
        browser.execute_script(
            "const s = [...document.querySelectorAll('#told label')].find(l => l.textContent.startsWith(arguments[0])).querySelector('select');"
            "s.value = arguments[1]; s.dispatchEvent(new Event('change'))",
            label,
            value,
        )
        return browser.execute_script("return document.querySelector('#told > .note').textContent")

    def text(what):
        return browser.execute_script(f"return [...document.querySelectorAll('#told {what}')].map(n => n.textContent)")

    everything = int(choose("Outcome", "").split()[0])
    correct, wrong = (int(choose("Outcome", value).split()[0]) for value in ("true", "false"))
    assert 0 < correct < everything and correct + wrong == everything
    assert all("wrong" in option for option in text(".pane option"))
    choose("Outcome", "")
    assert len(text(".turn")) == 3 and choose("Turn", "1") and len(text(".turn")) == 1
    assert "turn 1, reward 0, advantage before 0.5, advantage 1" in text(".turn .note")[0]
    assert text(".seen")[0].startswith("You see drawer 1.") and text(".action") == ["open drawer 1"]
    assert text(".turn .text")[0].startswith(
        "I should look in the drawer first . <action> open drawer 1 </action> </span></div><script>"
    )
    choose("Colour", "advantage")
    shades = browser.execute_script(
        "return [...document.querySelectorAll('#told .turn .text span')].map(s => [s.className, s.title])"
    )
    assert shades[0][0].startswith("c") and shades[-1][0].startswith("h") and "advantage -" in shades[0][1]
    choose("Colour", "clip")
    clipped = browser.execute_script(
        "return [...document.querySelectorAll('#told .turn .text span')].filter(s => s.className).map(s => [s.className, s.title])"
    )
    assert [kind for kind, _ in clipped] == ["h6", "c6"] and [title.split()[-1] for _, title in clipped] == ["above", "below"]
    choose("Turn", "")
    button(browser, "Same task before and in an eruption")
    panes = browser.execute_script(
        "return [...document.querySelectorAll('.panes.two .pane')].map(p => [p.querySelector('select').selectedOptions[0].textContent, "
        "p.querySelector('.text').textContent])"
    )
    assert len(panes) == 2 and panes[0][1] == panes[1][1] and "(eruption)" in panes[1][0] and "(eruption)" not in panes[0][0]
    assert browser.get_log("browser") == []


def test_watch_shows_new_steps_within_seconds(browser, tmp_path):
    """A run that goes on: lines grow, the zoom stays, an eruption's figure and trajectories come, a killed server is said."""
    folder = write_run(tmp_path / "run", steps=30)
    with Server(Watched([folder]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        opened(browser, server.address)
        last = f"{ENTROPY}.data.find(t => t.name === 'run').x.at(-1)"
        assert browser.execute_script(f"return {last}") == 30
        assert "30 (1 to 30)" in browser.execute_script("return document.getElementById('runs').nextElementSibling.textContent")
        with RunWriter(folder, RunSettings(flush=False)) as writer:
            writer.step(31, {P + "entropy": 0.5, P + "success": 0.4})
        until(browser, f"{last} === 31", seconds=20)  # asks every two seconds
        assert "31 (1 to 31)" in browser.execute_script("return document.getElementById('runs').nextElementSibling.textContent")
        assert browser.get_log("browser") == []
        server.shutdown()
    until(browser, "document.querySelector('.live').textContent.includes('does not answer')")
    assert browser.execute_script(f"return {last}") == 31 and Path(folder, "steps.jsonl").exists()
