"""Actor and critic on one native torso (convolutions, a memory), which runs once for both heads, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from slipstream.nets.actor import Actor
from slipstream.nets.arithmetic import PLAIN, current_arithmetic
from slipstream.nets.critic import Critic
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.mlp import NativeForward, forward_with_memory, is_native
from slipstream.nets.torso import NativeTorso, TorsoForward, TorsoRunner


class SharedForward(NamedTuple):
    """Two heads that ran on the features of one torso, and what their backward pass needs."""

    torso: TorsoForward
    heads: NativeForward

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The actor's, then the critic's."""
        return self.heads.outputs

    def backward(self, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of the torso's parameters, of the actor's head and of the critic's."""
        (by_actor, by_critic), of_heads = self.heads.all_grads(output_grads)
        return *self.torso.backward((by_actor + by_critic[:, : by_actor.shape[1]],)), *of_heads


class SharedRunner:
    """Runs them forward; memory for what one backward pass needs is kept from pass to pass."""

    def __init__(self, torso: TorsoRunner, actor: Actor, critic: Critic) -> None:
        self._torso, self._actor, self._critic = torso, actor, critic
        self._memory: list[Tensor] = []

    def forward_natively(self, inputs: Inputs, critic_inputs: Inputs) -> SharedForward | None:
        """Outputs of the actor and of the critic; None where torch has to run them."""
        if current_arithmetic() != PLAIN or not is_native(inputs[VECTOR]):
            return None
        torso = self._torso.forward(inputs)
        (features,) = torso.outputs
        passes = [
            self._actor.head.native().on(features),
            self._critic.head.native().on(self._critic.head_inputs(features, critic_inputs)),
        ]
        return SharedForward(torso, forward_with_memory(passes, self._memory))


def shared_runner(actor: Actor, critic: Critic) -> SharedRunner | None:
    """A runner of both, where the critic reads the features of an actor's torso and torch need not run that."""
    if critic.torso is not None or not isinstance(actor.torso, NativeTorso):
        return None
    torso = actor.torso.runner()
    return None if torso is None else SharedRunner(torso, actor, critic)
