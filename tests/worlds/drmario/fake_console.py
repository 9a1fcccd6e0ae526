"""Our engine behind the console's addresses: what an emulator shows, without a ROM."""

from __future__ import annotations

import numpy as np

from slipstream.worlds.drmario import Engine, Terminal

NES_BUTTONS = ("B", None, "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")  # stable-retro's order
BITS = {"RIGHT": 1, "LEFT": 2, "DOWN": 4, "UP": 8, "START": 16, "SELECT": 32, "B": 64, "A": 128}
UNREAD = np.random.default_rng(5).integers(0, 256, 2048, np.uint8).tobytes()  # bytes nobody should look at


def decimal(number: int) -> int:
    return 16 * (number // 10 % 10) + number % 10


def ram_of(engine: Engine, spawned: int = 0) -> bytes:
    """The RAM of a game after `spawned` pills that came after the first. Addresses are written out here on purpose."""
    ram = bytearray(UNREAD)
    row, column, rotation = engine.pill
    ram[0x0017], ram[0x0018] = 0x12, 0x34
    ram[0x0043] = (engine.frame_counter - 1) & 0xFF
    ram[0x0046] = 4
    ram[0x00F7] = engine.held
    ram[0x0301], ram[0x0302] = engine.colours
    ram[0x0305], ram[0x0306], ram[0x0325] = column, row, rotation
    ram[0x0309] = engine.terminal == Terminal.TOP_OUT
    ram[0x030A] = min(49, (spawned + 2) // 10)
    ram[0x030B] = engine.speed
    ram[0x0310] = decimal(spawned + 2)
    ram[0x0312], ram[0x0313] = engine.speed_counter, engine.hor_velocity
    ram[0x0316] = engine.level
    ram[0x0317] = 0 if engine.controllable else 1
    ram[0x031A], ram[0x031B] = engine.preview
    ram[0x0324] = decimal(engine.viruses)
    ram[0x0400:0x0480] = engine.board.tobytes()
    ram[0x0727], ram[0x0741] = 1, 0
    ram[0x0780:0x0800] = engine.reserve.tobytes()
    return bytes(ram)


class FakeCore:
    """The small surface of stable-retro over one game, perhaps behind a title screen or a demo that START leaves."""

    def __init__(self, make_engine, menu: str | None = None, late: int | None = None, extra: int = 0) -> None:
        self.buttons = NES_BUTTONS
        self._make, self._menu, self._late, self._extra = make_engine, menu, late, extra
        self.actions: list[int] = []

    def reset(self):
        self.engine, self.spawned, self.frame, self.menu = self._make(), 0, 0, self._menu
        return self.get_ram(), {}

    def step(self, action):
        assert action.shape == (len(NES_BUTTONS),)
        held = sum(BITS[name] for name, down in zip(NES_BUTTONS, action, strict=True) if name and down)
        self.frame += 1
        if self.menu:
            self.menu = None if held == BITS["START"] else self.menu
        elif self.frame != self._late:  # a frame in which this core did not get round to the game
            self.actions.append(held)
            self.spawned += self.engine.step(held).spawned
        return self.get_ram(), 0.0, False, False, {}

    def get_ram(self):
        ram = ram_of(self.engine, self.spawned)
        if self.menu == "title":
            ram = bytes(len(ram))
        elif self.menu == "demo":
            ram = ram[:0x741] + b"\xfe" + ram[0x742:]
        return np.frombuffer(ram + bytes(self._extra), np.uint8)
