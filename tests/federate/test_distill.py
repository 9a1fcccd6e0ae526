"""Ensembles distilled into a student, and the choice of what to go on with: closed forms, torch and small students."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import FederationError
from slipstream.federate.distill import Axes, Choices, Student, choose, distill, divergence, matched, mixture

quick = settings(max_examples=40, deadline=None)


def choices(seed, rows=4, count=3):
    return Choices(np.random.default_rng(seed).normal(size=(rows, count)))


def axes(seed, rows=4, count=2):
    rng = np.random.default_rng(seed)
    return Axes(rng.normal(size=(rows, count)), np.exp(rng.normal(size=(rows, count))))


def probabilities(policy):
    shifted = np.exp(policy.logits - policy.logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def test_an_ensemble_of_choices_is_the_mean_of_probabilities():
    members = [choices(1), choices(2)]
    mixed = mixture(members, [1, 3])
    expected = 0.25 * probabilities(members[0]) + 0.75 * probabilities(members[1])
    np.testing.assert_allclose(np.exp(mixed.logits), expected, rtol=1e-12)


def test_a_forbidden_choice_stays_forbidden_only_if_all_forbid_it():
    one, two = Choices(np.array([[0.0, -np.inf, -np.inf]])), Choices(np.array([[0.0, 0.0, -np.inf]]))
    np.testing.assert_allclose(np.exp(mixture([one, two]).logits), [[0.75, 0.25, 0.0]])


def test_the_matched_normal_has_the_ensembles_mean_and_variance():
    a, b = Axes(np.array([[0.0]]), np.array([[1.0]])), Axes(np.array([[4.0]]), np.array([[3.0]]))
    both = matched([a, b])
    np.testing.assert_allclose(both.mean, [[2.0]])
    np.testing.assert_allclose(np.square(both.deviation), [[(1 + 9) / 2 + 4]])


@quick
@given(seed=st.integers(0, 10**6))
def test_no_normal_is_nearer_to_the_ensemble_than_the_matched_one(seed):
    """By KL(ensemble, normal), whose part that depends on the normal is its mean negative log-likelihood."""
    rng = np.random.default_rng(seed)
    members = [Axes(rng.normal(size=(1, 1)), np.exp(rng.normal(size=(1, 1)))) for _ in range(3)]
    best = matched(members)

    def cost(mean, deviation):
        second = np.mean([m.deviation**2 + (m.mean - mean) ** 2 for m in members])
        return np.log(deviation) + second / (2 * deviation**2)

    lowest = cost(best.mean, best.deviation)
    for _ in range(20):
        assert cost(best.mean + rng.normal() * 0.3, best.deviation * np.exp(rng.normal() * 0.3)) >= lowest - 1e-12


def test_divergence_is_torchs():
    one, two = choices(1), choices(2)
    kl = torch.distributions.kl_divergence
    wanted = kl(*(torch.distributions.Categorical(logits=torch.from_numpy(p.logits)) for p in (one, two)))
    np.testing.assert_allclose(divergence(one, two), wanted.numpy(), rtol=1e-12)
    one, two = axes(1), axes(2)
    normals = (torch.distributions.Normal(torch.from_numpy(p.mean), torch.from_numpy(p.deviation)) for p in (one, two))
    np.testing.assert_allclose(divergence(one, two), kl(*normals).sum(1).numpy(), rtol=1e-12)


@quick
@given(seed=st.integers(0, 10**6), kind=st.sampled_from([choices, axes]))
def test_divergence_is_never_negative_and_zero_only_from_oneself(seed, kind):
    one, two = kind(seed), kind(seed + 1)
    assert (divergence(one, two) > 0).all()
    np.testing.assert_allclose(divergence(one, one), 0, atol=1e-14)


def test_what_the_teacher_never_does_costs_the_student_nothing_but_not_the_other_way_round():
    never, sometimes = Choices(np.array([[0.0, -np.inf]])), Choices(np.array([[0.0, 0.0]]))
    np.testing.assert_allclose(divergence(never, sometimes), [np.log(2)])
    assert divergence(sometimes, never).tolist() == [np.inf]


def test_policies_of_different_kinds_are_not_compared():
    with pytest.raises(FederationError, match="Choices and Axes"):
        divergence(choices(1), axes(1))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: mixture([Choices(np.array([[np.nan, 0.0]]))]),
        lambda: mixture([Choices(np.array([[-np.inf, -np.inf]]))]),
        lambda: matched([Axes(np.array([[np.inf]]), np.array([[1.0]]))]),
        lambda: matched([Axes(np.array([[0.0]]), np.array([[0.0]]))]),
        lambda: divergence(axes(1), Axes(np.full((4, 2), np.nan), np.ones((4, 2)))),
        lambda: mixture([]),
        lambda: mixture([choices(1)], [-1.0]),
        lambda: mixture([choices(1), choices(2)], [1.0]),
        lambda: mixture([choices(1)], [0.0]),
    ],
)
def test_what_is_not_finite_or_no_policy_is_refused(wrong):
    with pytest.raises(FederationError):
        wrong()


# --- a student ---


def linear_student(rate, features=3, count=4):
    """Softmax regression with the gradient of KL(target, student) written out."""
    held = {"w": np.zeros((features, count))}

    def act(obs):
        return Choices(obs @ held["w"])

    def fit(obs, target):
        error = probabilities(act(obs)) - probabilities(target)
        held["w"] = held["w"] - rate * obs.T @ error / len(obs)

    return Student(act, fit, lambda: {"w": held["w"].copy()}, lambda arrays: held.update(w=arrays["w"]))


def teachers(count=3):
    rng = np.random.default_rng(7)
    made = {f"t{i}": rng.normal(size=(3, 4)) for i in range(count)}
    return {name: lambda obs, w=w: Choices(obs @ w) for name, w in made.items()}


OBS = np.random.default_rng(1).normal(size=(500, 3))


def test_a_student_of_one_teacher_of_its_own_kind_becomes_that_teacher():
    student = linear_student(2.0)
    done = distill(teachers(1), student, OBS, combine=mixture, seed=1, epochs=200, batch=50, patience=200)
    assert done.divergence < 1e-6 < done.began_at
    np.testing.assert_allclose(probabilities(student.act(OBS)), probabilities(teachers(1)["t0"](OBS)), atol=5e-3)


def test_a_student_of_many_comes_nearer_to_their_ensemble_and_is_left_at_its_best():
    student = linear_student(0.5)
    done = distill(teachers(), student, OBS, combine=mixture, seed=1)
    assert done.divergence < 0.5 * done.began_at
    assert done.epochs >= 1
    assert student.arrays()["w"].tobytes() == done.arrays["w"].tobytes()


def test_the_same_seed_gives_the_same_bits_and_the_order_of_teachers_does_not_matter():
    def run(seed, who):
        return distill(who, linear_student(0.5), OBS, combine=mixture, seed=seed, epochs=3).arrays["w"].tobytes()

    backwards = dict(reversed(teachers().items()))
    assert run(1, teachers()) == run(1, backwards) != run(2, teachers())


def test_a_student_that_only_gets_worse_is_left_where_it_began():
    student = linear_student(-5.0)  # it climbs
    before = student.arrays()["w"].tobytes()
    done = distill(teachers(), student, OBS, combine=mixture, seed=1, patience=2)
    assert (done.epochs, done.divergence) == (0, done.began_at)
    assert student.arrays()["w"].tobytes() == done.arrays["w"].tobytes() == before


def test_what_is_held_out_is_never_fitted():
    seen, judged = [], []
    student = linear_student(0.1)
    watched = Student(
        lambda obs: judged.append(obs) or student.act(obs),
        lambda obs, target: seen.append(obs) or student.fit(obs, target),
        student.arrays,
        student.load,
    )
    distill(teachers(), watched, OBS, combine=mixture, seed=1, epochs=1, batch=64)
    fitted, held = ({row.tobytes() for batch in batches for row in batch} for batches in (seen, judged))
    assert not fitted & held
    assert len(fitted) == 400
    assert len(held) == 100


def test_nothing_can_be_distilled_from_nothing():
    for who, obs in (({}, OBS), (teachers(), OBS[:4])):
        with pytest.raises(FederationError, match=f"^{len(who)} teachers .* {len(obs)} .* 1 and 5$"):
            distill(who, linear_student(0.1), obs, combine=mixture, seed=1)


# --- the choice ---


def candidates(**scores):
    return {name: {"score": np.array(score)} for name, score in scores.items()}


def judge(arrays):
    return float(arrays["score"])


def test_the_candidate_with_the_highest_score_is_chosen_and_all_scores_are_told():
    chosen = choose(candidates(average=1.0, distilled=3.0, best=2.0), judge, "average")
    assert chosen.name == "distilled"
    assert chosen.scores == {"average": 1.0, "distilled": 3.0, "best": 2.0}


@pytest.mark.parametrize(("score", "name"), [(1.0, "average"), (1.5, "average"), (1.6, "distilled"), (0.0, "average")])
def test_the_incumbent_stays_unless_it_is_beaten_by_more_than_the_margin(score, name):
    assert choose(candidates(average=1.0, distilled=score), judge, "average", margin=0.5).name == name


def test_a_score_that_is_not_finite_never_wins():
    chosen = choose(candidates(average=-5.0, distilled=np.inf, other=np.nan), judge, "average")
    assert chosen.name == "average"
    assert chosen.scores == {"average": -5.0, "distilled": None, "other": None}
    assert choose(candidates(average=np.nan, distilled=-9.0), judge, "average").name == "distilled"
    with pytest.raises(FederationError, match="'average': nan"):
        choose(candidates(average=np.nan), judge, "average")


def test_an_incumbent_that_is_no_candidate_is_refused():
    with pytest.raises(FederationError, match=r"strange .* average$"):
        choose(candidates(average=1.0), judge, "strange")
