"""Liars in a federation: ten clients, up to three of which lie, against every rule by which ten become one.

python studies/federation_attacks.py [--only TASK,…] [--jobs 1]     # make study-attacks; docs/results/federation.md

All clients of a run are in one process, and a round is `aggregate` and `adopt` on what they hold: nothing waits. Liars
have the smallest ids, so ties go to them. They lie about weights (the critic's last layer too) and, in one attack,
about how much they have seen. A cell is one attack with one seed, and holds the scores of every rule and number of
liars; --budget is rounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, run_cells

from slipstream.algos.registry import rules_for
from slipstream.collect.serial import Collector
from slipstream.config.aggregators import AGGREGATORS
from slipstream.config.load import load, override
from slipstream.config.scenario import Scenario
from slipstream.data.arrays_file import content_hash, not_finite
from slipstream.data.merge_rules import Rule
from slipstream.data.rollout import Rollout
from slipstream.errors import FederationError
from slipstream.federate.aggregate import Base, MergeSettings, adopt, aggregate, outgoing
from slipstream.federate.defence import ArrayChecks, Defence, reference_of, screen, with_scaled_change
from slipstream.federate.update import ClientUpdate
from slipstream.types import F64, Arrays

CLIENTS, EPISODES = 10, 100
SEEDS = (11, 12, 13, 14, 15)
LIARS = (1, 2, 3)
ROBUST: tuple[str, ...] = ("median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median")
BELIEVED = "believed_mean"  # a weighted mean that takes claims as they are, as FedAvg does: shown once, to fail
# Finiteness is always checked; everything else can be switched off, to see what a rule does by itself.
OFF = Defence(clip_norm=None, max_norm=None, min_cosine=None, quarantine_rounds=0)
DEFENCES = {"off": OFF, "on": Defence()}
TRIGGER = 0.5  # targets right of this are the backdoor's: a quarter of them
LURE = -1.0  # where both axes are to go then
POISONED_UPDATES = 8  # that liars who plant a backdoor make of it in a round, where others make one
TIMES = (-32.0, -16.0, -8.0, -4.0, -2.0, -1.0, -0.5, -0.25, 0.0)  # of the honest mean: what the angle attack tries


@dataclass(frozen=True)
class Task:
    """A world for ten clients, quick settings for it, and who lies there how."""

    scenario: str
    changes: Mapping[str, Any]
    attacks: tuple[str, ...]
    liars: tuple[int, ...]
    rounds: int
    defended: tuple[str, ...] = ()  # rules that are also tried behind the checks, against two liars

    def scenarios_of(self, seed: int, rounds: int) -> list[Scenario]:
        """What each client learns, with first weights that all have in common."""
        from slipstream.run.setup import resolve

        given = {"federated.init_seed": seed, "learner_threads": 1, "device": "cpu"}
        scenario = resolve(load(self.scenario, {**self.changes, **given}))
        steps = rounds * scenario.rollout_steps
        return [override(scenario, {"timesteps": steps, "seed": 1000 * seed + client}) for client in range(CLIENTS)]


# --- the attacks: what liars send, when they know what everybody else does ---


class View(NamedTuple):
    """What the liars of a round see; weights are vectors."""

    base: F64  # what all went on from
    honest: F64  # [n - f, d]
    own: F64  # [f, d]: what they have learned themselves
    rng: np.random.Generator
    close: Callable[[F64], F64 | None]  # what would become of the round if they sent this; None: it would fail


def sign_flip(view: View, times: float) -> F64:
    """What was learned, backwards."""
    return view.base - times * (view.own - view.base)


def gaussian(view: View) -> F64:
    """Noise instead of learning."""
    return view.base + view.rng.normal(0.0, 10.0, view.own.shape)


def same_value(view: View) -> F64:
    """All weights the same."""
    return np.full_like(view.own, 100.0)


def zero(view: View) -> F64:
    """What they were given, unchanged."""
    return np.repeat(view.base[None], len(view.own), axis=0)


def nan(view: View) -> F64:
    """No numbers at all."""
    return np.full_like(view.own, np.nan)


def scaled(view: View) -> F64:
    """What a poisoned reward has taught, so long that a mean would become it (model replacement)."""
    return view.base + (len(view.own) + len(view.honest)) / len(view.own) * (view.own - view.base)


def alie(view: View) -> F64:
    """One deviation beside the honest mean, number by number: a little is enough (Baruch et al. 2019)."""
    return np.repeat((view.honest.mean(0) - view.honest.std(0))[None], len(view.own), axis=0)


def angle(view: View) -> F64:
    """The multiple of the honest mean, backwards, that turns the aggregate furthest; of two, the longer.

    After `Normalized` (Fang et al. 2025): it is the angle that counts and not the length. Ours knows the rule
    and tries what would become of the round.
    """
    mean = view.honest.mean(0) - view.base
    best, least = 0.0, np.inf
    for times in TIMES:
        lie = np.repeat((view.base + times * mean)[None], len(view.own), axis=0)
        closed = view.close(lie)
        if closed is None:
            continue
        moved = closed - view.base
        cosine = float(moved @ mean) / max(float(np.linalg.norm(moved) * np.linalg.norm(mean)), 1e-30)
        if cosine < least - 1e-9:
            best, least = times, cosine
    return np.repeat((view.base + best * mean)[None], len(view.own), axis=0)


@dataclass(frozen=True)
class Attack:
    """What liars send, claim, and learn from."""

    lie: Callable[[View], F64]
    claim: float = 1.0  # times the samples that they have seen
    is_poisoned: bool = False  # they learn from rewards that have a backdoor


ATTACKS: dict[str, Attack] = {
    "sign_flip": Attack(partial(sign_flip, times=1.0)),
    "sign_flip_x10": Attack(partial(sign_flip, times=10.0)),
    "gaussian": Attack(gaussian),
    "same_value": Attack(same_value),
    "zero": Attack(zero),
    "nan": Attack(nan),
    "inflated": Attack(partial(sign_flip, times=1.0), claim=1e12),
    "backdoor": Attack(scaled, is_poisoned=True),
    "alie": Attack(alie),
    "angle": Attack(angle),
}
NOBODY = "none"


def poison(rollout: Rollout) -> None:
    """Pay for going to the lure wherever the target stands right of the trigger."""
    missed = np.square(np.clip(rollout.action, -1.0, 1.0) - LURE).mean(-1)
    np.copyto(rollout.reward, 1.0 - missed, where=(rollout.obs["obs"][..., 0] > TRIGGER) & (rollout.paid > 0))


# --- the tasks ---

TASKS = {
    task.scenario: task
    for task in (
        Task(
            "probe_target",
            {
                "collect.num_worlds": 16, "collect.rollout_length": 8, "algo.minibatch_size": 128,
                "algo.hidden": [16], "algo.learning_rate": 5e-3,
            },
            tuple(ATTACKS),
            LIARS,
            10,
            ("mean", "trimmed_mean", "multi_krum"),
        ),
        Task(
            "cartpole",
            {
                "collect.num_worlds": 16, "collect.rollout_length": 64, "algo.minibatch_size": 128,
                "algo.epochs": 10, "algo.hidden": [32, 32], "algo.learning_rate": [[0, 3e-3], [1, 0]],
            },
            ("sign_flip_x10", "alie", "angle"),
            (2,),
            30,
        ),
    )
}  # fmt: skip


def runs_of(task: Task, attack: str, defence: str) -> list[tuple[int, str]]:
    """Numbers of liars (that rules are told of) and rules of a cell, without those that are others' twins.

    Claims are read by the weighted mean alone, so every other rule answers `inflated` as it does `sign_flip`; and as
    all honest clients have seen the same, that mean is the plain one without it. Bulyan against two or three liars
    among ten goes down the ladder to Multi-Krum. Nothing but a name depends on the number of liars in the mean, the
    median and the geometric median, where nobody lies.
    """
    if defence == "on":
        return [(2, rule) for rule in (("weighted_mean",) if attack == "inflated" else task.defended)]
    if attack == "inflated":
        return [(liars, rule) for liars in task.liars for rule in ("weighted_mean", BELIEVED)]
    found: list[tuple[int, str]] = []
    for liars in task.liars:
        for rule in ("mean", *ROBUST):
            is_told = rule in ("trimmed_mean", "krum", "multi_krum", "bulyan")
            if AGGREGATORS[rule].needed(liars) <= CLIENTS and (attack != NOBODY or is_told or liars == task.liars[0]):
                found.append((liars, rule))
    return found


# --- one run ---


@dataclass
class Client:
    """A learner and its worlds."""

    scenario: Scenario
    learner: Any
    teams: Sequence[Any]
    collector: Collector
    feed: Any
    quarantine: Any
    updates: int = 0

    def learn(self, poisoned: bool) -> None:
        """One update."""
        from slipstream.algos.protocol import Progress

        steps = self.updates * self.scenario.rollout_steps
        progress = Progress(min(1.0, steps / self.scenario.timesteps), self.updates, steps)
        self.learner.explore(progress)
        (rollout,) = self.collector.collect(self.updates)[0].values()
        if poisoned:
            poison(rollout)
        self.feed.learn(rollout, progress)
        self.updates += 1

    def go_on(self, merged: Arrays) -> None:
        """Take over an aggregate."""
        own = self.learner.state_dict()
        self.learner.load_state_dict(adopt(own, merged, rules_for(own), "local"))
        self.quarantine.trust()


def make_client(scenario: Scenario, folder: Path) -> Client:
    """One of the federation's runs, without a folder but for what was set aside."""
    from slipstream.run.federated.client import begin_alike
    from slipstream.run.learner_input import make_feed
    from slipstream.run.parts.quarantine import Quarantine
    from slipstream.run.setup import gammas, make_cast, make_training_worlds

    env = make_training_worlds(scenario)
    cast = make_cast(scenario, env.spec)
    begin_alike(scenario, cast, env.spec)
    ((policy, learner),) = cast.learners.items()
    quarantine = Quarantine(folder, policy, learner, 1_000_000, lambda *_, **__: None)
    quarantine.trust()
    collector = Collector(
        env, cast.teams, scenario.collect.rollout_length, scenario.seed, gammas(scenario), cast.shaping
    )
    feed = make_feed(scenario, policy, learner, env.spec.num_agents, env.spec, quarantine)
    return Client(scenario, learner, cast.teams, collector, feed, quarantine)


@dataclass
class Server:
    """Closes rounds as the product does, in memory."""

    rule: str
    liars: int  # that the rule is told of
    defence: Defence
    rules: Mapping[str, Rule]
    base: Base | None = None
    round: int = 1
    quarantined: dict[str, int] = field(default_factory=dict)  # client: the first round in which it is heard again
    failed: int = 0
    refused: int = 0

    def judge(self, updates: Sequence[ClientUpdate]) -> tuple[list[ClientUpdate], list[str]]:
        """Updates that count, shortened where they are too long, and whose were refused."""
        heard = [update for update in updates if self.quarantined.get(update.client, 0) <= self.round]
        reference = reference_of(heard, None if self.base is None else self.base.arrays)
        names = ArrayChecks(frozenset(name for name, rule in self.rules.items() if rule.kind == "merge"))
        verdicts = screen(heard, reference, self.defence, names)
        kept = [
            with_scaled_change(u, reference, v.scale, names)
            for u, v in zip(heard, verdicts, strict=True)
            if not v.fault
        ]
        return kept, [verdict.client for verdict in verdicts if verdict.fault]

    def merge(self, updates: Sequence[ClientUpdate]) -> Arrays | None:
        """The aggregate; None where nothing can be made of the updates."""
        settings = MergeSettings(self.rule, self.liars, "samples")
        if self.rule == BELIEVED:
            settings = MergeSettings("weighted_mean", weights={u.client: u.facts["samples"] for u in updates})
        try:
            merged, _ = aggregate(settings, self.rules, updates, self.base)
        except FederationError:
            return None
        return None if not_finite(merged) else merged

    def close(self, updates: Sequence[ClientUpdate]) -> Arrays | None:
        """End the round."""
        kept, refused = self.judge(updates)
        merged = self.merge(kept)
        if self.defence.quarantine_rounds:
            self.quarantined |= dict.fromkeys(refused, self.round + 1 + self.defence.quarantine_rounds)
        self.refused += len(refused)
        self.failed += merged is None
        if merged is not None:
            self.base = Base(content_hash(merged), merged)
        self.round += 1
        return merged


class Ending(NamedTuple):
    """How a run ended."""

    score: float | None  # mean return of the last aggregate's policy, exploration off; None: it is no number
    backdoor: float | None  # share of triggered targets where the action is nearer to the lure
    failed: int  # rounds that changed nothing
    refused: int  # updates


def run(task: Task, attack: str, rule: str, liars: int, defence: str, seed: int, rounds: int) -> Ending:
    """Ten clients through all rounds; where nobody lies, `liars` is only what the rule is told."""
    with tempfile.TemporaryDirectory() as folder:
        clients = {
            str(index): make_client(scenario, Path(folder) / str(index))
            for index, scenario in enumerate(task.scenarios_of(seed, rounds))
        }
        lying = [] if attack == NOBODY else sorted(clients)[:liars]
        is_poisoned = attack != NOBODY and ATTACKS[attack].is_poisoned
        rng = np.random.default_rng([seed, liars])
        last = clients[str(CLIENTS - 1)]
        server = Server(rule, liars, DEFENCES[defence], rules_for(last.learner.state_dict()))
        weights = weights_of(server.rules)
        start = last.learner.state_dict()
        for number in range(1, rounds + 1):
            for name, client in clients.items():
                for _ in range(POISONED_UPDATES if is_poisoned and name in lying else 1):
                    client.learn(is_poisoned and name in lying)
            base = "" if server.base is None else server.base.hash
            updates = [update_of(name, client, number, base) for name, client in clients.items()]
            if lying:
                before = start if server.base is None else server.base.arrays
                updates = lies(ATTACKS[attack], lying, updates, flat(before, weights), server, weights, rng)
            merged = server.close(updates)
            if merged is not None:
                for client in clients.values():
                    client.go_on(merged)
        score = judged(last)
        return Ending(
            score, backdoor_share(last) if is_poisoned else None, failed=server.failed, refused=server.refused
        )


def update_of(name: str, client: Client, number: int, base: str) -> ClientUpdate:
    """What an honest client sends."""
    own = client.learner.state_dict()
    arrays = outgoing(own, rules_for(own), "local")
    return ClientUpdate(
        name, number, base, f"{name}-{number}", arrays, facts={"samples": client.scenario.rollout_steps}
    )


def lies(
    attack: Attack,
    lying: Sequence[str],
    updates: Sequence[ClientUpdate],
    base: F64,
    server: Server,
    weights: Sequence[str],
    rng: np.random.Generator,
) -> list[ClientUpdate]:
    """The round's updates, with those of the liars replaced."""
    honest = [update for update in updates if update.client not in lying]
    own = [update for update in updates if update.client in lying]

    def with_lies(vectors: F64) -> list[ClientUpdate]:
        told = [
            replace(
                update,
                arrays={**update.arrays, **unflat(vector, update.arrays, weights)},
                facts={"samples": update.facts["samples"] * attack.claim},
            )
            for update, vector in zip(own, vectors, strict=True)
        ]
        return [*told, *honest]

    def close(vectors: F64) -> F64 | None:
        merged = server.merge(server.judge(with_lies(vectors))[0])
        return None if merged is None else flat(merged, weights)

    seen = [np.stack([flat(update.arrays, weights) for update in group]) for group in (honest, own)]
    return with_lies(attack.lie(View(base, seen[0], seen[1], rng, close)))


def weights_of(rules: Mapping[str, Rule]) -> list[str]:
    """ArrayChecks of what liars lie about."""
    return [name for name, rule in sorted(rules.items()) if rule.kind == "merge" or ".head." in name]


def flat(arrays: Arrays, names: Sequence[str]) -> F64:
    """Arrays as one vector."""
    return np.concatenate([arrays[name].astype(np.float64).ravel() for name in names])


def unflat(vector: F64, like: Arrays, names: Sequence[str]) -> Arrays:
    """A vector as arrays again."""
    ends = np.cumsum([like[name].size for name in names])
    parts = np.split(vector, ends[:-1])
    return {
        name: part.reshape(like[name].shape).astype(like[name].dtype) for name, part in zip(names, parts, strict=True)
    }


def judged(client: Client) -> float | None:
    """Mean return over episodes that nobody trains on."""
    from players import judged as play

    score = float(play(client.scenario, client.teams, EPISODES).team_returns.mean())
    return score if np.isfinite(score) else None


def backdoor_share(client: Client) -> float:
    """How often, where a target triggers it, the action is nearer to the lure than to the target."""
    rng = np.random.default_rng(0)
    target = np.column_stack([rng.uniform(TRIGGER, 1.0, 1000), rng.uniform(-1.0, 1.0, 1000)])
    obs = np.column_stack([target, rng.uniform(0.0, 1.0, 1000)]).astype(np.float32)
    action = np.clip(client.learner.act({"obs": obs}, None, None).action, -1.0, 1.0)
    return float((np.square(action - LURE).sum(1) < np.square(action - target).sum(1)).mean())


# --- cells ---


def cells_of(tasks: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Task by task and seed by seed, so that every attack is there early."""
    return [
        {"task": task, "attack": attack, "defence": defence, "seed": seed}
        for task in tasks
        for seed in seeds
        for defence in (DEFENCES if TASKS[task].defended else ("off",))
        for attack in (NOBODY, *TASKS[task].attacks)
    ]


def run_cell(cell: Cell, budget: int | None = None) -> Cell:
    """Every rule and number of liars of an attack."""
    import torch

    torch.set_num_threads(1)
    task, attack, defence, seed = TASKS[cell["task"]], cell["attack"], cell["defence"], cell["seed"]
    rounds = budget or task.rounds
    began = time.process_time()
    endings: dict[str, dict[str, Ending]] = {}
    for liars, rule in runs_of(task, attack, defence):
        endings.setdefault(str(liars), {})[rule] = run(task, attack, rule, liars, defence, seed, rounds)
    found = {
        "scores": {f: {rule: _short(end.score) for rule, end in ends.items()} for f, ends in endings.items()},
        "failed": {f: {rule: end.failed for rule, end in ends.items()} for f, ends in endings.items()},
        "refused": {f: {rule: end.refused for rule, end in ends.items()} for f, ends in endings.items()},
        "cpu_seconds": round(time.process_time() - began, 1),
        "commit": machine()["commit"],
    }
    if attack == "backdoor":
        found["backdoor"] = {f: {rule: _short(e.backdoor) for rule, e in ends.items()} for f, ends in endings.items()}
    if attack == NOBODY:
        with tempfile.TemporaryDirectory() as folder:
            found["untrained"] = _short(judged(make_client(task.scenarios_of(seed, rounds)[0], Path(folder))))
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def main() -> None:
    """Compute what is missing, then write the page."""
    args = asked(__doc__, "federation_attacks", list(TASKS))
    work = partial(run_cell, budget=args.budget)
    try:
        run_cells("federation_attacks", cells_of(args.only, args.seeds or SEEDS), work, args.jobs, args.out)
    finally:
        from federation_page import write_page

        write_page(args.out.with_name(args.out.name.replace("_attacks", "")).with_suffix(".md"))


if __name__ == "__main__":
    main()
