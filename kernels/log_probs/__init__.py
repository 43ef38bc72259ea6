"""Log-probs of tokens from hidden states and the output embedding, without logits.

reference   all logits at once: the oracle, and the fastest where the vocabulary is small
chunked     a slice of the vocabulary at a time, in XLA: any device, the default for large ones
"""

import sys
from functools import partial

from ogrpo.kernels.log_probs.chunked import KEPT_BYTES, WIDTH, chunked_log_probs
from ogrpo.policy.log_probs import HeadFn, token_log_probs

reference_log_probs: HeadFn = partial(token_log_probs, max_logits=sys.maxsize)
KERNELS: dict[str, HeadFn] = {"reference": reference_log_probs, "chunked": chunked_log_probs}
NAMES = ("auto", *KERNELS)


def choose(name: str, vocab_size: int) -> str:
    """The key of `KERNELS` that a name stands for: itself, or what "auto" takes.

    That is `reference` where one slice of `chunked` would hold the whole vocabulary, so that
    slices would save no memory and cost a product more, and `chunked` above.

    Raises:
      ValueError: the name is unknown.
    """
    if name not in NAMES:
        raise ValueError(f"there is no log-probs kernel {name!r}: choose {', '.join(NAMES)}")
    if name == "auto":
        return "chunked" if vocab_size > WIDTH else "reference"
    return name


def kernel(name: str, *, kept_bytes: int = KEPT_BYTES) -> HeadFn:
    """The kernel of a name that `choose` returns; only `chunked` can keep logits."""
    if name == "chunked":
        return partial(chunked_log_probs, kept_bytes=kept_bytes)
    return KERNELS[name]
