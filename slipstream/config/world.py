"""The base classes of worlds' own config classes: the world's block, and its kinds of networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import ClassVar, Self

from slipstream.config.base import OfKind
from slipstream.worlds.world import config_class, config_classes, network_classes


class WorldConfig(OfKind):
    """The `world:` block of a scenario. A world's own class narrows `kind` to a Literal and adds its fields.

    The methods answer for a world that has nothing of the sort; a class overrides those that apply to it.
    """

    is_native: ClassVar[bool] = True  # False: stepped in Python, by one thread, with seeds made by Slipstream

    @classmethod
    def of_kind(cls, kind: str) -> type[WorldConfig] | None:
        """The class of one world, which alone is imported."""
        return config_class(kind)

    @classmethod
    def every(cls) -> Iterable[type[WorldConfig]]:
        """The class of every world that is installed."""
        return config_classes()

    def agents(self) -> tuple[tuple[str, str], ...]:
        """Name and role of every agent, where the config alone determines them."""
        return ()

    def in_training(self) -> Self:
        """The world that experience is collected in, where that is another than the one that policies are judged in."""
        return self

    def analyses_evaluations(self) -> bool:
        """Whether every evaluation also reports the figures of the world's own analysis."""
        return False

    def gymnasium_id(self) -> str | None:
        """The id it is registered under, where it is an environment of Gymnasium's."""
        return None

    def can_be_made_anywhere(self) -> bool:
        """Whether any process can make it; False where it may be known only to this one."""
        return True

    def phase_names(self) -> tuple[str, ...]:
        """Names of the phases that a curriculum goes through, easiest first."""
        return ()

    def only_phase(self, number: int) -> Self:
        """The same world with no phase but this one."""
        del number
        return self

    def curriculum_problems(self, order: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is wrong between these phases and a curriculum of this order: the key's path, and a sentence."""
        del order
        yield from ()


class NetworkConfig(OfKind):
    """`algo.network`: a class narrows `kind` to a Literal and adds the settings of its kinds.

    Settings reach the networks through `NetworkKind.layout`.
    """

    implementation: ClassVar[str]  # "module:attribute" of its `nets.torso.NetworkKind`, imported when one is built
    reads_raw_inputs: ClassVar[bool] = False  # observations are not standardised for it
    for_placements: ClassVar[bool] = False  # the choices are scored one by one: there is no critic of actions
    reads_hidden: ClassVar[bool] = True  # built from `algo.hidden` and `algo.activation`
    remembers: ClassVar[bool] = False  # it has a memory
    shares_torso: ClassVar[bool] = False  # by actor and critic, where `algo.shared_torso` is null

    @classmethod
    def every(cls) -> Iterable[type[NetworkConfig]]:
        """Our own, then those of worlds, each imported when it is reached."""
        from slipstream.config.algos.learner import NETWORKS

        return chain(NETWORKS, network_classes())
