"""What an update reports: means over its gradient steps, and how much of its targets the values explained."""

from __future__ import annotations

from torch import Tensor

from slipstream.algos.protocol import Stats

Terms = dict[str, float]  # named means over rows, for reports


class Means:
    """Means over an update's gradient steps: loss terms and gradient norms."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums: Terms = {}

    def add(self, norm: float, terms: Terms) -> None:
        """Count one gradient step: its gradient's norm and the terms of its loss."""
        for name, value in {**terms, "grad_norm": norm}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.steps += 1

    def read(self) -> Stats:
        """The means so far, `grad_norm` among them."""
        return {name: total / self.steps for name, total in self._sums.items()}


def explained_variance(value: Tensor, target: Tensor) -> float:
    """Share of the targets' variance the values explain; nan when the targets do not vary."""
    variance = float(target.var(correction=0)) if len(target) > 1 else 0.0
    return 1.0 - float((target - value).var(correction=0)) / variance if variance > 0 else float("nan")
