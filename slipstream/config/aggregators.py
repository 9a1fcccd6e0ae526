"""The aggregators that `federated.aggregator` can name: how many clients each needs, and what it withstands.

Validation, rounds and refusals read this table. How a rule merges is in slipstream/federate/rules/NAME.py. To add one,
add its row here and write its file.
"""

from __future__ import annotations

from typing import NamedTuple


class AggregatorTraits(NamedTuple):
    """What can be said of a rule before it has seen any arrays; f stands for the number of liars."""

    needs: tuple[int, int] = (0, 1)  # (a, b): a f + b clients to be used against f liars
    withstands: tuple[int, int] | None = None  # (a, b): a f + b clients withstand f liars; None: not a single one
    fallback: str = ""  # the rule that is used where there are fewer clients; "": none, so the round fails
    is_mean: bool = False  # a mean, which can be computed from a sum: single updates need not be seen
    reads_weights: bool = False  # clients count by `federated.weights`
    merges_moments: bool = True  # can also merge the moments of optimisers

    def needed(self, liars: int) -> int:
        """How many clients the rule needs against so many liars."""
        return self.needs[0] * liars + self.needs[1]

    def survives(self, clients: int) -> int:
        """How many liars among so many clients the rule withstands."""
        if self.withstands is None:
            return 0
        factor, more = self.withstands
        return max(0, (clients - more) // factor)


AGGREGATORS: dict[str, AggregatorTraits] = {
    "mean": AggregatorTraits(is_mean=True),
    "weighted_mean": AggregatorTraits(is_mean=True, reads_weights=True),
    # Of two clients that differ, nobody can say which one lies: three are the fewest.
    "median": AggregatorTraits(needs=(0, 3), withstands=(2, 1)),
    "trimmed_mean": AggregatorTraits(needs=(2, 1), withstands=(2, 1), fallback="median"),
    "krum": AggregatorTraits(needs=(2, 3), withstands=(2, 3), fallback="trimmed_mean"),
    "multi_krum": AggregatorTraits(needs=(2, 3), withstands=(2, 3), fallback="trimmed_mean"),
    "bulyan": AggregatorTraits(needs=(4, 3), withstands=(4, 3), fallback="multi_krum"),
    "geometric_median": AggregatorTraits(needs=(2, 1), withstands=(2, 1), fallback="median"),
}
OWN_RULE = AggregatorTraits(merges_moments=False)  # a function of the user's: nothing is known of it


def is_own_rule(aggregator: str) -> bool:
    """Whether an aggregator is a function of the user's, as module:function, and not one of ours."""
    module, _, function = aggregator.partition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def traits_of(aggregator: str) -> AggregatorTraits:
    """The traits of one of our rules, or of a function of the user's."""
    return OWN_RULE if is_own_rule(aggregator) else AGGREGATORS[aggregator]


def usable_rule(aggregator: str, liars: int, clients: int) -> str | None:
    """The rule itself, or the first fallback that so many clients are enough for; None: there is none."""
    return next((name for name in with_fallbacks(aggregator) if clients >= traits_of(name).needed(liars)), None)


def with_fallbacks(aggregator: str) -> tuple[str, ...]:
    """The rule and what is used in its place, in order."""
    fallback = traits_of(aggregator).fallback
    return (aggregator, *with_fallbacks(fallback)) if fallback else (aggregator,)
