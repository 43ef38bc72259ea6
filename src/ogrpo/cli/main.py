"""`ogrpo COMMAND [options]`: the command line of the library.

ogrpo train --task problems.jsonl --rewards my_rewards.py:reward --model.path DIR
ogrpo eval --model.path DIR --task math-500 --data.path DIR --samples 16
ogrpo model | plan | report RUN... | compare RUN RUN | logs FILE | certify RUN
ogrpo serve | env
"""

import atexit
import contextlib
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from ogrpo.system.extras import needs
from ogrpo.system.files import describe
from ogrpo.system.terminal import RunNote, nearest, shown, without_secrets

USAGE_ERROR, UNEXPECTED, INTERRUPTED = 2, 1, 130
"""Exit codes of an error that says what to do, of one that nobody expected, and of Ctrl-C."""


class CommandLine(NamedTuple):
    """A command: a summary of it, and where its `main(options) -> exit code` is."""

    summary: str
    place: str
    """MODULE:FUNCTION."""
    extra: str = "train"
    """What has to be installed for it: an extra of the package, or nothing."""


COMMANDS = {
    "train": CommandLine("train on a task", "ogrpo.cli.commands:train"),
    "eval": CommandLine("evaluate a model on a task", "ogrpo.cli.commands:evaluate"),
    "model": CommandLine("weights by name, or from a GGUF file", "ogrpo.cli.commands:model"),
    "plan": CommandLine("what fits, and how long a step takes", "ogrpo.cli.commands:plan"),
    "report": CommandLine("draw the page of a run anew", "ogrpo.cli.commands:report"),
    "compare": CommandLine("several runs side by side", "ogrpo.cli.commands:compare"),
    "logs": CommandLine("what a log of completions can teach", "ogrpo.cli.commands:logs"),
    "certify": CommandLine("check a run's certificates", "ogrpo.cli.commands:certify", ""),
    "serve": CommandLine("a server to sample from (ogrpo-serve)", "ogrpo.serving.serve:main", ""),
    "diagnose": CommandLine("where a run ceased to be finite", "ogrpo.cli.commands:diagnose"),
    "env": CommandLine("what a report of a bug needs", "ogrpo.cli.env:main", ""),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name; returns the exit code."""
    replace_unprintable()
    words = sys.argv[1:] if arguments is None else [*arguments]
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else USAGE_ERROR
    if words == ["--version"]:
        from importlib.metadata import version  # late: no command needs it

        print(f"ogrpo {version('ogrpo')}")
        return 0
    name, *options = words
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS)
        print(f"there is no command {name!r}.{hint}\n\n{usage()}", file=sys.stderr)
        return USAGE_ERROR
    _, place, extra = COMMANDS[name]
    try:
        if extra:
            needs(f"ogrpo {name}", extra)
        module, _, function = place.partition(":")
        return getattr(importlib.import_module(module), function)(options)
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error)


def replace_unprintable() -> None:
    """Has standard output show ? for what its encoding lacks, where it would end the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


LONGEST = 600
"""Characters of an error that nobody expected, in the last words; its traceback has them all."""


def report_error(error: BaseException) -> int:
    """Shows what ended a command, our own words last; returns the exit code.

    The traceback of an error that nobody expected stands above them. What libraries print while
    the process ends is not shown: it would come between the reader and what is safe.
    """
    gc.collect()  # what complains while it is deleted does so now
    expected = is_expected(error) or isinstance(error, KeyboardInterrupt)
    sys.stdout.flush()
    if not expected:
        traceback.print_exception(error)
    print(last_words(error), file=sys.stderr, flush=True)
    atexit.register(_close_stderr)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return USAGE_ERROR if expected else UNEXPECTED


def is_expected(error: BaseException) -> bool:
    """Whether the words of an error are enough: it says what is wrong and what to do."""
    # What ended a collection in one of its threads is judged in its place.
    cause = error.__cause__ if type(error).__name__ == "CollectionError" else None
    judged = error if cause is None else cause
    if isinstance(judged, OSError) or type(judged).__module__.startswith("ogrpo."):
        return True
    return cause is None and isinstance(error, ValueError) and not run_notes(error)


def last_words(error: BaseException) -> str:
    """Returns what happened, what of a run is safe, and the command that goes on."""
    if isinstance(error, KeyboardInterrupt):
        what = str(error) or "interrupted"
    elif isinstance(error, OSError):
        what = f"error: {describe(error)}"
    elif is_expected(error):
        what = f"error: {error}"
    else:
        text = str(error)
        cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}... (all of it is above)"
        what = f"error: {type(error).__name__}: {cut}"
    return without_secrets(shown("\n".join([what, *run_notes(error)])))


def run_notes(error: BaseException) -> list[RunNote]:
    """Returns the notes of a run beside an error, or beside those that it came from."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    notes = (note for one in chain for note in getattr(one, "__notes__", ()))
    return [*dict.fromkeys(note for note in notes if isinstance(note, RunNote))]


def _close_stderr() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)


def usage() -> str:
    """Returns the commands, a line each."""
    lines = [f"  {name:<8} {command.summary}" for name, command in COMMANDS.items()]
    rest = "options: ogrpo COMMAND --help; version: ogrpo --version"
    return "\n".join(["usage: ogrpo COMMAND [options]", "", *lines, "", rest])
