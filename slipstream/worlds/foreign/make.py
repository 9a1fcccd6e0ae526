"""Making PettingZoo environments, parallel or turn by turn: from a function, or from PettingZoo's registry."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from slipstream.errors import ScenarioError, suggest
from slipstream.own_code import files_here, find_own
from slipstream.worlds.foreign.config import GymnasiumConfig, PettingZooConfig
from slipstream.worlds.foreign.turns import Turns

EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "mpe2": "mpe"}  # a package as errors spell it -> our extra with it
FUNCTIONS = ("parallel_env", "env")  # what a module's maker is called, the first that there is
Maker = Callable[..., Any]


def find_maker(config: PettingZooConfig) -> Maker:
    """What makes the environment that the scenario names."""
    if config.is_registered:
        return _registered(config.env)
    module_name, _, function = config.env.partition(":")
    try:
        with files_here():
            module = import_module(module_name)
    except ImportError as error:
        hint = extra_hint(error.name or "") or "; is its package installed, the name right?"
        raise ScenarioError(f"world.env: cannot import '{module_name}' ({error}){hint}") from error
    wanted = (function,) if function else FUNCTIONS
    made = next((found for name in wanted if callable(found := getattr(module, name, None))), None)
    if made is None:
        raise ScenarioError(
            f"world.env: '{module_name}' has no function '{wanted[0]}' to make an environment with"
            + suggest(wanted[0], [name for name in dir(module) if not name.startswith("_")])
        )
    maker: Maker = made
    return maker


def _registered(env_id: str) -> Maker:
    """The maker of an id of PettingZoo's registry: of its parallel form if it has one, else turn by turn."""
    import pettingzoo

    if not hasattr(pettingzoo, "make"):
        raise ScenarioError(
            f"world.env: '{env_id}' is an id of a registry, which PettingZoo {pettingzoo.__version__} does not have "
            "(1.27 does); name a function instead, as package.module:function"
        )
    module, colon, name = env_id.rpartition(":")
    if colon:
        try:
            with files_here():
                import_module(module)  # it registers the environment
        except ImportError as error:
            raise ScenarioError(f"world.env: cannot import '{module}' ({error})") from error
    registries = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
    for kind in registries:
        try:
            pettingzoo.spec(kind, name)
        except Exception:  # its errors have no common public name
            continue
        return lambda **kwargs: pettingzoo.make(kind, name, **kwargs)
    known = sorted({key for registry in registries.values() for key in registry})
    raise ScenarioError(
        f"world.env: PettingZoo's registry knows no '{name}'"
        + (suggest(name, known) or f"; it has {', '.join(known)}; one of your own is named module:{name}")
    )


def make_pettingzoo(config: PettingZooConfig, make: Maker) -> Any:
    """One environment in its wrappers, in the shape of a parallel one."""
    try:
        with files_here():
            env = make(**config.kwargs)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ScenarioError(
            f"world.env: '{config.env}' cannot be made with kwargs {dict(config.kwargs)}: {what}"
        ) from error
    env = wrapped(env, config)
    if not getattr(env, "possible_agents", None):
        raise ScenarioError(
            f"world.env: '{config.env}' makes a {type(env).__name__} without possible_agents; a batch "
            "needs to know all agents beforehand"
        )
    return Turns(env) if hasattr(env, "agent_iter") else env


def wrapped(env: Any, config: GymnasiumConfig | PettingZooConfig) -> Any:
    """The environment in its wrappers."""
    for number, wrapper in enumerate(config.wrappers):
        where = f"world.wrappers.{number}.target"
        make = find_own(wrapper.target, where)
        try:
            env = make(env, **wrapper.kwargs)
        except Exception as error:
            raise ScenarioError(
                f"{where}: {wrapper.target} refuses {type(env).__name__} and {dict(wrapper.kwargs)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return env


def extra_hint(missing: str) -> str:
    """How to install what is missing, where an extra of ours brings it."""
    extra = next((extra for package, extra in EXTRAS.items() if missing.lower().split()[:1] == [package]), None)
    if extra is None:
        return ""
    return f"; install the extra '{extra}': pip install 'slipstream[{extra}]', or make study-deps in a checkout"
