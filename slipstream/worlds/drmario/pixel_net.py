"""A small U-Net that reads a bottle from a picture, how it is taught, and how well it and a plain rule read.

It takes pixels in blocks of four, goes down to cells and on to pairs of them to see what is around, comes up again with
what it saw on the way, and answers on the grid of cells: one of 22 classes for each cell of the bottle and of the next
pill. A model is a folder of two files, `weights.safetensors` and `model.json`; loading them runs no code.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn import functional as F

from slipstream.config.records import from_json
from slipstream.errors import CheckpointError
from slipstream.types import I64, U8
from slipstream.worlds.drmario.pixels import (
    BOTTLE,
    CELL,
    CLASSES,
    HEIGHT,
    PREVIEW,
    UNKNOWN,
    WIDTH,
    Lesson,
    Positions,
    labels_of,
    positions_of,
    rasterise,
    sample_positions,
    wear,
)

FORMAT, VERSION = "slipstream drmario pixel model", 1
WEIGHTS_FILE, META_FILE = "weights.safetensors", "model.json"
WIDTHS = (32, 64, 64, 64)
PATCH = 4  # pixels that are looked at as one, each way
BATCH = 8
LEARNING_RATE = 8e-3
POOL = 512  # positions that are sampled at a time


class Figures(NamedTuple):
    """How well pictures are read, each a share from 0 to 1."""

    cells: float  # of the bottle
    filled_cells: float  # of those that are not empty
    boards: float  # whole bottles without a mistake
    previews: float  # both colours of the next pill


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is said of a model beside its weights."""

    format: str = FORMAT
    version: int = VERSION
    weights_sha256: str
    widths: tuple[int, int, int, int]
    steps: int  # of training, in all
    figures: dict[str, float]  # on held-out games, worn
    made_with: str


class BottleNet(nn.Module):
    """Pictures [N, 144, 112, 3] of bytes to logits [N, 130, 22]."""

    def __init__(self, widths: tuple[int, int, int, int] = WIDTHS) -> None:
        super().__init__()
        a, b, c, d = self.widths = widths
        self.fine, self.cells, self.around = _block(3 * PATCH**2, a), _block(a, b), _block(b, c)
        self.both = _block(b + c, d)
        self.head = nn.Conv2d(d, CLASSES, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits for the cells in the order of a lesson's labels."""
        seen = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1.0
        cells = self.cells(F.max_pool2d(self.fine(F.pixel_unshuffle(seen, PATCH)), 2))
        around = F.interpolate(self.around(F.max_pool2d(cells, 2)), scale_factor=2.0)
        grid = self.head(self.both(torch.cat([cells, around], 1)))
        bottle, preview = grid[:, :, *BOTTLE].flatten(2), grid[:, :, *PREVIEW]
        return torch.cat([bottle, preview], 2).transpose(1, 2)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


# --- lessons ---


def lesson_from(positions: Positions, rng: np.random.Generator) -> Lesson:
    """Worn pictures of positions, with the truth."""
    return Lesson(wear(rasterise(positions), rng), labels_of(positions))


def held_out_lesson(count: int) -> Lesson:
    """Pictures of games that training never sees, always the same."""
    return lesson_from(sample_positions(count, 0, held_out=True), np.random.default_rng(0))


def lessons(seed: int) -> Iterator[Lesson]:
    """Batches without end: always new positions, always worn anew."""
    rng = np.random.default_rng([seed, 0])
    for round_ in itertools.count():
        pool = sample_positions(POOL, int(np.random.SeedSequence([seed, round_]).generate_state(1)[0]))
        order = rng.permutation(POOL)
        for rows in order.reshape(-1, BATCH):
            yield lesson_from(Positions(pool.boards[rows], pool.previews[rows]), rng)


def mixed_lessons(own: Iterator[Lesson], captures: Lesson, seed: int) -> Iterator[Lesson]:
    """Half of every batch from captures, drawn again and again and moved a little, so that games are not unlearned."""
    rng = np.random.default_rng([seed, 2])
    half = BATCH // 2
    for lesson in own:
        rows = rng.integers(len(captures.pictures), size=half)
        pictures = wear(captures.pictures[rows], rng)
        yield Lesson(
            np.concatenate([lesson.pictures[:half], pictures]),
            np.concatenate([lesson.labels[:half], captures.labels[rows]]),
        )


# --- learning and judging ---


def new_net(seed: int, widths: tuple[int, int, int, int] = WIDTHS) -> BottleNet:
    """A net that knows nothing, the same for the same seed."""
    net, generator = BottleNet(widths), torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


def teach(
    net: BottleNet,
    lessons: Iterator[Lesson],
    *,
    steps: int | None = None,
    seconds: float = 180.0,
    learning_rate: float = LEARNING_RATE,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> int:
    """Take gradient steps, with a learning rate that rises and then falls to nothing; returns how many were taken.

    Without `steps`, as many as fit into `seconds`: what is learned then depends on the machine.
    """
    optimiser = torch.optim.AdamW(net.parameters(), learning_rate, weight_decay=1e-4)
    net.train()
    start, step = time.monotonic(), 0
    for lesson in lessons:
        done = (time.monotonic() - start) / seconds if steps is None else step / steps
        if done >= 1.0:
            break
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 20) * (1.0 - done)
        logits = net(torch.from_numpy(lesson.pictures))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(lesson.labels).flatten(), ignore_index=UNKNOWN)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        step += 1
        report(step, float(loss.detach()))
    net.eval()
    return step


@torch.inference_mode()
def read(net: BottleNet, pictures: U8) -> Positions:
    """What is in pictures."""
    net.eval()
    parts = [net(torch.from_numpy(pictures[i : i + BATCH])).argmax(2) for i in range(0, len(pictures), BATCH)]
    return positions_of(torch.cat(parts).numpy())


def judge(found: Positions, labels: I64) -> Figures:
    """Compare what was read with the truth."""
    right = (labels_of(found) == labels)[:, :128]
    known = (labels[:, 128:] != UNKNOWN).all(1)
    previews = (found.previews == positions_of(labels).previews).all(1)[known]
    return Figures(
        float(right.mean()), float(right[labels[:, :128] != 0].mean()), float(right.all(1).mean()),
        float(previews.mean()) if known.any() else float("nan"),
    )  # fmt: skip


def judge_net(net: BottleNet, lesson: Lesson) -> Figures:
    """How well a net reads a lesson."""
    return judge(read(net, lesson.pictures), lesson.labels)


# --- the plain rule that a net has to beat ---


def centre_colours(pictures: U8) -> NDArray[np.float32]:
    """Mean colour of the four pixels in the middle of each cell, [N, 130, 3]."""
    cells = pictures.reshape(-1, HEIGHT // CELL, CELL, WIDTH // CELL, CELL, 3)
    middle = cells[:, :, 3:5, :, 3:5].mean((2, 4), dtype=np.float32)
    return np.concatenate([middle[:, *BOTTLE].reshape(len(pictures), 128, 3), middle[:, *PREVIEW]], 1)


def fit_baseline(lesson: Lesson) -> NDArray[np.float32]:
    """Each class's mean colour, [22, 3]; a class that was not seen is nobody's nearest."""
    colours, labels = centre_colours(lesson.pictures).reshape(-1, 3), lesson.labels.reshape(-1)
    means = np.full((CLASSES, 3), 1e6, np.float32)
    for k in np.unique(labels[labels != UNKNOWN]).tolist():
        means[k] = colours[labels == k].mean(0)
    return means


def read_by_colour(means: NDArray[np.float32], pictures: U8) -> Positions:
    """Every cell is what its middle looks most like."""
    apart = ((centre_colours(pictures)[:, :, None] - means) ** 2).sum(3)
    return positions_of(apart.argmin(2))


# --- files ---


def pack(net: BottleNet, *, steps: int, figures: Figures, made_with: str) -> dict[str, bytes]:
    """A model's files by name; the one that vouches for the other comes last."""
    weights = save_tensors({name: value.contiguous() for name, value in net.state_dict().items()})
    meta = Meta(
        weights_sha256=hashlib.sha256(weights).hexdigest(), widths=net.widths, steps=steps,
        figures={name: round(value, 6) for name, value in figures._asdict().items()}, made_with=made_with,
    )  # fmt: skip
    return {WEIGHTS_FILE: weights, META_FILE: msgspec.json.format(msgspec.json.encode(meta)) + b"\n"}


def load_model(folder: Path) -> tuple[BottleNet, Meta]:
    """A saved model, checked before it is used."""
    try:
        meta = from_json((folder / META_FILE).read_bytes(), Meta)
        weights = (folder / WEIGHTS_FILE).read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder}: there is no pixel model here ({error.filename} is missing); "
            "slipstream drmario pixels train --out FOLDER makes one"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder / META_FILE}: this describes no pixel model: {error}") from None
    if (meta.format, meta.version) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{folder / META_FILE}: found '{meta.format}' version {meta.version}; "
            f"this reads '{FORMAT}' version {VERSION}"
        )
    if (found := hashlib.sha256(weights).hexdigest()) != meta.weights_sha256:
        raise CheckpointError(
            f"{folder / WEIGHTS_FILE}: SHA-256 is {found:.8}…, {META_FILE} says {meta.weights_sha256:.8}…: "
            "damaged, or of another model"
        )
    if not all(1 <= width <= 1024 for width in meta.widths):
        raise CheckpointError(f"{folder / META_FILE}: widths {meta.widths} are of no model that fits a machine")
    net = BottleNet(meta.widths)
    try:
        net.load_state_dict(load_tensors(weights))
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{folder / WEIGHTS_FILE}: these are not the weights of such a model: {error}") from None
    net.eval()
    return net, meta
