"""`ogrpo COMMAND [options]`: the command line of the library.

ogrpo train --task problems.jsonl --rewards my_rewards.py:reward --model.path DIR
ogrpo eval --model.path DIR --task math-500 --data.path DIR --samples 16
ogrpo plan | report RUN... | compare RUN RUN | serve | env
"""

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ogrpo.extras import MissingExtra, needs
from ogrpo.files import told
from ogrpo.terminal import shown, without_secrets

USAGE_ERROR = 2


class CommandLine(NamedTuple):
    """A command: what it does, and where its `main(options) -> exit code` is."""

    summary: str
    module: str
    extra: str
    """What has to be installed for it: an extra of the package, or nothing."""


COMMANDS = {
    "train": CommandLine("train on a task", "ogrpo.cli.train", "train"),
    "eval": CommandLine("evaluate a model on a task", "ogrpo.cli.eval", "train"),
    "plan": CommandLine("what fits, and how long a step takes", "ogrpo.cli.plan", "train"),
    "report": CommandLine("draw the page of a run anew", "ogrpo.cli.report", "train"),
    "compare": CommandLine("several runs side by side", "ogrpo.cli.compare", "train"),
    "serve": CommandLine("a server to sample from (ogrpo-serve)", "ogrpo.cli.serve", ""),
    "diagnose": CommandLine("where a run ceased to be finite", "ogrpo.cli.diagnose", "train"),
    "env": CommandLine("what a report of a bug needs", "ogrpo.cli.env", ""),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name; returns the exit code."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0 if given else USAGE_ERROR
    name, *options = given
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"there is no command {name!r}.{hint}\n\n{usage()}", file=sys.stderr)
        return USAGE_ERROR
    command = COMMANDS[name]
    try:
        if command.extra:
            needs(f"ogrpo {name}", command.extra)
        return importlib.import_module(command.module).main(options)
    except (ValueError, OSError, MissingExtra, RuntimeError) as error:
        if (text := words_of(error)) is None:
            raise
        print(without_secrets(text), file=sys.stderr)
        return USAGE_ERROR


EXPECTED = ("RolloutError", "CollectionError", "RewardError")
"""Errors of what a run talks to: their words are enough."""


def words_of(error: Exception) -> str | None:
    """What the terminal gets of an error; None where it ought to have its whole traceback.

    An error that ended a run which was under way has notes: of how to go on. Where nobody expected
    it, its traceback comes with it.
    """
    notes = getattr(error, "__notes__", [])
    if isinstance(error, OSError):
        return shown("\n".join([f"error: {told(error)}", *notes]))
    if type(error).__name__ in EXPECTED or type(error).__module__.startswith("ogrpo."):
        return shown("\n".join([f"error: {error}", *notes]))
    if isinstance(error, ValueError | MissingExtra) and not notes:
        return shown(f"error: {error}")
    return None


def usage() -> str:
    """The commands, a line each."""
    lines = [f"  {name:<8} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: ogrpo COMMAND [options]", "", *lines, "", "options: ogrpo COMMAND --help"]
    )
