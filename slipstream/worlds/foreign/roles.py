"""Agents of a foreign environment by what they see and do: one batch holds them all, whatever their spaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from slipstream.action_space import ActionSpace, row_of, to_space
from slipstream.errors import WorldContractError
from slipstream.spec import ActionSpec, EntityRows, ObsBlock, RoleSpec
from slipstream.worlds.spaces import Leaf, action_spec, entity_rows, leaves, mask_leaves


@dataclass(frozen=True)
class AgentKind:
    """Agents with the same spaces."""

    agents: tuple[int, ...]
    leaves: tuple[Leaf, ...]  # their blocks, by the names that these have in the world
    masks: tuple[tuple[Leaf, slice], ...]  # and where in a mask each of them stands
    action: ActionSpec
    space: ActionSpace

    def view(self, role: str) -> RoleSpec:
        """What an agent of this kind sees and does."""
        names = tuple(leaf.block.name for leaf in self.leaves)
        return RoleSpec(role, names, self.action, bool(self.masks), self.space)

    @property
    def choices(self) -> tuple[int, ...]:
        """Of each part of the action; empty: it has axes only."""
        return (self.action.size,) if self.action.discrete else self.action.parts

    def to_space(self, actions: NDArray[Any], width: int) -> Any:
        """Their actions [N, A', ...] out of the world's [N, A, ...], in their own space; choices as plain numbers."""
        own = actions if len(self.agents) == actions.shape[1] else actions[:, self.agents]
        if actions.ndim == 3 and self.action.discrete:
            own = own[..., 0].astype(np.int32)
        elif actions.ndim == 3 and self.action.size < width:
            own = own[..., : self.action.size]
        found = to_space(self.space, own)
        if self.space.spaces:
            return [[row_of(found, i, j) for j in range(own.shape[1])] for i in range(own.shape[0])]
        return found.tolist() if self.action.discrete else found  # many environments want a plain int


@dataclass(frozen=True)
class AgentKinds:
    """All agents of an environment."""

    roles: tuple[str, ...]  # one for every agent
    kinds: tuple[AgentKind, ...]
    blocks: tuple[ObsBlock, ...]  # of all kinds
    action: ActionSpec  # as wide as the widest

    @property
    def entities(self) -> tuple[EntityRows, ...]:
        """Rows of others in the blocks of all."""
        named = {leaf.block.name: leaf for kind in self.kinds for leaf in kind.leaves}
        return entity_rows(list(named.values()))

    @property
    def unlike(self) -> tuple[RoleSpec, ...]:
        """Every role's view; empty where all are alike."""
        if len(self.kinds) == 1:
            return ()
        views = {self.roles[agent]: kind for kind in self.kinds for agent in kind.agents}
        return tuple(views[role].view(role) for role in dict.fromkeys(self.roles))


def kinds_of(name: str, world: Any, ids: Sequence[Any]) -> AgentKinds:
    """Roles and kinds of the agents: roles by their names, or one each where agents of one name have unlike spaces."""
    groups: list[tuple[Space[Any], Space[Any], list[int]]] = []
    for k, agent in enumerate(ids):
        obs, act = world.observation_space(agent), world.action_space(agent)
        same = next((members for o, a, members in groups if o == obs and a == act), None)
        if same is None:
            groups.append((obs, act, [k]))
        else:
            same.append(k)
    roles = _roles(ids, [members for *_, members in groups])
    wheres = [name if len(groups) == 1 else f"{name}: {ids[members[0]]}" for *_, members in groups]
    kinds = [_kind(where, *group) for where, group in zip(wheres, groups, strict=True)]
    kinds = _with_names(kinds, roles)
    blocks = {leaf.block.name: leaf.block for kind in kinds for leaf in kind.leaves}
    return AgentKinds(roles, tuple(kinds), tuple(blocks.values()), _widest([kind.action for kind in kinds]))


def _roles(ids: Sequence[Any], groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """`pistonball_3` is a pistonball; of agents of one name that are of two kinds, each is of its own role."""
    roles = [re.sub(r"_\d+$", "", str(agent)) for agent in ids]
    kind_of = {k: number for number, members in enumerate(groups) for k in members}
    mixed = {role for role in roles if len({kind_of[k] for k, other in enumerate(roles) if other == role}) > 1}
    return tuple(str(agent) if role in mixed else role for agent, role in zip(ids, roles, strict=True))


def _kind(where: str, obs: Space[Any], act: Space[Any], members: Sequence[int]) -> AgentKind:
    try:
        found = leaves(obs)
        action, space = action_spec(act)
        masks = mask_leaves(found, act, action)
    except WorldContractError as error:
        raise WorldContractError(f"{where}: {error}") from None
    own = tuple(leaf for leaf in found if all(leaf is not mask for mask, _ in masks))
    return AgentKind(tuple(members), own, tuple(masks), action, space)


def _with_names(kinds: Sequence[AgentKind], roles: Sequence[str]) -> list[AgentKind]:
    """Blocks of one name that differ from kind to kind get the role before their name."""
    shapes: dict[str, set[ObsBlock]] = {}
    for kind in kinds:
        for leaf in kind.leaves:
            shapes.setdefault(leaf.block.name, set()).add(leaf.block)

    def named(kind: AgentKind, leaf: Leaf) -> Leaf:
        block, role = leaf.block, roles[kind.agents[0]]
        if len(shapes[block.name]) == 1:
            return leaf
        name = f"{role}.{block.name}"
        return leaf._replace(block=msgspec.structs.replace(block, name=name))

    return [replace(kind, leaves=tuple(named(kind, leaf) for leaf in kind.leaves)) for kind in kinds]


def _widest(actions: Sequence[ActionSpec]) -> ActionSpec:
    """One action for arrays that hold all of these: see `WorldSpec`."""
    if len(actions) == 1:
        return actions[0]
    discrete = all(action.discrete for action in actions)
    return ActionSpec(discrete, max(1 if action.discrete and not discrete else action.size for action in actions))
