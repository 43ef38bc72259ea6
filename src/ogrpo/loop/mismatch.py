"""Whether the sampler's log-probs are those of the weights that it was given.

For a batch that was drawn with the trainer's own weights the trainer knows the true ones: what is
left between the two is precision, or a fault of the sampler's.
"""

from typing import NamedTuple

import numpy as np

from ogrpo.protocol import IntArray
from ogrpo.rollout.vllm import RolloutError


class MismatchLimit(NamedTuple):
    """How far apart the log-probs may be."""

    nats: float | None
    """A token, on average; None is any distance."""
    servers: tuple[str, ...]
    """Who samples; nobody else than the trainer where there are none."""

    def passed_by(self, mismatch: float) -> bool:
        """Whether a batch's mean is beyond it."""
        return self.nats is not None and mismatch > self.nats

    def check(self, mismatch: float, step: int) -> None:
        """Refuses to go on with a batch that was beyond it.

        Raises:
            RolloutError: names the value, the limit, the servers and what can be done.
        """
        if not self.passed_by(mismatch):
            return
        who = ", ".join(self.servers) or "the embedded sampler"
        raise RolloutError(
            f"the log-probs of {who} are {mismatch:.3g} nats a token from the trainer's in step"
            f" {step}, whose batch was drawn with the trainer's own weights;"
            f" rollout.mismatch-limit is {self.nats:g}. One update was taken on them. Look for what"
            " changes log-probs behind the proof of a push: a temperature, penalty or truncation of"
            " the server's own (ogrpo-serve sets none), a proxy that rewrites answers, a dtype"
            " below bfloat16. A larger --rollout.mismatch-limit, or None, trains on them as they"
            " are"
        )


def all_fresh(policy_versions: IntArray, step: int) -> bool:
    """Whether a batch comes from the weights with which a step begins."""
    return bool(np.all(np.asarray(policy_versions) == step))
