"""Verbs that show: scenarios, and a world to play."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from slipstream.config.load import dump, list_scenarios, load


def scenarios(argv: Sequence[str]) -> int:
    """List the packaged scenarios, or describe one."""
    parser = argparse.ArgumentParser(
        "slipstream scenarios", description="List the scenarios, or describe one in full.", allow_abbrev=False
    )
    parser.add_argument("name", nargs="?", help="a scenario's name or file")
    args = parser.parse_args(argv)
    if args.name is None:
        family = ""
        for info in list_scenarios():
            if info.family != family:
                family = info.family
                print(f"{family}:")
            print(f"  {info.name:<24}{info.description}")
        print("\nslipstream scenarios NAME describes one; slipstream train NAME trains it")
        return 0
    scenario = load(args.name)
    print(dump(scenario), end="")
    print(_describe_world(args.name))
    return 0


def drmario(argv: Sequence[str]) -> int:
    """Play Dr. Mario; its own module is loaded by those who do."""
    from slipstream.cli.drmario import main

    return main(argv)


def _describe_world(name: str) -> str:
    from slipstream.worlds.registry import make_worlds

    worlds = make_worlds(load(name).world, 1)
    spec = worlds.spec
    worlds.close()
    action = spec.action
    what = "choices" if action.discrete else "axes"
    lines = [
        "",
        f"# {spec.name}: {spec.num_agents} agents ({', '.join(spec.agents[:8])}{' …' if spec.num_agents > 8 else ''})",
        f"# action: {action.size} {what} {', '.join(action.names)}",
        f"# scripted policies: {', '.join(spec.scripts) or 'none'}",
        f"# episode figures: {', '.join(spec.stats) or 'none'}",
    ]
    for block in spec.obs:
        lines.append(f"# observation {block.name} {list(block.shape)}: {', '.join(block.features)}")
    return "\n".join(lines)
