"""The page of the airspace study says who met the bar."""

import airspace


def cell(seed, clean, detour, mvp_clean=1.0):
    figures = {"min_separation_nm": 5.5, "flight_seconds": 400.0}
    rows = {"learned": (clean, detour), "mvp": (mvp_clean, 1.0), "direct": (0.0, 0.0)}
    policies = {name: {"clean": c, "extra_distance_nm": d, **figures} for name, (c, d) in rows.items()}
    return {
        "scenario": "head_on",
        "seed": seed,
        "cpu_seconds": 9.5,
        "first_streak_steps": 8192 * seed,
        "policies": policies,
    }


def test_the_bar_is_safety_and_a_shorter_way_where_mvp_is_as_safe():
    def meets(**changes):
        policies = cell(1, **changes)["policies"]
        return airspace.meets_the_bar(policies["learned"], policies["mvp"])

    assert meets(clean=0.99, detour=0.9)
    assert not meets(clean=0.989, detour=0.1)
    assert not meets(clean=1.0, detour=1.0)
    assert meets(clean=1.0, detour=3.0, mvp_clean=0.98)


def test_a_row_counts_seeds_and_pools_episodes(tmp_path):
    cells = [cell(1, 1.0, 0.5), cell(2, 1.0, 0.6), cell(3, 0.97, 0.7), cell(4, 1.0, 2.0)]
    airspace.write_page(cells, tmp_path / "airspace.json")
    (row,) = [line for line in (tmp_path / "airspace.md").read_text().splitlines() if line.startswith("| head_on")]
    shown = [word.strip() for word in row.split("|")[1:-1]]
    assert shown[1].startswith("99.2 [")  # 1985 of 2000
    assert shown[2] == "97.0"
    assert shown[3].startswith("0.65 [")  # of the middle two
    assert (shown[4], shown[7], shown[8], shown[9]) == ("100.0", "2 of 4", "32,768", "10")
