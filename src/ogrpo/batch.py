"""The types of a batch, one for each of its stages, free of JAX and built by name.

    groups -> Batch of numpy arrays (padded, perhaps with a Packing) -> the same Batch of
    jax.Arrays, after one jax.tree.map(jnp.asarray, batch) -> PolicyOutput

Axes: `N` prompts, `G` completions of a prompt, `P` prompt tokens, `T` completion tokens; a packing
has its own, which it explains.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

Array = TypeVar("Array")
"""The kind of a batch's arrays: `np.ndarray` on the host, `jax.Array` on a device."""
Params = dict[str, Any]
"""Parameters: a nested dict of arrays."""
Frozen = Params | tuple[()]
"""Those that are not trained; () where there are none."""


class Packing(NamedTuple, Generic[Array]):
    """The place of each token of a batch, int32, for each of K parts of N/K groups.

    A place is an index into a part's row of M tokens; M itself stands for no place. The row begins
    with the R places that a next token is predicted at. Groups may be left out: A are in the row.
    """

    token_ids: Array
    """[K, M]."""
    positions: Array
    """[K, M]."""
    targets: Array
    """[K, R], the token that each of the first R places predicts."""
    last: Array
    """[K, A], the place of each prompt's last token."""
    firsts: Array
    """[K, A, G], the first tokens of its completions."""
    prompt_slots: Array
    """[K, A, P], the place of each prompt token."""
    completion_slots: Array
    """[K, A * G, T], the place of each completion token."""
    block_slots: Array
    """[K, B, b], the place of each query in blocks of b."""
    block_owners: Array
    """[K, B], the completion, of A * G, that a block belongs to."""
    block_starts: Array
    """[K, B], the first position of a block in its completion."""
    key_slots: Array
    """[K, M], place -> index into (prompt_slots, completion_slots)."""
    query_slots: Array
    """[K, M], place -> index into (prompt_slots, block_slots)."""
    answers: Array
    """[K, N/K, G, T'], completion token -> index into (firsts, targets)."""
    groups: Array | None = None
    """[K, A], which group each place of a part is of, N for none, where groups may be split over
    parts; N/K is A then. None where parts are stretches of groups."""
    here: Array | None = None
    """bool [K, A, G], which of its completions the part computes."""


class Batch(NamedTuple, Generic[Array]):
    """Whole groups, padded on the right.

    `None` for `proximal_log_probs` says that pi_k is the policy being differentiated (the first
    update on fresh weights), for `ref_log_probs` that no reference is used (beta = 0); neither then
    costs a forward pass.

    With a `packing` the groups come in order: stretches of N/K of them are microbatches, unless it
    says itself which groups its parts are of.
    """

    prompt_ids: Array
    """int32 [N, P]."""
    prompt_mask: Array
    """bool [N, P], True on tokens; every prompt has at least one."""
    completion_ids: Array
    """int32 [N, G, T]."""
    completion_mask: Array
    """bool [N, G, T], True on tokens, the end-of-sequence token included."""
    loss_mask: Array
    """bool [N, G, T], True on tokens that the policy wrote and that are to be learned from; what
    it says of padding does not matter. Attention sees every token, whatever this says."""
    behavior_log_probs: Array
    """float32 [N, G, T], what the sampler drew with, 0 on padding."""
    rewards: Array
    """float32 [N, G]."""
    policy_versions: Array
    """int32 [N, G], of the weights that drew the completion; the oldest where they changed."""
    proximal_log_probs: Array | None = None
    """float32 [N, G, T], the trainer's own at the start of the update."""
    ref_log_probs: Array | None = None
    """float32 [N, G, T], of the policy not to stray from."""
    step_rewards: Array | None = None
    """float32 [N, G, T], the reward of a step at its last token; for methods that read steps."""
    step_ends: Array | None = None
    """bool [N, G, T], True at the last token of each step."""
    values: Array | None = None
    """float32 [N, G, T], the trainer's own V before each token at the start of the update; for
    methods that learn values."""
    top_ids: Array | None = None
    """int32 [N, G, T, K], the K tokens that the sampler most likely drew at each place, those that
    it could not draw left out; -1 for none. None where they were not recorded."""
    top_log_probs: Array | None = None
    """float32 [N, G, T, K], log mu of those, -inf for none; None where they are not read."""
    packing: Packing[Array] | None = None
    """The same tokens without their padding; None where the policy is to read the padded ones."""

    @property
    def active_mask(self) -> Any:
        """Tokens that carry loss, if judged, and that normalisers and metrics count, [N, G, T]."""
        return self.completion_mask & self.loss_mask  # pyright: ignore[reportOperatorIssue]


class PolicyOutput(NamedTuple, Generic[Array]):
    """A policy's values for tokens: for a batch's completions, [N, G, T], unless said otherwise."""

    log_probs: Array
    """float32, log pi of each token."""
    entropy: Array
    """float32, of the policy's distribution at each token, in nats."""
    values: Array | None = None
    """float32, V before each token; None of a policy without a value head."""
    top_log_probs: Array | None = None
    """float32 [..., K], log pi of the batch's `top_ids`; None where it has none."""


VALUE_HEAD = "value_head"
"""Name of a value head among a policy's parameters; only the trainer sees it."""


def tokens_only(
    *, prompt_ids: Any, prompt_mask: Any, completion_ids: Any, completion_mask: Any
) -> Batch[Any]:
    """Returns a batch of tokens alone, to be scored or imitated and not yet judged.

    Every completion token carries loss; log-probs, rewards and versions are 0.

    Args:
      prompt_ids: int32 [N, P].
      prompt_mask: bool [N, P].
      completion_ids: int32 [N, G, T].
      completion_mask: bool [N, G, T].
    """
    shape = completion_ids.shape
    return Batch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        completion_mask=completion_mask,
        loss_mask=completion_mask,
        behavior_log_probs=np.zeros(shape, np.float32),
        rewards=np.zeros(shape[:2], np.float32),
        policy_versions=np.zeros(shape[:2], np.int32),
    )


def take(batch: Batch[np.ndarray], groups: Any) -> Batch[np.ndarray]:
    """Returns the groups that an index array or a slice selects, in its order.

    Raises:
      ValueError: the batch has a packing, whose places are those of all its groups.
    """
    if batch.packing is not None:
        raise ValueError("groups are taken from a batch with a packing: take them, then pack them")
    arrays = {name: array for name, array in batch._asdict().items() if array is not None}
    return batch._replace(**{name: array[groups] for name, array in arrays.items()})
