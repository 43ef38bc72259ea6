"""Errors between a trainer and its servers, by what the trainer can do about them."""

from ogrpo.rollout.check import Flaw

BUSY = (408, 425, 429, 502, 503, 504)
"""Answers of a server, or of a proxy before it, that is there and cannot answer yet. Any other
answer of an error, given often enough in a row, says that it never will."""


class RolloutError(RuntimeError):
    """Samples cannot be had: every server is gone, or one answers what it must not."""


class Unavailable(RolloutError):
    """A server that does not answer, or fails: worth another attempt, elsewhere or later.

    `status` is its answer; None where there was none, and what it did is unknown.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Flawed(RolloutError):
    """An answer that is not what was ordered: worth another attempt, elsewhere or later."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(str(flaw))
        self.flaw = flaw


class Rejected(RolloutError):
    """A request that the server will reject again (4xx); `status` is its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class PublishRefused(RolloutError):
    """Weights that a server did not take; it goes on serving what it had."""


class Broken(RolloutError):
    """A server whose live model may be half loaded: what it serves belongs to no version."""


class Unproven(RolloutError):
    """A server whose log-probs are not those of the weights it was given."""


class Refused(ValueError):
    """A set-up under which log-probs would be wrong, with the remedy."""
