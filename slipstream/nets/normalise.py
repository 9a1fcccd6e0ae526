"""Running standardisation of observations and rewards; the statistics are part of a policy's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP = 10.0  # standardised inputs beyond this say nothing more to a network and upset it


class RunningNorm(nn.Module):
    """Standardises by the mean and deviation of everything seen so far (Chan et al.'s parallel update, in float64)."""

    mean: Tensor
    m2: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # What forward uses; identity until the first update.
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Rows standardised and clipped."""
        return torch.clamp((x - self.shift) * self.scale, -CLIP, CLIP)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take these rows [rows, size] into the statistics; rows that are not finite do not count."""
        x = x[torch.isfinite(x).all(1)].to(torch.float64)
        rows = x.shape[0]
        if rows == 0:
            return
        mean = x.mean(0)
        m2 = (x - mean).square().sum(0)
        total = self.count + rows
        delta = mean - self.mean
        self.m2 += m2 + delta.square() * (self.count * rows / total)
        self.mean += delta * (rows / total)
        self.count.copy_(total)
        deviation = torch.sqrt(self.m2 / total)
        self.shift.copy_(self.mean)
        # A constant feature is centred, never blown up: the floor is far below any real feature's spread.
        self.scale.copy_(torch.where(deviation > 1e-6, 1.0 / deviation.clamp_min(1e-6), torch.ones_like(deviation)))
