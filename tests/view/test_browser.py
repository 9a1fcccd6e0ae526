"""The page in a real browser: it loads, plays replays of every world, follows a live run, and logs no error.

`make test-browser` installs what it needs and runs this file; without playwright or chromium it is skipped.
"""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the web viewer needs the extra web: pip install 'slipstream[web]'")
pytest.importorskip("playwright", reason="playwright is not installed: make test-browser")

from playwright.sync_api import sync_playwright
from shown_runs import append, make_run, record, report, serving

from slipstream.cli.judge import evaluate

WORLDS = ("head_on", "head_to_head", "drmario_level_0")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as play:
        own = Path(play.chromium.executable_path)
        found = str(own) if own.exists() else shutil.which("chromium") or shutil.which("chromium-browser")
        if found is None:
            pytest.skip("there is no chromium: make test-browser installs one")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A run of each world with a recorded episode, one being written, and a viewer: its address, and the live run."""
    root = tmp_path_factory.mktemp("shown")
    for scenario in WORLDS:
        run = make_run(root, scenario, scenario)
        record(run.path, scenario, steps=60)
    make_run(root, "second", "head_on", seed=2)
    live = make_run(root, "live", "cartpole", outcome=None)
    with serving(root) as port:
        yield f"http://127.0.0.1:{port}/", live.path
    live.close()


@pytest.fixture
def page(browser):
    """A page, and a test that fails when it logged an error or asked for anything elsewhere."""
    wrong = []
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if is_here(request.url) else wrong.append(request.url))
    page.set_default_timeout(15_000)
    yield page
    page.close()
    assert not wrong


def is_here(url):
    return url.startswith(("http://127.0.0.1:", "data:"))


def open_run(page, address, name, tab):
    """Go from the list to a tab of a run, at once: on the way through another tab its charts would come and go."""
    page.goto(address)
    run = page.get_by_role("link", name=name, exact=True).get_attribute("href")
    page.goto(f"{address}{run}/{tab.lower()}")
    page.get_by_role("link", name=tab, exact=True).and_(page.locator('[aria-current="page"]')).wait_for()


def picture(page):
    """Every pixel of the canvas, as a digest and as the number of its colours."""
    return page.evaluate(
        """() => { const shown = document.querySelector(".player canvas");
                   const copy = document.createElement("canvas");
                   [copy.width, copy.height] = [shown.width, shown.height];
                   const ctx = copy.getContext("2d", {willReadFrequently: true});
                   ctx.drawImage(shown, 0, 0);
                   const pixels = new Uint32Array(ctx.getImageData(0, 0, copy.width, copy.height).data.buffer);
                   let digest = 0;
                   for (const pixel of pixels) digest = (Math.imul(digest, 31) + pixel) | 0;
                   return [digest, new Set(pixels).size]; }"""
    )


def place(page):
    """In the states of the episode."""
    return float(page.locator(".player input").input_value())


def test_the_list_leads_to_every_view(page, shown):
    address, _ = shown
    page.goto(address)
    page.get_by_role("heading", name="Runs").wait_for()
    assert page.locator("tbody tr").count() == 5
    page.get_by_label("Filter runs").fill("drmario")
    assert page.locator("tbody tr").count() == 1
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Compare head_on").check()
    page.get_by_label("Compare second").check()
    page.get_by_role("button", name="Compare 2").click()
    page.get_by_text("IQM over seeds with its 95 % interval").wait_for()
    page.get_by_role("link", name="Leaderboard").click()
    page.get_by_role("heading", name="head_to_head").wait_for()
    assert page.get_by_text("IQM over seeds of the same settings: ppo").count() == 1  # head_on has two runs
    page.get_by_role("link", name="Federations").click()
    page.get_by_text("There are none in the folders shown").wait_for()


@pytest.mark.parametrize("scenario", WORLDS)
def test_a_replay_is_drawn_moves_while_it_plays_and_obeys_the_keys(page, shown, scenario):
    address, _ = shown
    open_run(page, address, scenario, "Replays")
    page.locator('.player[data-playing="true"]').wait_for()
    first, colours = picture(page)
    assert colours > 20
    for _ in range(200):
        if place(page) > 1.2:
            break
        page.wait_for_timeout(50)
    assert picture(page)[0] != first
    page.locator(".player canvas").focus()
    page.keyboard.press("Space")
    page.locator('.player[data-playing="false"]').wait_for()
    still = picture(page)[0]
    assert picture(page)[0] == still
    page.keyboard.press("End")
    end = place(page)
    assert end == float(page.locator(".player input").get_attribute("max"))
    page.keyboard.press("ArrowLeft")
    assert place(page) == end - 1
    page.keyboard.press("ArrowUp")
    assert page.get_by_label("Speed", exact=True).input_value() == "2"
    page.get_by_role("button", name="Play", exact=True).click()
    page.locator('.player[data-playing="false"]').wait_for()  # it was near the end, and stops there
    assert place(page) == end


def test_a_live_run_is_followed(page, shown):
    address, live = shown
    open_run(page, address, "live", "Curves")
    chart = page.locator('[data-metric="env/return_mean"]')
    page.locator('[data-metric="env/return_mean"][data-points="3"]').wait_for()
    assert page.locator(".badge.running").count() == 1
    append(live, [report(k, float(k)) for k in range(4, 9)])
    page.locator('[data-metric="env/return_mean"][data-points="8"]').wait_for()
    assert chart.locator("output").inner_text() == "8"


def test_smoothing_draws_a_line_and_leaves_the_numbers_and_the_evaluations(page, tmp_path):
    make_run(tmp_path, "run", values=[(-1.0) ** k * k for k in range(1, 31)])
    with serving(tmp_path) as port:
        open_run(page, f"http://127.0.0.1:{port}/", "run", "Curves")
        trained, judged = (page.locator(f'[data-metric="{group}/return_mean"]') for group in ("env", "eval"))
        trained.locator("path.line").first.wait_for()
        before = trained.locator("output").inner_text()
        page.get_by_label("Smoothing").select_option("0.9")
        trained.locator("path.faint").wait_for()
        assert trained.locator("output").inner_text() == before == "30"
        assert judged.locator("path.faint").count() == 0

        def smoothed():
            svg = trained.locator("svg")
            svg.focus()
            svg.press("ArrowLeft")
            return trained.locator("output").inner_text()

        seen = smoothed()
        assert ", smoothed " in seen
        page.keyboard.press("Escape")
        trained.locator("svg").press("+")
        page.locator('[data-metric="env/return_mean"]:not([data-points="30"])').wait_for()
        at, told = seen.split(" at ")[1].split(", ")
        for _ in range(60):
            now = smoothed()
            if f" at {at}," in now:
                break
        assert now.endswith(told)  # the same point, zoomed in


def test_all_charts_of_a_run_have_the_same_steps_and_shares_go_from_zero_to_one(page, tmp_path):
    run = make_run(tmp_path, "run", "head_on", values=[float(k) for k in range(1, 11)])
    append(run.path, [{"timesteps_total": 11_000, "eval/return_mean": 1.0, "eval/clean_fraction": 0.0}])
    with serving(tmp_path) as port:
        open_run(page, f"http://127.0.0.1:{port}/", "run", "Curves")
        page.locator('[data-metric="eval/clean_fraction"] circle').wait_for()

        def axis(metric, anchor):
            return page.locator(f'[data-metric="{metric}"] svg text[text-anchor="{anchor}"]').all_text_contents()

        steps = axis("env/return_mean", "middle")
        assert steps[0] == "0"
        assert axis("eval/clean_fraction", "middle") == steps
        assert axis("eval/clean_fraction", "end")[0] == "0"
        assert "1" in axis("eval/clean_fraction", "end")


def test_metrics_are_found_by_name_and_chosen_all_at_once(page, shown):
    address, _ = shown
    open_run(page, address, "head_on", "Curves")
    page.locator('[data-metric="train/entropy"]').wait_for()
    page.get_by_text("Metrics:").click()
    page.get_by_label("Find a metric").fill("ENTR")
    assert page.locator("details label:visible").all_inner_texts() == ["train/entropy"]
    page.get_by_role("button", name="Learning: none").click()
    page.locator('[data-metric="train/entropy"]').wait_for(state="detached")
    page.get_by_role("button", name="Learning: all").click()
    page.locator('[data-metric="train/entropy"]').wait_for()


def test_lines_of_shares_begin_at_the_same_place_in_every_row_of_a_leaderboard(page, tmp_path):
    for k, clean in enumerate((1.0, 0.5, 0.2345)):
        run = make_run(tmp_path, f"run{k}", seed=k)
        told = json.loads((run.path / "events.jsonl").read_text()) | {"eval/clean_fraction": clean}
        (run.path / "events.jsonl").write_text(json.dumps(told) + "\n")
    with serving(tmp_path) as port:
        page.goto(f"http://127.0.0.1:{port}/#/leaderboard")
        page.locator(".whisker").nth(2).wait_for()
        left = page.locator(".whisker").evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
        assert len(set(left)) == 1


def test_a_round_that_failed_says_why_and_names_who_was_missing(page, tmp_path):
    rounds = tmp_path / "pair" / "rounds" / "main" / "rounds.jsonl"
    rounds.parent.mkdir(parents=True)
    told = {"round": 1, "state": "failed", "reason": "1 of 2 updates came in time", "dropouts": ["1"], "seats": []}
    rounds.write_text(json.dumps(told) + "\n")
    with serving(tmp_path) as port:
        page.goto(f"http://127.0.0.1:{port}/#/federations")
        page.get_by_role("link", name="pair, main").click()
        page.get_by_text("1 of 2 updates came in time").wait_for()
        assert page.get_by_role("cell", name="client 1", exact=True).count() == 1


def test_rounds_of_a_federation_are_shown_as_they_come(page, tmp_path):
    rounds = tmp_path / "pair" / "rounds" / "main" / "rounds.jsonl"
    rounds.parent.mkdir(parents=True)
    append_round(rounds, 1)
    with serving(tmp_path) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name="Federations").click()
        page.get_by_role("link", name="pair, main").click()
        page.get_by_role("heading", name="Rounds").wait_for()
        assert page.locator("tbody tr").count() == 1
        append_round(rounds, 2)
        page.locator("tbody tr").nth(1).wait_for()
        assert "0.25" in page.locator("tbody tr").first.inner_text()  # the newest on top


def append_round(path, number):
    told = {"round": number, "state": "closed", "participation": 1.0, "seats": [{"client": "x", "weight": 2.0}]}
    told |= {"report": {"used": "mean", "shares": {"x": 1.0}, "variance": 0.5 / number, "drift": None}, "refused": {}}
    with path.open("a") as file:
        file.write(json.dumps(told) + "\n")


def test_the_page_of_an_episode_shows_every_moment(page, tmp_path):
    path = tmp_path / "episode.html"
    assert evaluate(["head_on", "--episodes", "1", "--html", str(path)]) == 0
    page.set_content(path.read_text())
    aircraft = page.locator("#map g g")
    assert aircraft.count() == 2
    first = aircraft.first.get_attribute("transform")
    page.get_by_label("time", exact=True).press("End")
    assert aircraft.first.get_attribute("transform") != first
    page.get_by_label("time", exact=True).press("Home")
    page.get_by_role("button", name="play").click()
    page.wait_for_function("Number(document.getElementById('at').value) > 1")
    page.get_by_role("button", name="pause").click()


def test_colours_follow_the_system_and_the_button(page, shown):
    address, _ = shown
    page.emulate_media(color_scheme="dark")
    page.goto(address)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_names_are_shown_as_text_whatever_they_hold(page, tmp_path):
    make_run(tmp_path, "<img src=x onerror=alert(1)>")
    with serving(tmp_path) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name="<img src=x onerror=alert(1)>").click()
        page.get_by_role("heading", name="<img src=x onerror=alert(1)>").wait_for()
        assert page.locator("img").count() == 0


def test_cars_have_the_size_the_world_gives_them(page, shown):
    from slipstream.worlds.racing import car, vehicles

    address, _ = shown
    open_run(page, address, "head_to_head", "Replays")
    page.locator(".player").wait_for()
    sizes = page.evaluate("Slipstream.scenes.racing.sizes")
    assert sizes == {name: [car(name).length_m, car(name).width_m] for name in vehicles()}
