"""A report is one file that needs nothing else, tells what a run's folder holds, and takes its texts as texts."""

import json
import re
from html.parser import HTMLParser

import pytest
from made_runs import make_run

from slipstream.data.run_folder import FRAMES_FOLDER, JUDGEMENT_FILE, LOG_FILE, Track
from slipstream.draw.axes import SHARE
from slipstream.run.folder import open_existing, write_track
from slipstream.stats.intervals import Interval, wilson
from slipstream.view import report, report_data
from slipstream.view.report import write_report
from slipstream.view.report_data import shorten
from slipstream.view.run import Judged

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028'\"&<!--"
FETCHES = ("src", "href", "action", "formaction", "poster", "data", "srcset", "background", "xlink:href", "ping")
FORBIDDEN = {"link", "iframe", "object", "embed", "base", "img", "video", "audio", "source", "form"}


class Reader(HTMLParser):
    """Elements, attributes and the texts of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self.scripts, self.styles = [], [], [], [], []
        self.inside = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data):
        if self.inside and self.inside[-1] == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self.inside and self.inside[-1] == "style":
            self.styles.append(data)
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def page_of(folder, *paths, **more):
    write_report(paths, folder / "report.html", **more)
    return Reader((folder / "report.html").read_text())


def track(index=0, states=5, agents=("a",), width=2):
    values = [[[float(k + f) for f in range(width)] for _ in agents] for k in range(states)]
    return Track(index, 100 * (index + 1), tuple(f"f{f}" for f in range(width)), tuple(agents), 1.0, values)


def full_run(path, words="plain", **more):
    """A run that has everything a report tells of, with the same words in every text."""
    rows = [
        {"timesteps_total": 100 * k, "env/return_mean": -50.0, "eval/return_mean": -50.0 - k % 2, "train/entropy": 1.0}
        | {"eval/clean_fraction": 0.25, "eval/episodes": 20.0, "fed/round": k, "fed/refused": 1}
        for k in range(1, 21)
    ]
    events = [
        {"event": "phase", "timesteps_total": 5, "phase": 1, "name": words, "why": words},
        {"event": "certificate", "timesteps_total": 6, "attempt": 1, "phase": words, "verdict": "pass", "bar": 0.9},
        {"event": "worker_died", "timesteps_total": 7, "worker": 0, "phase": words, "why": words},
        {"event": words, "timesteps_total": 8},
    ]
    config = {"name": words, "description": words, "algo": {"kind": words}, "world": {"kind": "probe", "words": words}}
    run = make_run(path, rows=rows, events=events, config=config, **more)
    (run / LOG_FILE).write_text(f"2026  {words}\n")
    write_track(run, track(agents=(words,)), 5)
    record = json.loads((run / "metadata.json").read_text())
    record["sessions"][0] |= {"command_line": ["slipstream", words], "outcome": words}
    record |= {"cpu": words, "git_commit": words, "versions": {words: words}}
    (run / "metadata.json").write_text(json.dumps(record))
    return run


@pytest.mark.parametrize("words", ["plain", HOSTILE])
@pytest.mark.parametrize("several", [False, True])
def test_a_page_needs_nothing_else_and_no_text_of_a_run_becomes_markup(tmp_path, words, several):
    runs = [full_run(tmp_path / "one", words), *([full_run(tmp_path / "two", words, seed=1)] if several else [])]
    judged = [Judged(words, 5, {"return": Interval(1.0, 0.0, 2.0), words: Interval(1.0, 0.0, 2.0)})]
    page = page_of(tmp_path, *runs, judge=lambda _: judged)
    assert not FORBIDDEN & set(page.tags)
    for tag, key, value in page.attributes:
        assert not key.startswith("on"), (tag, key)
        assert key not in FETCHES or value.startswith(("#", "data:")), (tag, key, value)
        assert "url(" not in value
    # Of scripts there are the player, its glue and one block of data for each run, whatever the texts hold.
    assert page.tags.count("script") == 2 + len(runs)
    for style in page.styles:
        assert "url(" not in style
        assert "@import" not in style
    for attrs, text in page.scripts:
        if "type" not in attrs:
            assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(|WebSocket|sendBeacon|eval\(", text)
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes
    policy = next(v for tag, key, v in page.attributes if (tag, key) == ("meta", "content") and "default-src" in v)
    assert "default-src 'none'" in policy


def test_hostile_texts_arrive_as_they_are(tmp_path):
    page = page_of(tmp_path, full_run(tmp_path / "run", HOSTILE))
    assert "".join(page.texts).count(HOSTILE) >= 8  # description, command, outcome, commit, log, worker, phases …
    (data,) = [json.loads(text) for attrs, text in page.scripts if attrs.get("type") == "application/json"]
    assert data["episodes"][0]["agents"] == [HOSTILE]
    assert data["config"]["words"] == HOSTILE
    assert not any("<" in text or ">" in text for attrs, text in page.scripts if "type" in attrs)
    raw = (tmp_path / "report.html").read_text()
    assert "\u2028" not in raw.split('type="application/json"')[1].split("</script>")[0]


def test_a_page_tells_what_was_run_how_well_and_what_is_wrong(tmp_path):
    page = page_of(tmp_path, full_run(tmp_path / "run"))
    for words in (
        "seed 0; 2,000 of 1,000 steps; finished: plain",
        "command slipstream plain",
        "plateau at a negative return The return stays at about -50",
        "To try: Compare with the scripts' rows",
        "workers died or were stuck 1 died and 0 were stuck while plain",
        "Curriculum steps phase name why 5 1 plain plain",
        "Certificates attempt steps phase bar verdict",
        "Federation last round round 20 refused 1",
    ):
        assert words in page.text, words
    share = wilson(5, 20)
    assert f"{share.estimate:.2f} [{share.low:.2f}, {share.high:.2f}]" in page.text
    assert page.tags.count("svg") >= 3


def test_a_judgement_takes_the_place_of_the_last_evaluation(tmp_path):
    rows = [Judged("learned", 50, {"return": Interval(3.0, 2.0, 4.0), "lap_s": Interval(*[float("nan")] * 3)}),
            Judged("mvp", 50, {"return": Interval(5.0, 4.5, 5.5)})]  # fmt: skip
    page = page_of(tmp_path, full_run(tmp_path / "run"), judge=lambda path: rows)
    assert "learned 3.00 [2.00, 4.00] mvp 5.00 [4.50, 5.50]" in page.text
    assert "lap s" not in page.text  # nobody has one
    assert "50 episodes each" in page.text
    assert "Last evaluation" not in page.text


def test_the_table_of_a_run_is_the_one_it_ended_with_until_it_has_gone_on(tmp_path):
    run = full_run(tmp_path / "run")
    figures = {
        "return": {"estimate": 3.0, "low": 2.0, "high": 4.0},
        "lap_s": dict.fromkeys(("estimate", "low", "high")),
    }
    rows = [{"policy": policy, "episodes": 100, "figures": figures} for policy in ("learned", "noop")]
    kept = {"steps": 2000, "headline": ["return", "lap_s", "other"], "rows": rows}
    (run / JUDGEMENT_FILE).write_text(json.dumps(kept))
    page = page_of(tmp_path, run)
    assert "learned 3.00 [2.00, 4.00] noop 3.00 [2.00, 4.00]" in page.text
    assert "100 episodes each" in page.text
    for stale in (json.dumps(kept | {"steps": 1900}), json.dumps(kept)[:-9], '{"rows": 3}', "[]"):
        (run / JUDGEMENT_FILE).write_text(stale)
        assert "Last evaluation" in page_of(tmp_path, run).text


def test_a_run_that_has_only_begun_and_one_that_goes_on_have_a_page(tmp_path):
    run = make_run(tmp_path / "run", ended=False)
    assert "no metrics yet" in page_of(tmp_path, run).text
    with open_existing(run):
        assert "0 of 1,000 steps; running" in page_of(tmp_path, run).text
    assert "0 of 1,000 steps; stopped: " in page_of(tmp_path, run).text


def test_a_sign_does_not_say_what_the_table_below_it_denies(tmp_path):
    run = full_run(tmp_path / "run")  # its return stays at -50
    assert "plateau at a negative return The return" in page_of(tmp_path, run).text
    rows = [Judged("learned", 50, {"return": Interval(-50.0, -51.0, -49.0)}),
            Judged("random", 50, {"return": Interval(-90.0, -91.0, -89.0)})]  # fmt: skip
    assert "plateau at a negative return The return" not in page_of(tmp_path, run, judge=lambda path: rows).text


def test_a_run_that_was_gone_on_with_tells_first_how_it_was_begun(tmp_path):
    run = make_run(tmp_path / "run", [1.0, 2.0])
    record = json.loads((run / "metadata.json").read_text())
    begun = ["/x/bin/slipstream", "train", "duel", "--out", "runs/a b"]
    record["sessions"] = [{"command_line": begun}, {"command_line": ["slipstream", "resume", "runs/a b"]}]
    (run / "metadata.json").write_text(json.dumps(record))
    page = page_of(tmp_path, run)
    assert "command slipstream train duel --out 'runs/a b' resumed with slipstream resume 'runs/a b'" in page.text


def test_all_charts_of_a_run_end_with_the_run(tmp_path):
    rows = [{"timesteps_total": 100 * k, "env/return_mean": float(k)} for k in range(1, 11)]
    rows[1] |= {"eval/return_mean": 1.0, "eval/clean_fraction": 0.0, "eval/episodes": 20.0}
    charts = report_data.read_run_report(make_run(tmp_path / "run", rows=rows)).charts
    assert len(charts) > 1
    assert {chart.x.high for chart in charts} == {1000}
    assert [chart.y for chart in charts if chart.title == "clean"] == [SHARE]


def test_a_page_names_no_flags_of_a_command(tmp_path):
    runs = [make_run(tmp_path / f"run{k}", [0.0] * (2 + k), seed=k) for k in range(2)]  # ends differ
    page = page_of(tmp_path, *runs)
    comparison = page.text.split("Comparison")[1].split("Intervals are")[0]
    assert "last values are at 200 to 300 steps" in comparison
    assert "--at" not in comparison


def test_figures_that_tell_little_are_folded_up(tmp_path):
    figures = {f"eval/detail_{k}_mean": float(k) for k in range(40)}
    rows = [
        {"timesteps_total": 100, "eval/return_mean": 1.0, "eval/conflicts_mean": 2.0, "eval/episodes": 20.0} | figures
    ]
    page = page_of(tmp_path, make_run(tmp_path / "run", rows=rows, config={"world": {"kind": "airspace"}}))
    shown, folded = page.text.split("40 more figures")
    assert "conflicts 2" in shown
    assert "detail 7" not in shown
    assert "detail 7" in folded


def test_clients_of_several_federations_have_names_of_their_own(tmp_path):
    def client(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "replicas.json").write_text("{}")
        shared = {"federated": {"enabled": True, "client": "0"}}
        return make_run(tmp_path / name / "runs" / "client-0", [1.0], config=shared)

    page = page_of(tmp_path, client("red"), client("blue"), png=tmp_path / "pictures")
    assert "red, client-0" in page.text
    assert "blue, client-0" in page.text
    assert {"red_client-0.png", "blue_client-0.png"} < {path.name for path in (tmp_path / "pictures").iterdir()}


def test_no_sign_says_what_was_looked_for(tmp_path):
    page = page_of(tmp_path, make_run(tmp_path / "run", [1.0, 2.0]))
    assert "None was found. Looked for: plateau at a negative return" in page.text


def test_several_runs_are_compared_and_each_has_its_place(tmp_path):
    runs = [make_run(tmp_path / f"run{k}", [0.0, k], seed=k) for k in range(4)]
    page = page_of(tmp_path, *runs, png=tmp_path / "pictures")
    assert "Comparison" in page.text
    assert "Few seeds: ppo on duel has 4 seeds" in page.text
    assert {value for tag, key, value in page.attributes if (tag, key) == ("a", "href")} == {
        f"#run-{k}" for k in range(4)
    }
    assert {value for tag, key, value in page.attributes if (tag, key) == ("details", "id")} == {
        f"run-{k}" for k in range(4)
    }
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == [
        "comparison.png",
        *(f"run{k}.png" for k in range(4)),
    ]


def test_runs_that_cannot_be_compared_say_why_and_are_told_all_the_same(tmp_path):
    page = page_of(tmp_path, make_run(tmp_path / "a", [1.0]), make_run(tmp_path / "b", [1.0], metric="env/return_mean"))
    assert "The runs cannot be compared:" in page.text
    assert f"{tmp_path / 'b'}: " in page.text
    assert "'eval/return_mean'" in page.text


def test_runs_of_the_same_name_keep_their_own_pictures(tmp_path):
    page_of(tmp_path, *(make_run(tmp_path / k / "run", [1.0, 2.0]) for k in "ab"), png=tmp_path / "pictures")
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == ["comparison.png", "run-1.png", "run-2.png"]


def test_many_recorded_episodes_are_chosen_evenly_with_the_newest_first(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    for index in range(21):
        write_track(run, track(index), 30)
    page = page_of(tmp_path, run)
    (data,) = [json.loads(text) for attrs, text in page.scripts if attrs.get("type") == "application/json"]
    assert [episode["index"] for episode in data["episodes"]] == [20, 16, 12, 8, 4, 0]
    assert "shown are 6 of 21 recorded episodes" in page.text


def test_a_long_episode_is_thinned_with_its_end_and_its_time_kept():
    whole = track(states=1001, width=10)
    film = shorten(whole, most_bytes=5000)
    assert film.every > 1
    assert len(json.dumps(film.track.states, separators=(",", ":"))) < 5500
    assert film.track.states[0] == whole.states[0]
    assert film.track.states[-1] == whole.states[-1]
    assert film.track.states[1] == whole.states[film.every]
    assert film.track.tick_seconds == film.every
    assert shorten(track()).track == track()


def test_a_page_stays_small_however_much_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REPLAY_BYTES", 60_000)
    monkeypatch.setattr(report_data, "TRACK_BYTES", 20_000)
    monkeypatch.setattr(report_data.shorten, "__defaults__", (20_000,))
    run = make_run(tmp_path / "run", [float(k) for k in range(30_000)], every=1)
    for index in range(6):
        write_track(run, track(index, states=2000), 10)
    page = page_of(tmp_path, run)
    data = next(text for attrs, text in page.scripts if attrs.get("type") == "application/json")
    assert len(data) < 62_000
    assert 1 < len(json.loads(data)["episodes"]) < 6
    assert (tmp_path / "report.html").stat().st_size < 250_000
    assert "long ones at every" in page.text


def test_a_track_that_cannot_be_read_is_passed_over(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    (run / FRAMES_FOLDER / "episode_000.json").write_text('{"index": 0')
    assert "Replays" not in page_of(tmp_path, run).text
