"""Errors named by who can fix them; each says what was found, where, why it matters and what to try."""

from __future__ import annotations

from collections.abc import Iterable


class SlipstreamError(Exception):
    """Something a user can put right; the command line prints it in one sentence and exits with code 2."""


class ScenarioError(SlipstreamError):
    """A scenario file, key or value is wrong; `keys` are the dotted paths of the wrong keys, where they are known."""

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class CheckpointError(SlipstreamError):
    """A checkpoint is missing, damaged, foreign or does not fit.

    `problem` is what was found, for callers who read other files of arrays and have advice of their own.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem, self.advice = problem, advice


class WorldContractError(SlipstreamError):
    """A world broke its promises about shapes, dtypes or ends of episodes."""


class TrainingError(SlipstreamError):
    """Training cannot go on, though nothing is lost."""


class WorkerDied(SlipstreamError):  # noqa: N818
    """A worker cannot go on, and another in its place could not either; `trace` is its own traceback, if it had one."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message + (f"\n{trace.rstrip()}" if trace else ""))
        self.trace = trace


class ReplayTimeoutError(SlipstreamError):
    """A replay service did not answer in time, or what it waits for did not come."""


class ReplayRefusedError(SlipstreamError):
    """A replay service would not do what it was asked for."""


class LaneInUseError(ReplayRefusedError):
    """Another connection uses the lane; it may be free in a moment."""


class FederationError(SlipstreamError):
    """Replicas cannot learn together as asked, or something one of them sent was refused."""


class RunFolderError(SlipstreamError):
    """A run folder cannot be created, read or continued."""


def suggest(word: str, options: Iterable[str]) -> str:
    """Returns "; did you mean 'x'?" for the option closest to `word`, or nothing when none is close."""
    found = closest(word, options)
    return f"; did you mean '{found}'?" if found else ""


def closest(word: str, options: Iterable[str]) -> str:
    """The option that `word` is likely a misspelling of; "" when none is close."""
    import difflib  # slow to load, and seldom needed

    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""
