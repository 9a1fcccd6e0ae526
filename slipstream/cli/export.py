"""The verb that writes a trained policy for programs without Slipstream."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.errors import CheckpointError, SlipstreamError
from slipstream.spec import MEMORY

if TYPE_CHECKING:
    from slipstream.run.portable_model import Answer, AnswerMatch

BATCHES = (1, 64)  # rows whose latency is shown


def export(argv: Sequence[str]) -> int:
    """Write a policy as ONNX or as torch's export, and check that the file acts as the policy does."""
    parser = argparse.ArgumentParser(
        "slipstream export",
        description="Write a trained policy, its input statistics included, as a file for other programs; then "
        "compare its actions with the policy's on recorded observations.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", type=Path, help="a run folder, checkpoint or exported model")
    add("--onnx", type=Path, metavar="FILE", help="write an ONNX file")
    add("--torch-export", type=Path, metavar="FILE", help="write what torch.export.load reads (.pt2)")
    add("--policy", metavar="NAME", help="which policy, if there are several")
    add("--rows", type=int, default=2000, metavar="N", help="recorded observations to compare by (default: 2000)")
    args = parser.parse_args(argv)
    if args.onnx is None and args.torch_export is None:
        raise SlipstreamError("export: say what to write: --onnx FILE, --torch-export FILE or both")
    if args.rows < 1:
        raise SlipstreamError(f"--rows {args.rows}: at least one observation is needed to compare by")
    from slipstream.run import portable_model as portable
    from slipstream.run.policy_file import from_checkpoint
    from slipstream.run.saved_cast import load_cast

    scenario, saved = load_cast(args.run)
    policy = from_checkpoint(saved, args.run, args.policy)
    name = args.policy or next(iter(saved.meta["policies"]))
    asked = portable.record(scenario, saved, name, args.rows)
    program = portable.to_program(policy, asked)
    about = {"scenario": scenario.name, "policy": name}
    answers: dict[str, Answer] = {"policy": lambda obs, mask: policy.answer(obs, mask, obs.get(MEMORY))[0]}
    files = {"onnxruntime": args.onnx, "torch.export": args.torch_export}
    for label, file in files.items():
        if file is None:
            continue
        if label == "onnxruntime":
            portable.write_onnx(program, policy, about, file)
            answers[label] = portable.read_onnx(file, policy)
        else:
            portable.write_pt2(program, file)
            answers[label] = portable.read_pt2(file, policy)
        agreement = portable.compare(policy, answers[label], asked)
        print(f"{file}: {_inputs(portable.input_names(policy))} -> {portable.ACTION}")
        print(f"  {label}: {_sentence(agreement, policy.record.actor.discrete)}")
        if not agreement.worst <= portable.TOLERANCE:
            raise CheckpointError(
                f"{file}: acts differently from the policy (worst difference {agreement.worst:.3g}, at most "
                f"{portable.TOLERANCE:g} is rounding); do not use it, and please report this"
            )
    print(f"latency in µs, one thread: {'  '.join(f'{rows} rows'.rjust(9) for rows in BATCHES)}")
    for label, answer in answers.items():
        times = [f"{portable.microseconds(answer, asked, rows):9.0f}" for rows in BATCHES]
        print(f"  {label:<24} {'  '.join(times)}")
    return 0


def _inputs(names: Sequence[str]) -> str:
    return ", ".join(names)


def _sentence(agreement: AnswerMatch, discrete: bool) -> str:
    rows, same = agreement.rows, agreement.rows - agreement.differing
    if discrete:
        worst = f"; scores differ by {agreement.worst:.2g} at most where not" if agreement.differing else ""
        return f"the same choice for {same:,} of {rows:,} recorded observations{worst}"
    return f"{rows:,} recorded observations, worst difference of an action {agreement.worst:.2g}"
