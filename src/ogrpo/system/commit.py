"""Which commit a package's files are of, for reports."""

import subprocess
from pathlib import Path

SECONDS = 120
"""How long a command that is asked for a fact may take."""


def commit_of(folder: Path) -> str:
    """Returns the commit of a package's folder in words, and whether its files were changed.

    A wheel may lie inside somebody's repository: only where git has this file is it our commit.
    """
    if output_of("git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py") is None:
        return "no checkout"
    commit = output_of("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    changed = output_of("git", "-C", str(folder), "status", "--porcelain", "--", ".")
    return f"commit {commit}{' with changes' if changed else ''}"


def output_of(*command: str) -> str | None:
    """Returns what a command prints, stripped; None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
