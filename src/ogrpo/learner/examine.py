"""An update looked into: its numbers stage by stage, and the noise of its gradient."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ogrpo.batch import Batch
from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import REFERENCE
from ogrpo.learner.finite import finite_leaves
from ogrpo.learner.metrics import Metrics
from ogrpo.learner.state import Hypers, Params, TrainState, apply_gradient
from ogrpo.learner.update import (
    LossInputs,
    UpdateSpec,
    gradient,
    gradient_of_update,
    loss_inputs,
    losses_of,
    token_batch,
    token_losses,
    total_of,
)


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


class TokenFindings(NamedTuple):
    """Advantage and clip of each token, as an update would have them."""

    log_probs: Array
    """float32 [N, G, T], log pi; 0 at tokens that are not learned from."""
    advantages: Array
    """float32 [N, G], or [N, G, T] where they differ between tokens."""
    removed: Array
    """bool [N, G, T], tokens with an advantage whose gradient the method's clip, gate or mask
    removes."""
    computed: Array
    """bool [N], groups that the update computes."""


TokensFn = Callable[[TrainState, Batch[Array], Hypers], TokenFindings]
NoiseFn = Callable[[TrainState, Batch[Array], Hypers], Metrics]
ExamineFn = Callable[[TrainState, Batch[Array], Hypers], Findings]


def make_examine(
    optimizer: optax.GradientTransformation, spec: UpdateSpec, **jit_options: Any
) -> ExamineFn:
    """Returns the jitted `(state, batch, hypers) -> findings`; the state is not donated."""

    def examine(state: TrainState, batch: Batch[Array], hypers: Hypers) -> Findings:
        inputs = loss_inputs(batch, spec, hypers)
        grads, aux = gradient_of_update(state, inputs, hypers, spec)
        log_probs = aux.output.log_probs
        tokens = token_batch(inputs, aux.output, spec.reads)

        def total(log_probs: Array) -> Array:
            losses = losses_of(spec, hypers, state.region, log_probs, tokens)
            return total_of(spec, hypers, losses, inputs).total

        after = apply_gradient(state, grads, optimizer, hypers.learning_rate)
        return Findings(
            batch=inputs.batch._replace(packing=None),
            mask=inputs.mask,
            weights=finite_leaves(state.params),
            log_probs=log_probs,
            advantages=inputs.advantages,
            losses=token_losses(spec, hypers, state.region, log_probs, tokens),
            kl_losses=spec.algorithm.kl_loss(log_probs, tokens, hypers.knobs)
            if REFERENCE in spec.reads
            else None,
            by_log_prob=jax.grad(total)(log_probs),
            loss=mean(aux.total),
            gradient=finite_leaves(grads),
            grad_norm=optax.tree.norm(grads),
            new_weights=finite_leaves(after.params),
        )

    return jax.jit(examine, **jit_options)


def make_tokens(spec: UpdateSpec, **jit_options: Any) -> TokensFn:
    """Returns the jitted `(state, batch, hypers) -> findings`; groups stay in the batch's order."""
    single = spec._replace(microbatches=1, skip_zero_variance=False, packed=False)

    def tokens(state: TrainState, batch: Batch[Array], hypers: Hypers) -> TokenFindings:
        output = spec.policy_fn(state.whole(), batch, hypers.temperature)
        log_probs = output.log_probs
        inputs = loss_inputs(batch._replace(packing=None), single, hypers)
        view = token_batch(inputs, output, spec.reads)
        loss_fn = partial(token_losses, spec, hypers, state.region)
        losses, back = jax.vjp(lambda x: loss_fn(x, view), log_probs)
        no_gradient = back(jnp.ones_like(losses))[0] == 0
        carries = jnp.any(inputs.mask, axis=(1, 2))
        computed = carries if spec.skip_zero_variance else jnp.ones_like(carries)
        removed = no_gradient & (view.advantages != 0) & inputs.mask
        log_probs = jnp.where(batch.active_mask, log_probs, 0)
        return TokenFindings(log_probs, inputs.advantages, removed, computed)

    return jax.jit(tokens, **jit_options)


def make_noise(spec: UpdateSpec) -> NoiseFn:
    """Returns the jitted `(state, batch, hypers) -> metrics` of the noise of an update's gradient.

    With g_k the gradient of group k's loss total and c the batch's count, the update's gradient is
    sum_k g_k / c, as losses add up over groups, and N/(N - 1) (sum_k |g_k|^2 - |sum_k g_k|^2 / N)
    / c^2 estimates the trace of its covariance, were groups drawn anew: unbiased for independent
    groups, c taken as fixed.

    Returns:
      grad_variance: that estimate. grad_snr: squared norm of the gradient, less its own noise, over
      that estimate; below 0 where the gradient cannot be told from noise.

    Raises:
      ValueError: the method's loss looks at the whole batch; or fewer than two groups are given.
    """
    if not spec.algorithm.adds_up:
        raise ValueError(f"the loss of {spec.algorithm.name} is not a sum over groups")
    single = spec._replace(microbatches=1, skip_zero_variance=False, packed=False)

    def squared_norm(tree: Params) -> Array:
        return jnp.square(optax.tree.norm(jax.tree.map(lambda x: x.astype(jnp.float32), tree)))

    @jax.jit
    def noise(state: TrainState, batch: Batch[Array], hypers: Hypers) -> Metrics:
        n = batch.rewards.shape[0]
        if n < 2:
            raise ValueError(f"a variance between groups needs at least 2 of them, not {n}")
        inputs = loss_inputs(batch._replace(packing=None), single, hypers)

        def add(sums: tuple[Params, Array, Array], group: LossInputs) -> tuple[tuple, None]:
            total, squares, count = sums
            one = jax.tree.map(lambda x: x[None], group)
            arguments = (state.params, one, hypers, single, state.region)
            grads, aux = gradient(*arguments, frozen=state.frozen)
            total = jax.tree.map(jnp.add, total, grads)
            return (total, squares + squared_norm(grads), count + aux.total.count), None

        nothing = jax.tree.map(jnp.zeros_like, state.params)
        zero = jnp.zeros((), jnp.float32)
        (total, squares, count), _ = jax.lax.scan(add, (nothing, zero, zero), inputs)
        count = jnp.maximum(count, 1.0)
        length = squared_norm(total)
        variance = (squares - length / n) * n / (n - 1) / count**2
        signal = length / count**2 - variance
        snr = signal / jnp.where(variance == 0, 1, variance)
        return {"grad_variance": variance, "grad_snr": snr}

    return noise
