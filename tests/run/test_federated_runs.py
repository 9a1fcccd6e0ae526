"""Runs that learn together: what they hold after a round, that turns and kills change no bit, and who shares what."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from interrupted import StopAfter
from learning import build, digest, recast, scenario_of, tiny
from safetensors.numpy import load_file

from slipstream.algos.registry import rules_for
from slipstream.collect.serial import Episode
from slipstream.config.aggregators import AGGREGATORS
from slipstream.config.load import override
from slipstream.config.stopping import StopKind
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError
from slipstream.federate.folder import HISTORY
from slipstream.federate.privacy import epsilon
from slipstream.federate.rounds import RoundRecord
from slipstream.federate.update import read_update
from slipstream.run.federated.client import FederationClient, begin_alike
from slipstream.run.loop import Result
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.session import resume, train

WORLD = {"td3": "probe_target", "sac": "probe_target", "dqn": "probe_bandit", "ppo": "probe_bandit"}
WORLD["impala"] = "probe_bandit"
OPTIMISER = ("first_moment", "second_moment", "optim_step")
APART = {"federated.defence": {"clip_norm": None, "max_norm": None, "min_cosine": None}}


def client_of(kind: str, client: int, clients: int, root: Path, **changes) -> object:
    """A scenario of one client, with a seed of its own."""
    federated = {"enabled": True, "clients": clients, "client": str(client), "interval": 4, "root": str(root)}
    settings = {f"federated.{key}": value for key, value in federated.items()}
    return scenario_of(WORLD[kind], {**tiny(kind), **settings, "seed": 100 + client, **changes})


def meet(scenarios: list, updates: int = 4) -> tuple[list, list]:
    """States of clients that have learned apart, before and after a round in which they meet."""
    parts = [build(scenario) for scenario in scenarios]
    for part in parts:
        begin_alike(part.scenario, part.cast, part.env.spec)
        for _ in range(updates):
            part.advance()
    before = [part.learner.state_dict() for part in parts]
    clients = [FederationClient(part.scenario, part.cast.learners, [0], lambda *_, **__: None) for part in parts]
    with ThreadPoolExecutor(len(parts)) as pool:
        said = list(pool.map(lambda client: client.exchange(4, 128), clients))
    assert not any(one.parked for one in said)
    return before, [part.learner.state_dict() for part in parts]


def kinds(state: dict) -> dict[str, str]:
    return {name: rule.kind for name, rule in rules_for(state).items()}


@pytest.mark.parametrize("kind", ["td3", "sac", "dqn"])
def test_after_a_round_both_clients_hold_the_exact_mean(kind, tmp_path):
    before, after = meet([client_of(kind, i, 2, tmp_path) for i in range(2)])
    weights = [name for name, rule in kinds(before[0]).items() if rule == "merge"]
    assert weights
    for name in weights:
        mean = ((before[0][name].astype(np.float64) + before[1][name]) / 2).astype(np.float32)
        assert (after[0][name] == mean).all(), name
        assert (after[1][name] == mean).all(), name
    assert any((before[0][name] != before[1][name]).any() for name in weights)


@pytest.mark.parametrize("strategy", ["local", "average", "reset"])
@pytest.mark.parametrize("rule", AGGREGATORS)
@pytest.mark.parametrize("kind", ["td3", "sac", "dqn"])
def test_weights_become_one_and_moments_follow_the_strategy(kind, rule, strategy, tmp_path):
    changes = {"federated.aggregator": rule, "federated.optimizer_strategy": strategy, **APART}
    before, after = meet([client_of(kind, i, 3, tmp_path, **changes) for i in range(3)], updates=2)
    meaning = kinds(before[0])
    assert digest({n: after[0][n] for n, k in meaning.items() if k not in (*OPTIMISER, "keep")}) == digest(
        {n: after[2][n] for n, k in meaning.items() if k not in (*OPTIMISER, "keep")}
    )
    moments = {name for name, k in meaning.items() if k in OPTIMISER}
    assert moments
    for own, now in zip(before, after, strict=True):
        if strategy == "local":
            assert all((own[name] == now[name]).all() for name in moments)
        elif strategy == "reset":
            assert not moments & now.keys()
    if strategy == "average":
        assert digest({n: after[0][n] for n in moments}) == digest({n: after[1][n] for n in moments})


def test_numbers_given_as_weights_count_as_they_are(tmp_path):
    given = {"federated.aggregator": "weighted_mean", "federated.weights": {"0": 9.0, "1": 1.0}, **APART}
    before, after = meet([client_of("dqn", i, 2, tmp_path, **given) for i in range(2)])
    name = "actor.head.weight"
    assert (before[0][name] != before[1][name]).any()
    np.testing.assert_allclose(after[1][name], 0.9 * before[0][name] + 0.1 * before[1][name], rtol=1e-6, atol=1e-8)


def test_averaged_moments_are_unbiased_first_and_biased_again_at_the_fewest_steps(tmp_path):
    changes = {"federated.optimizer_strategy": "average", **APART}
    before, after = meet([client_of("dqn", i, 2, tmp_path, **changes) for i in range(2)])
    steps = [float(own["optim.step"]) for own in before]
    fewest = min(steps)
    name = "optim.actor.head.weight"
    means = [own[f"{name}.exp_avg"].astype(np.float64) / (1 - 0.9**s) for own, s in zip(before, steps, strict=True)]
    squares = [
        own[f"{name}.exp_avg_sq"].astype(np.float64) / (1 - 0.999**s) for own, s in zip(before, steps, strict=True)
    ]
    mean = np.mean(means, axis=0)
    square = np.maximum(np.mean(squares, axis=0), mean**2)  # of unbiased ones: no square is less than its mean's
    assert np.allclose(after[0][f"{name}.exp_avg"], mean * (1 - 0.9**fewest), rtol=1e-6, atol=1e-12)
    assert np.allclose(after[0][f"{name}.exp_avg_sq"], square * (1 - 0.999**fewest), rtol=1e-6, atol=1e-14)
    assert float(after[0]["optim.step"]) == fewest


def test_clients_of_different_seeds_begin_with_the_same_weights(tmp_path):
    parts = [build(client_of("td3", i, 2, tmp_path)) for i in range(2)]
    assert digest(parts[0].learner.state_dict()) != digest(parts[1].learner.state_dict())
    for part in parts:
        begin_alike(part.scenario, part.cast, part.env.spec)
    assert digest(parts[0].learner.state_dict()) == digest(parts[1].learner.state_dict())


# --- whole runs ---


def fingerprint(run: Path) -> tuple[str, str]:
    saved = checkpoint.load_latest(run / "checkpoints").checkpoint
    arrays = {name: array for name, array in saved.arrays.items() if not name.startswith("source.")}
    return digest(arrays), metrics_hash(run / "metrics.jsonl")


def at_once(scenarios: list, folder: Path) -> list[Result]:
    """All clients at the same time, waiting for each other."""
    with ThreadPoolExecutor(len(scenarios)) as pool:
        begun = [
            pool.submit(train, scenario, out=folder / str(i), models=folder / f"models{i}")
            for i, scenario in enumerate(scenarios)
        ]
        return [one.result() for one in begun]


def in_turns(scenarios: list, folder: Path) -> list[Path]:
    """One client at a time, each ending where it would have to wait."""
    runs = [folder / str(i) for i in range(len(scenarios))]
    left = list(range(len(scenarios)))
    for turn in range(200):
        index = left[turn % len(left)]
        if (runs[index] / "scenario.yaml").exists():
            result = resume(runs[index], models=folder / "models")
        else:
            parked = override(scenarios[index], {"federated.park": True})
            result = train(parked, out=runs[index], models=folder / "models")
        if result.ended.kind is not StopKind.PARKED:
            left.remove(index)
        if not left:
            return runs
    raise AssertionError("the clients never came to an end")


def history(root: Path, policy: str = "main") -> list[RoundRecord]:
    lines = (root / policy / HISTORY).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RoundRecord) for line in lines]


BESIDE = {"collect.overlap": "deterministic", "collect.lag": 2}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("td3", {}),
        ("ppo", {}),
        ("td3", BESIDE),
        ("dqn", {**BESIDE, "collect.workers": 2, "collect.mode": "thread"}),
        ("impala", {**BESIDE, "evaluate.evaluation_interval": 1}),
    ],
)
def test_clients_that_take_turns_are_bit_for_bit_those_that_run_at_once(kind, changes, tmp_path):
    together = [client_of(kind, i, 2, tmp_path / "a", **changes) for i in range(2)]
    apart = [client_of(kind, i, 2, tmp_path / "b", **changes) for i in range(2)]
    runs = [result.run for result in at_once(together, tmp_path / "together")]
    turns = in_turns(apart, tmp_path / "turns")
    assert [fingerprint(run) for run in runs] == [fingerprint(run) for run in turns]
    rounds = history(tmp_path / "a")
    assert len(rounds) >= 3
    assert all(record.state == "closed" for record in rounds[:-1])


def test_a_client_killed_and_resumed_changes_no_bit(tmp_path):
    changes = {"federated.checkpoint_after_sync": False, "checkpoint.checkpoint_every": 32}
    whole = at_once([client_of("dqn", i, 2, tmp_path / "a", **changes) for i in range(2)], tmp_path / "whole")
    scenarios = [client_of("dqn", i, 2, tmp_path / "b", **changes) for i in range(2)]
    folder = tmp_path / "cut"
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(train, scenarios[1], out=folder / "1", models=folder / "models1")
        # A thread cannot be interrupted by a signal; the first one runs here, where it can.
        cut = train(scenarios[0], out=folder / "0", models=folder / "models0", display=StopAfter(3))
        assert cut.interrupted
        resumed = resume(cut.run, models=folder / "models0")
        runs = [resumed.run, other.result().run]
    assert [fingerprint(run) for run in runs] == [fingerprint(result.run) for result in whole]


def test_rounds_come_by_episodes_of_all_worlds_and_show_in_the_metrics(tmp_path):
    results = at_once([client_of("ppo", i, 2, tmp_path / "a") for i in range(2)], tmp_path)
    rows = list(read_rows(results[0].run / "metrics.jsonl"))
    seen = [row for row in rows if "fed/round" in row]
    assert [row["fed/round"] for row in seen] == list(range(1, len(seen) + 1))
    assert len(seen) >= 2
    assert all(row["fed/clients"] == 2 and row["fed/took_part"] == 1 for row in seen)
    assert all("fed/variance" in row for row in seen)
    assert "fed/drift_l2" in seen[-1]
    names = {path.name.split("_")[0] for path in (results[0].run / "checkpoints").iterdir()}
    assert "averaged" in names


def test_worker_processes_change_nothing_about_a_federation(tmp_path):
    short = {"timesteps": 96}
    workers = {**short, "collect.workers": 2}
    serial = at_once([client_of("td3", i, 2, tmp_path / "a", **short) for i in range(2)], tmp_path / "serial")
    spread = at_once([client_of("td3", i, 2, tmp_path / "b", **workers) for i in range(2)], tmp_path / "spread")
    assert [fingerprint(r.run)[0] for r in serial] == [fingerprint(r.run)[0] for r in spread]


def test_a_client_whose_partner_never_comes_learns_on_alone(tmp_path):
    scenario = client_of("td3", 0, 2, tmp_path / "a", **{"federated.timeout_s": 0.1, "stop.episodes": 12})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert result.counters.episodes >= 12
    rounds = history(tmp_path / "a")
    assert [record.state for record in rounds] == ["failed"] * len(rounds)
    assert len(rounds) >= 2
    alone = train(override(scenario, {"federated.enabled": False}), out=tmp_path / "alone", models=tmp_path / "models2")
    weights = [checkpoint.load_latest(r.run / "checkpoints").checkpoint.arrays for r in (result, alone)]
    actors = [{n: a for n, a in w.items() if n.startswith("policy.main.actor.head")} for w in weights]
    assert actors[0].keys() == actors[1].keys()


def test_one_policy_is_shared_and_the_other_is_not(tmp_path):
    def scenario(client: int):
        base = client_of("ppo", client, 2, tmp_path / "a", **{"stop.episodes": 8})
        two = recast(
            override(base, {"world.task": "coordination"}),
            {"left": {"kind": "learning"}, "right": {"kind": "learning"}},
            {"same": "left", "complement": "right"},
        )
        return override(two, {"federated.agents": ["left"], "federated.interval": 8})

    results = at_once([scenario(i) for i in range(2)], tmp_path)
    saved = [checkpoint.load_latest(r.run / "checkpoints").checkpoint.arrays for r in results]
    shared = [{n: a for n, a in s.items() if n.startswith("policy.left.actor.")} for s in saved]
    own = [{n: a for n, a in s.items() if n.startswith("policy.right.actor.")} for s in saved]
    assert digest(shared[0]) == digest(shared[1])
    assert digest(own[0]) != digest(own[1])
    assert not (tmp_path / "a" / "right").exists()


def test_a_proximal_pull_keeps_clients_nearer_to_the_aggregate(tmp_path):
    def apart(mu: float) -> float:
        scenarios = [client_of("ppo", i, 2, tmp_path / f"{mu}", **{"federated.proximal_mu": mu}) for i in range(2)]
        at_once(scenarios, tmp_path / f"runs{mu}")
        return history(tmp_path / f"{mu}")[2].report.variance

    assert apart(10.0) < 0.8 * apart(0.0)


def test_with_maml_a_client_sends_what_it_learned_after_adapting_from_where_it_began(tmp_path):
    scenarios = [client_of("ppo", i, 2, tmp_path, **{"federated.maml": 0.5, **APART}) for i in range(2)]
    parts = [build(scenario) for scenario in scenarios]
    told, expected = [], []
    clients = []
    for part in parts:
        begin_alike(part.scenario, part.cast, part.env.spec)
        client = FederationClient(part.scenario, part.cast.learners, [0], lambda event, *_, **__: told.append(event))
        states = [part.learner.state_dict()]
        for ended in (1, 2, 3):  # of an interval of 4: it has adapted after 2
            part.advance()
            client.watch([Episode(0, ended, (1.0,), 1, (), (1,))], ended)
            states.append(part.learner.state_dict())
        start, _, adapted, learned = states
        weights = [name for name, kind in kinds(learned).items() if kind == "merge"]
        way = {name: learned[name].astype(np.float64) - adapted[name] for name in weights}
        expected.append({name: start[name] + step for name, step in way.items()})
        clients.append(client)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda client: client.exchange(4, 128), clients))
    after = parts[0].learner.state_dict()
    for name in expected[0]:
        np.testing.assert_allclose(after[name], (expected[0][name] + expected[1][name]) / 2, atol=1e-6)
    assert told == ["round", "round"]


def test_maml_runs_that_take_turns_are_bit_for_bit_those_that_run_at_once(tmp_path):
    maml = {"federated.maml": 0.3, "federated.interval": 12, "timesteps": 16 * 32}
    runs = at_once([client_of("ppo", i, 2, tmp_path / "a", **maml) for i in range(2)], tmp_path / "together")
    turns = in_turns([client_of("ppo", i, 2, tmp_path / "b", **maml) for i in range(2)], tmp_path / "turns")
    assert [fingerprint(result.run) for result in runs] == [fingerprint(run) for run in turns]
    assert len(history(tmp_path / "a")) >= 2
    assert "federated.maml" not in (runs[0].run / "training_log.txt").read_text()


def test_where_an_interval_ends_within_one_update_maml_says_so_and_all_is_sent(tmp_path):
    maml = {"federated.maml": 0.5, "federated.interval": 1, "stop.episodes": 8}
    results = at_once([client_of("ppo", i, 2, tmp_path / "a", **maml) for i in range(2)], tmp_path)
    assert "longer federated.interval" in (results[0].run / "training_log.txt").read_text()


def test_a_client_without_moments_may_meet_one_that_has_some(tmp_path):
    changes = {"federated.optimizer_strategy": "average", **APART}
    late, early = (client_of("dqn", i, 2, tmp_path, **changes) for i in range(2))
    late = override(late, {"algo.learning_starts": 10_000})
    before, after = meet([late, early])
    assert "optim.step" not in before[0]
    assert float(after[0]["optim.step"]) == float(after[1]["optim.step"]) == float(before[1]["optim.step"])


def test_with_privacy_only_weights_travel_and_every_round_says_what_it_cost(tmp_path):
    privacy = {"federated.privacy": {"clip_norm": 0.5, "noise_multiplier": 1.0, "delta": 1e-5}, **APART}
    scenarios = [client_of("ppo", i, 2, tmp_path / "a", **privacy) for i in range(2)]
    results = at_once(scenarios, tmp_path)
    assert all(record.state == "closed" for record in history(tmp_path / "a")[:-1])
    travelled = load_file(next((tmp_path / "a" / "main").glob("round_*/client_0.safetensors")))
    assert {rules_for(travelled)[name].kind for name in travelled} == {"merge"}
    assert all(one.facts == {} and one.weight == 1 for record in history(tmp_path / "a") for one in record.participants)
    events = list(read_rows(results[0].run / "events.jsonl"))
    spent = [row["epsilon"] for row in events if row["event"] == "privacy"]
    assert len(spent) >= 2
    assert spent == sorted(spent)
    assert spent[0] == pytest.approx(epsilon(1.0, 1.0, 1, 1e-5))


PRIVACY = {"federated.privacy": {"clip_norm": 0.5, "noise_multiplier": 1.0, "delta": 1e-5}, **APART}


def test_a_private_update_that_is_sent_again_is_the_same_one_and_is_counted_once(tmp_path):
    scenario = client_of("td3", 0, 2, tmp_path, **PRIVACY, **{"federated.park": True})
    part = build(scenario)
    told: list[str] = []

    def client() -> FederationClient:
        return FederationClient(scenario, part.cast.learners, [0], lambda event, *_, **__: told.append(event))

    first = client()
    part.advance()
    assert first.exchange(4, 128).parked
    path = next((tmp_path / "main").glob("round_*/client_0.safetensors"))
    sent = path.read_bytes()
    assert first.exchange(4, 128).parked  # nobody else has come: it looks again
    resumed = client()
    resumed.load(first.state, first.arrays())
    assert resumed.exchange(4, 128).parked
    assert path.read_bytes() == sent
    assert told == ["privacy"]
    assert resumed.state.released == 1


def test_what_names_a_private_update_does_not_tell_its_weights(tmp_path):
    def ids(**changes) -> set[str]:
        found = set()
        for index in range(2):  # two clients that have learned nothing: the same weights
            part = build(client_of("td3", index, 2, tmp_path / str(changes), **changes, **{"federated.park": True}))
            begin_alike(part.scenario, part.cast, part.env.spec)
            FederationClient(part.scenario, part.cast.learners, [0], lambda *_, **__: None).exchange(4, 128)
        for path in (tmp_path / str(changes) / "main").glob("round_*/client_*.safetensors"):
            found.add(read_update(path, 1 << 20).update.update_id)
        return found

    assert len(ids(**APART)) == 1
    assert len(ids(**PRIVACY)) == 2


@pytest.mark.parametrize("transport", ["ring", "gossip"])
def test_an_update_that_nobody_was_there_to_hear_costs_no_privacy(transport, tmp_path):
    peers = {str(index): f"ipc://{tmp_path / f'{index}.sock'}" for index in range(2)}
    meeting = {"federated.transport": transport, "federated.peers": peers, "federated.timeout_s": 0.2}
    part = build(client_of("td3", 0, 2, tmp_path, **PRIVACY, **meeting))
    told: list[str] = []
    client = FederationClient(part.scenario, part.cast.learners, [0], lambda event, *_, **__: told.append(event))
    client.exchange(4, 128)
    client.close()
    assert told == ["round"]
    assert client.state.released == 0


@pytest.mark.parametrize("hidden", [PRIVACY, {"federated.secure": True}])
def test_a_part_of_the_aggregate_is_taken_over_where_only_weights_travel(hidden, tmp_path):
    before, after = meet([client_of("ppo", i, 3, tmp_path, **hidden, **{"federated.merge_mu": 1.0}) for i in range(3)])
    weights = [name for name, rule in kinds(before[0]).items() if rule == "merge"]
    assert any((before[0][name] != after[0][name]).any() for name in weights)


DP_SGD = {"federated.dp_sgd": {"clip_norm": 1.0, "noise_multiplier": 2.0, "delta": 1e-5}}


def test_with_dp_sgd_no_facts_travel_and_what_the_steps_have_cost_is_counted_over_an_interruption(tmp_path):
    pytest.importorskip("opacus")
    changes = {**DP_SGD, **APART, "checkpoint.checkpoint_every": 32}
    scenarios = [client_of("dqn", i, 2, tmp_path / "a", **changes) for i in range(2)]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(train, scenarios[1], out=tmp_path / "1", models=tmp_path / "models1")
        cut = train(scenarios[0], out=tmp_path / "0", models=tmp_path / "models0", display=StopAfter(5))
        assert cut.interrupted
        run = resume(cut.run, models=tmp_path / "models0").run
        other.result()
    assert all(one.facts == {} for record in history(tmp_path / "a") for one in record.participants)
    rows = [row for row in read_rows(run / "metrics.jsonl") if "privacy/epsilon" in row]
    spent = [row["privacy/epsilon"] for row in rows]
    assert spent == sorted(spent)
    steps = sum(row.get("train/gradient_steps", 0) for row in rows)
    told = [row for row in read_rows(run / "events.jsonl") if row["event"] == "privacy"][-1]
    assert (told["of"], told["rounds"]) == ("row", steps)
    # The first draw is from what there is before learning starts, and is the likeliest to hold a row.
    assert told["epsilon"] == spent[-1] == pytest.approx(epsilon(told["q"], 2.0, int(steps), 1e-5))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("sac", {}, r"\bsac\b.* dqn,"),
        ("dqn", {"algo.replay.prioritised": {}}, r"algo\.replay\.prioritised "),
        ("dqn", {"algo.normalize_observation": True}, r"algo\.normalize_observation "),
        ("dqn", {"algo.replay.kind": "service"}, r"algo\.replay\.kind "),
        ("dqn", {"algo.dueling": True}, r"algo\.dueling "),
    ],
)
def test_dp_sgd_that_would_hide_nothing_is_refused_in_a_sentence(kind, changes, said, tmp_path):
    with pytest.raises(ScenarioError, match=rf"federated\.dp_sgd: .*{said}"):
        build(client_of(kind, 0, 2, tmp_path, **DP_SGD, **changes))


@pytest.mark.parametrize("kind", ["td3", "ppo"])
def test_a_secure_round_gives_the_mean_of_the_weights_and_nothing_else_travels(kind, tmp_path):
    before, after = meet([client_of(kind, i, 3, tmp_path, **{"federated.secure": True}) for i in range(3)])
    for name, rule in kinds(before[0]).items():
        if rule == "merge":
            mean = np.mean([state[name].astype(np.float64) for state in before], axis=0)
            for state in after:
                np.testing.assert_allclose(state[name], mean, atol=1e-6)
                assert (state[name] == after[0][name]).all()
    assert not list(tmp_path.rglob("client_*.safetensors"))


def test_secure_runs_learn_together_to_their_end(tmp_path):
    secure = {"federated.secure": True, "federated.privacy": {"clip_norm": 0.5, "noise_multiplier": 1.0}}
    results = at_once([client_of("ppo", i, 3, tmp_path / "a", **secure) for i in range(3)], tmp_path)
    records = history(tmp_path / "a")
    assert len(records) >= 2
    assert all(record.state == "closed" and len(record.participants) == 3 for record in records)
    assert all(record.aggregator.startswith("secure ") for record in records)
    assert any(row["event"] == "privacy" for row in read_rows(results[0].run / "events.jsonl"))


@pytest.mark.parametrize("transport", ["ring", "gossip"])
def test_peers_without_anybody_in_charge_show_their_rounds_in_the_metrics(transport, tmp_path):
    peers = {str(i): f"ipc://{tmp_path}/{i}.sock" for i in range(2)}
    changes = {"federated.transport": transport, "federated.peers": peers, "timesteps": 4 * 32}
    results = at_once([client_of("ppo", i, 2, tmp_path, **changes) for i in range(2)], tmp_path / "runs")
    for result in results:
        rows = [row for row in read_rows(result.run / "metrics.jsonl") if row.get("fed/took_part")]
        assert rows
        assert all(row["fed/clients"] == 2 and row["fed/refused"] == 0 for row in rows)
        assert all(("fed/consensus_l2" in row) == (transport == "gossip") for row in rows)


def test_one_client_with_impossible_numbers_is_refused_and_the_round_goes_on(tmp_path):
    scenarios = [client_of("ppo", i, 3, tmp_path, **{"federated.quorum": 2, **APART}) for i in range(3)]
    parts = [build(scenario) for scenario in scenarios]
    clients = []
    for part in parts:
        begin_alike(part.scenario, part.cast, part.env.spec)
        part.advance()
        clients.append(FederationClient(part.scenario, part.cast.learners, [0], lambda *_, **__: None))
    parts[0].learner.critic.deviation.fill_(-1.0)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda client: client.exchange(4, 128), clients))
    (record,) = history(tmp_path)
    assert record.state == "closed"
    assert [(refusal.client, refusal.kind) for refusal in record.refusals] == [("0", "impossible")]
    assert [entry.client for entry in record.excluded] == ["0"]
