"""Learner state as flat named arrays, and back."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from slipstream.errors import CheckpointError, suggest
from slipstream.types import Arrays

AVERAGE = "average"  # prefix of weights that are judged in place of the actor's own (algo.ema_decay)


def module_arrays(module: nn.Module, prefix: str) -> Arrays:
    """A module's parameters and buffers as arrays named prefix.name (copies)."""
    return {f"{prefix}.{k}": t.detach().cpu().numpy().copy() for k, t in module.state_dict().items()}


def load_module(module: nn.Module, state: Arrays, prefix: str, strict: bool) -> None:
    """Copy arrays named prefix.name into the module; every problem is named."""
    own = module.state_dict()
    given = {k.removeprefix(prefix + "."): v for k, v in state.items() if k.startswith(prefix + ".")}
    if strict:
        refuse_differences(set(own), set(given), prefix)
    for name, tensor in own.items():
        if name in given:
            copy_into(tensor, given[name], f"{prefix}.{name}")


def refuse_differences(own: set[str], given: set[str], prefix: str) -> None:
    """A clear error when names are missing or unknown."""
    if missing := sorted(own - given):
        raise CheckpointError(
            f"{prefix}: the saved state lacks {', '.join(missing[:4])}"
            f"{' …' if len(missing) > 4 else ''}; it comes from another network (hidden sizes, options) or algorithm"
        )
    if extra := sorted(given - own):
        raise CheckpointError(
            f"{prefix}: the saved state has {', '.join(extra[:4])}{' …' if len(extra) > 4 else ''}, which this network "
            "does not; pass strict=False to ignore them" + suggest(extra[0], own)
        )


def refuse_unknown(state: Arrays, parts: Iterable[str], strict: bool) -> None:
    """A clear error for arrays that belong to none of these parts: those named so, or prefix.name of one."""
    known = set(parts)
    extra = sorted(name for name in state if name.partition(".")[0] not in known)
    if strict and extra:
        raise CheckpointError(
            f"the saved state has {', '.join(extra[:4])}{' …' if len(extra) > 4 else ''}, which this algorithm does "
            "not; it comes from another one; pass strict=False to ignore them" + suggest(extra[0], known)
        )


def copy_into(tensor: Tensor, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> None:
    """Copy a saved array into a tensor of the same shape."""
    if tuple(tensor.shape) != tuple(array.shape):
        raise CheckpointError(
            f"{name}: saved with shape {tuple(array.shape)}, but this network has {tuple(tensor.shape)}; "
            "the hidden sizes or the world's observation differ"
        )
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(np.array(array)))
