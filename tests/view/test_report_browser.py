"""A report in a real browser, from the disk: every world's replay plays, nothing is asked for, nothing goes wrong."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the episodes are made by the viewer's tests: pip install 'slipstream[web]'")
pytest.importorskip("playwright", reason="playwright is not installed: make test-browser")

from playwright.sync_api import sync_playwright
from shown_runs import make_run, record

from slipstream.view.report import write_report

WORLDS = ("head_on", "head_to_head", "drmario_level_0")


def test_a_report_plays_replays_of_every_world_without_a_network(tmp_path):
    for scenario in WORLDS:
        record(make_run(tmp_path, scenario, scenario).path, scenario, steps=60)
    write_report([tmp_path / scenario for scenario in WORLDS], tmp_path / "report.html")
    wrong = []
    with sync_playwright() as play:
        own = Path(play.chromium.executable_path)
        found = str(own) if own.exists() else shutil.which("chromium") or shutil.which("chromium-browser")
        if found is None:
            pytest.skip("there is no chromium: make test-browser installs one")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url[:5] != "file:" else None)
        page.goto((tmp_path / "report.html").as_uri())
        for k in range(len(WORLDS)):
            screen = page.locator(f"#run-{k} .replay")
            before = screen.locator("canvas").screenshot()
            screen.get_by_role("button", name="Play").click()
            page.wait_for_function("k => document.querySelector(`#run-${k} input[type=range]`).value > 0.05", arg=k)
            screen.locator("canvas").press("End")
            assert screen.locator("canvas").screenshot() != before
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        browser.close()
    assert not wrong
