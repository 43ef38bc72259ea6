"""Answers that were refused: counted by reason and by server, each kind told once."""

import logging
from collections import Counter

from ogrpo.rollout.check import REFUSED
from ogrpo.rollout.vllm.errors import Flawed, Rejected

log = logging.getLogger(__name__)


class Refusals:
    """Counts completions that did not come as they were ordered, under `rollout/refused`."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        counts[REFUSED] = 0

    def note(self, place: str, error: Flawed | Rejected, completions: int) -> None:
        """Takes note of an answer to an order of so many completions."""
        reason = error.flaw.reason if isinstance(error, Flawed) else f"status_{error.status}"
        if not self._counts[f"{REFUSED}/{reason}/{place}"]:
            log.warning("%s: refused, this and others like it are counted: %s", place, error)
        for kind in ("", f"/{reason}", f"/{reason}/{place}"):
            self._counts[f"{REFUSED}{kind}"] += completions
