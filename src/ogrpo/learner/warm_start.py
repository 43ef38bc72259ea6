"""Imitation before reinforcement: next-token likelihood of demonstrations."""

from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ogrpo.batch import Batch
from ogrpo.core.aggregate import token_mean
from ogrpo.learner.state import TrainState, apply_gradient
from ogrpo.learner.update import PolicyFn

ImitateFn = Callable[[TrainState, Batch[Array], Array], tuple[TrainState, Array]]


def make_imitate(optimizer: optax.GradientTransformation, policy_fn: PolicyFn) -> ImitateFn:
    """Returns the jitted step `(state, batch, learning_rate) -> (state, loss)` on demonstrations.

    The loss is the mean negative log-likelihood of the demonstrations' tokens within the loss mask,
    in nats a token; the rewards and behaviour log-probs of the batch are not read. `state` is
    donated.
    """

    loss_fn = imitation_loss(policy_fn)

    def imitate(
        state: TrainState, batch: Batch[Array], learning_rate: Array
    ) -> tuple[TrainState, Array]:
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
        return apply_gradient(state, grads, optimizer, learning_rate), loss

    return jax.jit(imitate, donate_argnums=0)


def imitation_loss(policy_fn: PolicyFn) -> Callable[[object, Batch[Array]], Array]:
    """Returns `(params, batch) ->` mean negative log-likelihood of a token, in nats."""

    def loss_fn(params: object, batch: Batch[Array]) -> Array:
        log_probs = policy_fn(params, batch, jnp.float32(1.0)).log_probs
        return token_mean(-log_probs, batch.active_mask)

    return loss_fn


def warm_start(
    state: TrainState,
    batches: Iterable[Batch[Array]],
    imitate: ImitateFn,
    learning_rate: optax.Schedule,
    *,
    begin: int = 0,
) -> Iterator[tuple[TrainState, float]]:
    """Imitates batch after batch from step `begin` on, yielding the state and the loss."""
    for step, batch in enumerate(batches, start=begin):
        state, loss = imitate(state, batch, jnp.float32(learning_rate(step)))
        yield state, float(loss)
