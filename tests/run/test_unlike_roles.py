"""Training where roles differ: a policy for each, what it saves, who acts for whom; and policies told who they are."""

from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from learning import build, digest, recast

import slipstream
from slipstream.collect.episodes import play
from slipstream.config.load import from_plain, to_plain
from slipstream.data.checkpoint import load_latest
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.judging.judge import judge, trajectory_columns
from slipstream.run.record import record
from slipstream.run.saved_cast import load_cast, trained_teams
from slipstream.run.session import resume, train
from slipstream.run.setup import complete, make_cast, make_evaluation_worlds
from slipstream.run.views import by_role
from slipstream.worlds.registry import make_worlds, spec_of
from slipstream.worlds.vec_env import EnvOptions

LEARN = {
    "ppo": {"minibatch_size": 128, "epochs": 4},
    "dqn": {"batch_size": 64, "training_intensity": 0.1, "learning_starts": 128, "epsilon": [[0, 1], [0.5, 0]]},
    "sac": {"batch_size": 64, "training_intensity": 0.1, "learning_starts": 128},
}


def scenario(game, kind="ppo", algo=None, world=None, **changes):
    """A run of a game of tests/games.py, learned in seconds."""
    own = {"kind": kind, "learning_rate": 3e-3, "hidden": [32, 32], "gamma": 0.9, **LEARN[kind], **(algo or {})}
    values = {
        "name": game.lower(),
        "seed": 1,
        "timesteps": 8192,
        "learner_threads": 1,
        "device": "cpu",
        "world": world or {"kind": "pettingzoo", "env": f"games:{game}"},
        "algo": own,
        "collect": {"num_worlds": 16, "rollout_length": 16, "workers": 0, "world_threads": 1},
        "evaluate": {"evaluation_interval": None},
    }
    return from_plain({**values, **changes})


def learned(one):
    """The scenario's parts after all of its updates."""
    parts = build(one)
    while parts.updates * one.rollout_steps < one.timesteps:
        parts.advance()
    return parts


def mean_return(parts, episodes=32):
    worlds = make_evaluation_worlds(parts.scenario, episodes)
    return play(worlds, parts.cast.teams, episodes, seed=5).returns.mean(0)


# --- roles that differ ---


@pytest.mark.parametrize(
    ("game", "kind", "best", "missing"),
    [
        ("Signals", "ppo", [4, 4], 0.05),
        ("Signals", "dqn", [4, 4], 0.05),
        ("Levers", "ppo", [4, 4], 0.1),
        ("Levers", "dqn", [4, 4], 0.1),
        ("Arms", "sac", [4, 4, 4], 0.15),
        ("Mixed", "sac", [4, 4], 0.15),
    ],
)
def test_two_roles_with_different_spaces_learn_the_optimum(game, kind, best, missing):
    parts = learned(scenario(game, kind))
    assert mean_return(parts) == pytest.approx(best, abs=missing)


def test_every_role_has_a_policy_of_its_own_where_nobody_named_policies():
    one = scenario("Signals")
    spec = spec_of(one.world)
    split = by_role(one, spec)
    assert dict(split.teams) == {"speaker": "speaker", "listener": "listener"}
    assert list(split.learning) == ["speaker", "listener"]
    assert by_role(split, spec) == split
    alike = scenario("Badges")
    assert by_role(alike, spec_of(alike.world)) == alike
    named = recast(one, {"s": {"kind": "learning"}, "l": {"kind": "learning"}}, {"speaker": "s", "listener": "l"})
    assert by_role(named, spec) == named


def test_learners_see_only_what_their_role_sees():
    parts = build(scenario("Mixed"))
    rollouts, _ = parts.collector.collect(0)
    speaker, pointer = rollouts["speaker"], rollouts["pointer"]
    assert {name: block.shape[2:] for name, block in speaker.obs.items()} == {"obs": (1, 3)}
    assert {name: block.shape[2:] for name, block in pointer.obs.items()} == {"lamp": (1, 1), "said": (1, 4)}
    assert speaker.action.dtype == np.int32
    assert pointer.action.shape[2:] == (1, 2)


def test_masks_are_as_wide_as_each_roles_own_choices_and_are_kept():
    parts = build(scenario("Rules"))  # which raises where a choice is not allowed
    rollouts, _ = parts.collector.collect(0)
    speaker, listener = rollouts["speaker"], rollouts["listener"]
    words = speaker.obs["seen"][1:].argmax(-1)
    assert speaker.mask.shape[2:] == (1, 3)
    assert np.take_along_axis(speaker.mask[1:], ((words + 1) % 3)[..., None], 3).max() == 0
    assert speaker.mask[1:].sum(-1).min() == speaker.mask[1:].sum(-1).max() == 2
    assert listener.mask[1:].reshape(-1, 5).tolist() == [[1, 1, 1, 1, 0]] * (16 * 16)
    assert listener.last_mask.shape[2:] == (5,)
    play(make_evaluation_worlds(parts.scenario, 8), parts.cast.teams, 8, seed=1)


def test_networks_are_chosen_by_what_each_role_sees():
    one = scenario("Eyes", timesteps=512)
    done = complete(by_role(one, spec_of(one.world)), spec_of(one.world))
    assert {name: algo.network.kind for name, algo in done.learning.items()} == {"seer": "conv", "mover": "mlp"}
    assert complete(done, spec_of(one.world)) == done


@pytest.mark.parametrize(
    ("policies", "teams", "said"),
    [
        ({"one": {"kind": "learning"}}, {"speaker": "one", "listener": "one"}, "speaker_0 and listener_0.*policy each"),
        (
            {"main": {"kind": "learning"}, "past": {"kind": "past", "of": "main"}},
            {"speaker": "main", "listener": "past"},
            "policies.past: .*3 choices.*5",
        ),
    ],
)
def test_a_policy_cannot_act_for_roles_that_differ(policies, teams, said):
    one = recast(scenario("Signals"), policies, teams)
    with pytest.raises(ScenarioError, match=said):
        make_cast(one, spec_of(one.world))


def test_a_policy_of_one_role_is_refused_as_a_frozen_one_of_another(run):
    def cast(**frozen):
        policies = {"mine": {"kind": "learning"}, "frozen": {"kind": "frozen", "path": str(run), **frozen}}
        one = recast(scenario("Signals"), policies, {"speaker": "mine", "listener": "frozen"})
        return make_cast(one, spec_of(one.world))

    with pytest.raises(CheckpointError, match=r"several policies \(speaker, listener\).*`policy`"):
        cast()
    with pytest.raises(ScenarioError, match=r"policies.frozen.path: .*3 choices.*5"):
        cast(policy="speaker")
    assert [team.policy for team in cast(policy="listener").teams] == ["mine", "frozen"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of Signals."""
    folder = tmp_path_factory.mktemp("roles")
    with chdir(folder):  # models are written where one stands
        return train(scenario("Signals"), root=folder / "runs", out=folder / "runs" / "first").run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_saved_policies_act_alone_in_their_own_spaces(run):
    speaker, listener = (slipstream.load_policy(run, name) for name in ("speaker", "listener"))
    assert speaker.act(np.eye(3)).tolist() == [0, 1, 2]
    said = {"said": np.eye(4), "lamp": np.ones((4, 1))}
    assert listener.act(said).tolist() == [1, 2, 3, 4]  # of a space that starts at 1
    assert [block.name for block in speaker.record.world.obs] == ["obs"]


def test_a_run_of_unlike_roles_is_judged_and_written_down(run):
    one, saved = load_cast(run)
    table = judge(one, saved, 20, record=True)
    assert table.rows[0].figures["return"].estimate == pytest.approx(8)
    columns = trajectory_columns(table.spec, table.recorded["learned"])
    assert set(columns["agent"].tolist()) == {"speaker_0", "listener_0"}
    asked = scenario("Signals")  # a scenario without policies of its own, judged with those of the run
    assert len(trained_teams(asked, saved, spec_of(asked.world))) == 2


def test_datasets_hold_the_decisions_of_one_role(run):
    rows = record(run, 64, team="listener")
    assert [block.name for block in rows.record.world.obs] == ["lamp", "said"]
    assert rows.record.world.action.size == 5
    random = record(scenario("Mixed"), 64, team="speaker", policy="random")
    assert random.record.discrete
    assert set(np.unique(random.rows.action).tolist()) == {0, 1, 2}


def test_workers_collect_what_one_process_does(tmp_path):
    short = {"timesteps": 1024}
    alone = train(scenario("Signals", **short), root=tmp_path, out=tmp_path / "alone").run
    collect = {**to_plain(scenario("Signals"))["collect"], "workers": 2}
    together = train(scenario("Signals", **short, collect=collect), root=tmp_path, out=tmp_path / "together").run
    first, second = (policies_of(run) for run in (alone, together))
    assert first == second


def policies_of(run: Path) -> str:
    arrays = load_latest(run / "checkpoints").checkpoint.arrays
    return digest({name: array for name, array in arrays.items() if name.startswith("policy.")})


@pytest.mark.parametrize(("kind", "algo"), [("ppo", {}), ("dqn", {"epsilon": 0.2, "replay": {"capacity": 4096}})])
def test_a_resumed_run_of_unlike_roles_goes_on_exactly(tmp_path, kind, algo):
    native = {"kind": "probe", "task": "roles", "horizon": 8}

    def run(steps, name):
        return train(scenario("Roles", kind, algo, native, timesteps=steps), root=tmp_path, out=tmp_path / name).run

    whole, half = run(2048, "whole"), run(1024, "half")
    resume(half, timesteps=2048)
    assert policies_of(half) == policies_of(whole)


# --- policies that are told which agent they act for ---


def test_a_shared_policy_tells_its_agents_apart_where_it_is_shown_which_is_which():
    told = learned(scenario("Badges", algo={"show_agent": True}))
    assert mean_return(told) == pytest.approx([4, 4, 4])
    untold = learned(scenario("Badges"))
    assert mean_return(untold).sum() == pytest.approx(4)  # all choose the same, which suits one of them


def test_such_a_policy_is_saved_with_its_block_and_is_told_the_agent(tmp_path):
    one = scenario("Badges", algo={"show_agent": True})
    run = train(one, root=tmp_path, out=tmp_path / "run").run
    policy = slipstream.load_policy(run)
    assert [policy.act(np.zeros(1), agent=k).item() for k in range(3)] == [0, 1, 2]
    assert policy.act(np.zeros((3, 1)), agent=[2, 0, 1]).tolist() == [2, 0, 1]
    assert policy.act({"obs": np.zeros((3, 1)), "which_agent": np.eye(3)}).tolist() == [0, 1, 2]
    for wrong in (None, 3, -1, 0.5):
        with pytest.raises(ValueError, match="agent, a number from 0 to 2"):
            policy.act(np.zeros(1), agent=wrong)
    assert judge(*load_cast(run), 4).rows[0].figures["return"].estimate == pytest.approx(12)
    rows = record(run, 30, noise=False)
    assert np.array_equal(rows.rows.obs["which_agent"].argmax(1), rows.rows.action)


def test_agents_keep_their_numbers_in_a_smaller_team_and_others_are_numbered_in_order(tmp_path):
    one = scenario("Badges", algo={"show_agent": True}, timesteps=512)
    run = train(one, root=tmp_path, out=tmp_path / "run").run

    def numbers(teams):
        policies = {"frozen": {"kind": "frozen", "path": str(run)}, "main": {"kind": "learning"}}
        cast = make_cast(recast(scenario("Badges"), policies, teams), spec_of(one.world))
        return next(team for team in cast.teams if team.policy == "frozen").shown_as

    assert numbers({"guard_1": "frozen", "guard_2": "frozen"}) == (1, 2)
    assert numbers({"guard_0": "frozen"}) == (0,)


@pytest.mark.parametrize(
    ("world", "policies", "teams", "said"),
    [
        ({"block": "which_agent"}, {"main": {"kind": "learning"}}, {}, "show_agent: .*'which_agent' of its own"),
        (
            {},
            {"main": {"kind": "learning"}, "past": {"kind": "past", "of": "main"}},
            {"guard_0": "main", "guard_1": "past", "guard_2": "past"},
            "policies.past: .*which of 1 agents.*cannot act for 2",
        ),
    ],
)
def test_what_cannot_be_told_apart_is_refused(world, policies, teams, said):
    config = {"kind": "pettingzoo", "env": "games:Badges", "kwargs": world}
    one = recast(scenario("Badges", algo={"show_agent": True}, world=config), policies, teams)
    with pytest.raises(ScenarioError, match=said):
        make_cast(one, spec_of(one.world))


def test_an_agent_number_is_refused_by_a_policy_that_is_shown_none(run):
    with pytest.raises(ValueError, match="not shown which agent"):
        slipstream.load_policy(run, "speaker").act(np.eye(3), agent=0)


# --- games in turns ---


def test_self_play_learns_the_winning_moves_of_nim():
    """Whoever moves wins, but before a multiple of 4; the right move leaves one."""
    one = scenario("Nim", world={"kind": "pettingzoo", "env": "games:Nim", "kwargs": {"stones": 7}}, timesteps=16384)
    parts = learned(one)
    for stones in (1, 2, 3, 5, 6, 7):
        seen = {"observation": np.eye(8, dtype=np.float32)[[stones]]}
        mask = np.array([[stones >= take for take in (1, 2, 3)]], np.uint8)
        assert parts.learner.act(seen, mask, None).action[0] == stones % 4 - 1, stones


def test_a_waiting_agent_has_no_row_in_an_update():
    parts = build(scenario("Nim"))
    rollouts, _ = parts.collector.collect(0)
    env_turns = rollouts["main"].decided[1:].sum(axis=2)
    assert (env_turns == 1).all()  # one of the two decides on every tick
    worlds = make_worlds(parts.scenario.world, 1, EnvOptions())
    assert worlds.spec.has_durations
