"""Settings that change nothing because of others: they are said, not refused."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.config.algos import AnyAlgo, PpoConfig, SacConfig
from slipstream.config.algos.offpolicy import ReplayLearnerConfig, SharingConfig
from slipstream.config.base import Config
from slipstream.config.federated import FederatedConfig
from slipstream.config.scenario import CollectConfig, LearningPolicy, LogConfig, Scenario, ShapingConfig

PRESENT = frozenset({"enabled", "client", "clients", "dp_sgd"})  # of `federated`: what counts, or says who is there
OF_EVALUATIONS = (
    ("evaluate", "enable_hallucination_detection"),
    ("log", "log_trajectories"),
    ("log", "frames_keep"),
    ("checkpoint", "best_min_improvement"),
)


def without_effect(scenario: Scenario) -> list[str]:
    """A sentence for every setting that differs from its default and changes nothing in this scenario."""
    return [f"{path} has no effect here: {why}" for path, why in _idle(scenario)]


def _idle(scenario: Scenario) -> Iterator[tuple[str, str]]:
    yield from _collecting(scenario)
    yield from _judging(scenario)
    if not scenario.shaping.use_potential_shaping:
        for name in sorted(_changed(scenario.shaping, ShapingConfig()) - {"use_potential_shaping"}):
            yield f"shaping.{name}", "shaping.use_potential_shaping is false, so no reward is added"
    if not scenario.federated.enabled:
        federated = scenario.federated
        counts = PRESENT | ({"agents"} if federated.dp_sgd is not None else set())
        counts |= {"defence"} if federated.secure else set()  # set by `secure`, not by the user
        for name in sorted(_changed(federated, FederatedConfig()) - counts):
            yield f"federated.{name}", "federated.enabled is false, so weights are not exchanged"
    for where, algo in _algorithms(scenario):
        if scenario.federated.dp_sgd is not None and isinstance(algo, ReplayLearnerConfig) and algo.accumulate != 1:
            yield f"{where}.accumulate", "steps of federated.dp_sgd take every draw whole"
        for name, why in _learning(algo):
            yield f"{where}.{name}", why


def _collecting(scenario: Scenario) -> Iterator[tuple[str, str]]:
    collect, usual = scenario.collect, CollectConfig()
    if scenario.is_offline:
        for name in sorted(_changed(collect, usual) - {"num_worlds", "rollout_length", "world_threads"}):
            yield f"collect.{name}", "nothing is collected: the run learns from a dataset, or from what others add"
        return
    if collect.prefetch != usual.prefetch and collect.overlap != "free":
        yield (
            "collect.prefetch",
            f"rollouts wait for the learner only with collect.overlap free (it is {collect.overlap})",
        )
    if collect.lag != usual.lag and collect.overlap == "none":
        yield "collect.lag", "the learner and its collectors take turns (collect.overlap is none), so nobody lags"
    if collect.lag != usual.lag and collect.overlap == "free" and not collect.workers:
        yield (
            "collect.lag",
            "it bounds how old workers' rollouts get, and there are none; collect.prefetch bounds it here",
        )
    if collect.mode != usual.mode and not collect.workers:
        yield "collect.mode", "it is about workers, and there are none (collect.workers is 0)"
    is_foreign = not scenario.world.is_native
    if collect.seed_stride and not is_foreign:
        yield "collect.seed_stride", f"worlds of kind {scenario.world.kind} are native and have streams of their own"
    if is_foreign and collect.world_threads not in ("auto", 1):
        yield "collect.world_threads", "environments of other libraries are stepped by one thread; try collect.workers"


def _judging(scenario: Scenario) -> Iterator[tuple[str, str]]:
    if scenario.evaluate.evaluation_interval is None:
        for part, name in OF_EVALUATIONS:
            config = getattr(scenario, part)
            if getattr(config, name) != type(config).model_fields[name].default:
                yield f"{part}.{name}", "it is about evaluation episodes, and evaluate.evaluation_interval is null"
    elif scenario.log.frames_every is None and scenario.log.frames_keep != LogConfig().frames_keep:
        yield "log.frames_keep", "no episode is recorded (log.frames_every is null)"


def _learning(algo: AnyAlgo) -> Iterator[tuple[str, str]]:
    if isinstance(algo, PpoConfig) and algo.kl_target is not None and algo.kl_coef == 0:
        yield "kl_target", "it makes kl_coef larger and smaller, and that is 0"
    if isinstance(algo, SacConfig) and algo.target_entropy != "auto" and not algo.learn_temperature:
        yield "target_entropy", "the temperature is not learned (learn_temperature is false)"
    if not isinstance(algo, ReplayLearnerConfig):
        return
    replay = algo.replay
    changed = _changed(replay.sharing, SharingConfig())
    if replay.kind == "local":
        for name in sorted(changed):
            yield f"replay.sharing.{name}", "the replay is local (replay.kind) and shared with nobody"
    elif replay.address is None:
        for name in sorted(changed & {"mixing", "weight", "follow_performance"}):
            yield f"replay.sharing.{name}", "the run is alone in a service of its own (replay.address is null)"


def _algorithms(scenario: Scenario) -> Iterator[tuple[str, AnyAlgo]]:
    """Those that train a policy, by path."""
    learning = {name: policy for name, policy in scenario.policies.items() if isinstance(policy, LearningPolicy)}
    if any(policy.algo is None for policy in learning.values()):
        yield "algo", scenario.algo
    for name, policy in learning.items():
        if policy.algo is not None:
            yield f"policies.{name}.algo", policy.algo


def _changed(config: Config, usual: Config) -> set[str]:
    """Names of the fields that differ."""
    return {name for name in type(config).model_fields if getattr(config, name) != getattr(usual, name)}
