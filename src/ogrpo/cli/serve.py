"""`ogrpo serve`: the same as `ogrpo-serve`."""

import sys
from collections.abc import Sequence

from ogrpo.serving import serve


def main(options: Sequence[str]) -> int:
    """Serves until interrupted; returns the exit code."""
    sys.argv = ["ogrpo-serve", *options]
    return serve.main()
