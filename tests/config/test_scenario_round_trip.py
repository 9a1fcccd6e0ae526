"""A scenario written as YAML or JSON loads back equal."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.load import dump, from_plain, load, to_json
from slipstream.config.scenario import Scenario
from slipstream.config.yaml import parse_yaml

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}", fullmatch=True)
counts = st.integers(1, 1000)
rates = st.floats(0, 1e3, allow_nan=False)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@st.composite
def schedules(draw):
    if draw(st.booleans()):
        return draw(rates)
    fractions = sorted(draw(st.sets(st.floats(0, 1), min_size=1, max_size=4)))
    return [[fraction, draw(rates)] for fraction in fractions]


algos = st.fixed_dictionaries(
    {"kind": st.just("ppo")},
    optional={
        "learning_rate": schedules(),
        "entropy_coef": schedules(),
        "hidden": st.lists(st.integers(1, 512), max_size=4),
        "gamma": st.floats(0, 1),
        "value_clip": st.none() | st.floats(0.001, 10),
        "minibatch_size": counts,
        "shared_torso": st.booleans(),
    },
)
worlds = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("gymnasium"), "id": st.text(min_size=1, max_size=9)},
        optional={"kwargs": st.dictionaries(st.text(max_size=5), json_values, max_size=3)},
    ),
    st.fixed_dictionaries({"kind": st.just("probe"), "task": st.sampled_from(["constant", "leaver"])}),
    st.fixed_dictionaries({"kind": st.just("pettingzoo"), "env": st.just("a.b:c")}),
)
policies = st.one_of(
    st.fixed_dictionaries({"kind": st.just("learning")}, optional={"algo": st.none() | algos}),
    st.fixed_dictionaries({"kind": st.just("frozen"), "path": st.text(min_size=1, max_size=9)}),
    st.fixed_dictionaries({"kind": st.just("scripted"), "script": names}),
)


@st.composite
def scenarios(draw):
    team = draw(st.dictionaries(names, policies, min_size=1, max_size=3))
    values = {
        "name": draw(names),
        "world": draw(worlds),
        "algo": draw(algos),
        "policies": team,
        "teams": draw(st.dictionaries(st.text(max_size=5), st.sampled_from(sorted(team)), max_size=3)),
        "description": draw(st.text(max_size=50)),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "timesteps": draw(st.integers(1, 10**12)),
        "learner_threads": draw(st.just("auto") | counts),
        "stop": {
            "target_return": draw(st.none() | st.floats(-1e6, 1e6)),
            "wall_time_s": draw(st.none() | st.floats(0.1, 1e9)),
        },
    }
    return Scenario.model_validate(values)


@given(scenarios())
@settings(max_examples=100, deadline=None)
def test_yaml_and_json_give_the_scenario_back(scenario):
    assert from_plain(parse_yaml(dump(scenario), "dump").value) == scenario
    assert from_plain(json.loads(to_json(scenario))) == scenario


def test_a_dumped_file_loads_to_the_same_scenario_whatever_it_is_called(tmp_path):
    scenario = load("cartpole", {"algo.learning_rate": 1e-5, "seed": 2**63 - 1})
    path = tmp_path / "scenario.yaml"
    path.write_text(dump(scenario), encoding="utf-8")
    assert load(path) == scenario
    assert load(path).name == "cartpole"
