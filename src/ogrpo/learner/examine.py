"""An update's numbers one stage after the other: where they cease to be finite."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jax import Array

from ogrpo.batch import Batch
from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import REFERENCE
from ogrpo.learner.apply import apply_gradient
from ogrpo.learner.finite import finite_leaves
from ogrpo.learner.offload import fetched
from ogrpo.learner.state import Hypers, TrainState
from ogrpo.learner.update import (
    Recipe,
    gradient_of_update,
    losses_of,
    token_losses,
    total_of,
    weigh,
)
from ogrpo.learner.update import token_batch as as_tokens


class Findings(NamedTuple):
    """Intermediate values of an update, from the old weights to the new ones.

    The groups stand in the update's order, which `batch` follows; leaves are those of the trained
    parameters in their own order.
    """

    batch: Batch[Array]
    mask: Array
    """bool [N, G, T], tokens that carry loss."""
    weights: list[Array]
    """Whether each leaf is finite before the update."""
    log_probs: Array
    """float32 [N, G, T]."""
    advantages: Array
    """float32 [N, G], or [N, G, T] where they differ between tokens."""
    losses: Array
    """float32 [N, G, T], without the KL term."""
    kl_losses: Array | None
    """float32 [N, G, T]."""
    by_log_prob: Array
    """float32 [N, G, T], the loss total's gradient with respect to each log-prob."""
    loss: Array
    gradient: list[Array]
    """Whether each leaf is finite."""
    grad_norm: Array
    new_weights: list[Array]
    """Whether each leaf is finite after the update."""


ExamineFn = Callable[[TrainState, Batch[Array], Hypers], Findings]


def make_examine(optimizer: optax.GradientTransformation, recipe: Recipe) -> ExamineFn:
    """Returns the jitted `(state, batch, hypers) -> findings`; the state is not donated."""
    return jax.jit(make_findings(optimizer, recipe))


def make_findings(optimizer: optax.GradientTransformation, recipe: Recipe) -> ExamineFn:
    """Returns the function that `make_examine` jits."""

    def examine(state: TrainState, batch: Batch[Array], hypers: Hypers) -> Findings:
        weighed = weigh(batch, recipe, hypers)
        grads, evidence = gradient_of_update(state, weighed, hypers, recipe)
        log_probs = evidence.output.log_probs
        tokens = as_tokens(weighed, log_probs)
        reads_kl = REFERENCE in recipe.reads

        def total(log_probs: Array) -> Array:
            losses = losses_of(recipe, hypers, state.region, log_probs, tokens)
            return total_of(recipe, hypers, losses, weighed).total

        here = fetched(state, grads) if recipe.offload else state
        after = apply_gradient(here, grads, optimizer, hypers.learning_rate)
        return Findings(
            batch=weighed.batch._replace(packing=None),
            mask=weighed.mask,
            weights=finite_leaves(state.params),
            log_probs=log_probs,
            advantages=weighed.advantages,
            losses=token_losses(recipe, hypers, state.region, log_probs, tokens),
            kl_losses=recipe.algorithm.kl_loss(log_probs, tokens, hypers.knobs)
            if reads_kl
            else None,
            by_log_prob=jax.grad(total)(log_probs),
            loss=mean(evidence.total),
            gradient=finite_leaves(grads),
            grad_norm=optax.tree.norm(grads),
            new_weights=finite_leaves(after.params),
        )

    return examine
