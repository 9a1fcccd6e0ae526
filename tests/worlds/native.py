"""The worlds of all packaged scenarios, for tests that every world must pass."""

from slipstream.config.load import load
from slipstream.config.packaged import list_scenarios
from slipstream.config.world import WorldConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv

FOREIGN = ("gymnasium", "pettingzoo")


def native_worlds() -> dict[str, WorldConfig]:
    """Scenario name to world, each different native world once."""
    worlds: dict[str, tuple[str, WorldConfig]] = {}
    for info in list_scenarios():
        world = load(info.name).world
        if world.kind not in FOREIGN:
            worlds.setdefault(world.model_dump_json(), (info.name, world))
    return dict(worlds.values())


def maker(config: WorldConfig):
    def make(num_worlds: int, options: EnvOptions) -> VecEnv:
        return make_worlds(config, num_worlds, options)

    return make
