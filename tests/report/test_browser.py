# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: drawn at desktop and phone width, nothing runs, nothing is fetched."""

from __future__ import annotations

import http.server
import re
import shutil
import subprocess
import threading

import pytest
from synthetic_runs import HOSTILE, write_run

from verl_entropy.runs.report import build_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")


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
    runs = [write_run(root / name, seed=seed, texts=attacks) for seed, name in enumerate(("<img src=x onerror=alert(1)>", "b"))]
    return build_report(runs, root / "page.html")


def browse(page, profile, *options):
    """Standard output and the lines of the page's console."""
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-component-update", "--disable-background-networking")
    command = [
        CHROMIUM,
        *quiet,
        "--no-first-run",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_browser_shows_it_and_runs_nothing(report, hits, tmp_path):
    page, console = browse(report.html, tmp_path / "profile", "--dump-dom")
    assert console == [] and hits[0] == []
    assert "<title>Entropy report</title>" in page and "<script" not in page.lower()
    assert page.count("<img") == len(report.pngs) and page.count("<details") >= 8


@pytest.mark.parametrize("width", [1200, 500])
def test_it_fits_the_width(report, tmp_path, width):
    """A copy with a script (and without the policy that forbids it) measures itself."""
    source = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.html.read_text())
    probe = (
        "<script>document.title=[innerWidth,document.documentElement.scrollWidth,[...document.images].every(i=>i.naturalWidth>0)]"
    )
    copy = tmp_path / "copy.html"
    copy.write_text(source.replace("</body>", f"{probe}</script></body>"))
    page, _ = browse(copy, tmp_path / "profile", f"--window-size={width},1000", "--dump-dom")
    inner, content, loaded = re.search(r"<title>(\d+),(\d+),(\w+)</title>", page).groups()
    assert int(content) <= int(inner) <= width and loaded == "true"
    shot = tmp_path / "page.png"
    browse(report.html, tmp_path / "profile", f"--window-size={width},3000", f"--screenshot={shot}")
    assert shot.stat().st_size > 50_000


def test_an_unescaped_page_would_be_caught(hits, tmp_path):
    """The check of requests and console sees what an open page does."""
    page = tmp_path / "open.html"
    page.write_text(f"<img src={hits[1]}/seen><script>console.log('ran')</script>")
    _, console = browse(page, tmp_path / "profile", "--dump-dom")
    assert "/seen" in hits[0] and any("ran" in line for line in console)
    hits[0].clear()
