"""One policy update: log-probs -> objective -> (total, count) -> gradient -> Optax.

The update is jitted once. What it composes (log-probs, objective, advantage, aggregation) are
functions of its `UpdateSpec`; what an experiment sweeps (`Hypers`) are traced arguments.

A batch that was cut by tokens has parts of A places, each of a group and some of its completions
(`Packing.groups`, `Packing.here`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import DTypeLike

from ogrpo.batch import Batch, Frozen, Packing, PolicyOutput
from ogrpo.core.advantages import zero_variance_mask
from ogrpo.core.aggregate import Total, mean
from ogrpo.core.algorithms import (
    ENTROPY,
    REFERENCE,
    UNIFORMS,
    VALUES,
    Algorithm,
    LooksAt,
    at_tokens,
)
from ogrpo.core.corrections import log_kept_mass, score_centering
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Trajectory
from ogrpo.core.trust_region import ObjectiveFn, TrustRegion
from ogrpo.learner.finite import all_finite, choose
from ogrpo.learner.memory import CompilerOptions
from ogrpo.learner.metrics import Metrics, MetricsFn, head_norm, summarize
from ogrpo.learner.state import Hypers, Params, TrainState, guarded, is_large, join

PolicyFn = Callable[[Params, Batch[Array], Array], PolicyOutput[Array]]
RegionFn = Callable[[ObjectiveFn], TrustRegion]
UpdateFn = Callable[[TrainState, Batch[Array], Hypers], tuple[TrainState, Metrics]]


def compute_in(policy_fn: PolicyFn, dtype: DTypeLike) -> PolicyFn:
    """Returns the policy of parameters rounded to `dtype` at each use (arXiv:1710.03740, 3.1).

    The gradient reaches the parameters in their own dtype: with bfloat16 compute and float32 master
    weights, a step too small to show in bfloat16 is kept, and such steps add up. Microbatches are
    summed in the parameters' dtype too.
    """

    def policy(params: Params, batch: Batch[Array], temperature: Array) -> PolicyOutput[Array]:
        return policy_fn(jax.tree.map(lambda x: x.astype(dtype), params), batch, temperature)

    return policy


def with_sampling_mask(policy_fn: PolicyFn) -> PolicyFn:
    """Returns the policy over what the sampler could draw: log pi_K = log pi - log pi(K).

    K are a batch's `top_ids`, all that was left at each place. The entropy stays that of pi.
    """

    def policy(params: Params, batch: Batch[Array], temperature: Array) -> PolicyOutput[Array]:
        if batch.top_ids is None:
            raise ValueError("the batch does not say which tokens its sampler could draw")
        output = policy_fn(params, batch, temperature)
        top = output.top_log_probs
        assert top is not None
        mass = log_kept_mass(top, batch.top_ids >= 0)
        log_probs, top = output.log_probs - mass, top - mass[..., None]
        return output._replace(log_probs=log_probs, top_log_probs=top)

    return policy


class UpdateSpec(NamedTuple):
    """The static half of an update: functions and flags that are set once."""

    policy_fn: PolicyFn
    algorithm: Algorithm
    """The method; its knobs come with each update."""
    reads: frozenset[str]
    """The inputs that the method reads with the run's knobs (`Algorithm.inputs`)."""
    metrics_fn: MetricsFn = summarize
    mask_zero_variance: bool = False
    """Whether groups of equal rewards are left out, their KL term too."""
    count_masked: bool = True
    """Whether groups left out still count in the normaliser."""
    microbatches: int = 1
    """Parts that a batch's prompts are cut into."""
    skip_zero_variance: bool = False
    """Leave groups of equal rewards uncomputed, a microbatch at a time or, where batches come
    packed, out of the packing; metrics are then of the groups that were computed."""
    packed: bool = False
    """Whether batches come with a packing, which then says what the microbatches are."""
    together: int = 1
    """Packed parts in a microbatch: one on each device that a batch is cut over."""
    region_fn: RegionFn | None = None
    """The trust region around an objective; its state is `TrainState.region`."""
    centered: bool = False
    """Whether the drift that a token's advantage multiplies is taken away (`centering_losses`)."""


class LossInputs(NamedTuple):
    """A batch with its advantages and masks, before it is cut into microbatches."""

    batch: Batch[Array]
    advantages: Array
    """float32 [N, G], or [N, G, T] where they differ between tokens."""
    mask: Array
    """bool [N, G, T], tokens that carry loss."""
    counted: Array
    """bool [N, G, T], tokens in the normaliser."""
    shares: Array | None = None
    """[N, G, T], the weight of each token's loss in the total, where groups may be split."""
    returns: Array | None = None
    """float32 [N, G, T], what the values learn, where there are any."""
    uniforms: Array | None = None
    """float32 [N, G, T], uniform numbers for a loss that needs them."""


def loss_inputs(batch: Batch[Array], spec: UpdateSpec, hypers: Hypers) -> LossInputs:
    """Assigns advantages and masks over the whole batch, which batch statistics need.

    Groups that are to be skipped come last, so that they fill whole microbatches.
    """
    zero_variance = zero_variance_mask(batch.rewards)
    if spec.skip_zero_variance and not spec.packed:
        order = jnp.argsort(zero_variance, stable=True)
        batch, zero_variance = jax.tree.map(lambda x: x[order], (batch, zero_variance))
    active = batch.active_mask & ~jnp.isnan(batch.rewards)[..., None]
    mask = active & ~zero_variance[:, None, None] if spec.mask_zero_variance else active
    counted = active if spec.count_masked else mask
    key = jax.random.key(hypers.seed)
    trajectory = Trajectory(active, batch.step_rewards, batch.step_ends, batch.values)
    method, reads = spec.algorithm, spec.reads
    returns = method.returns(batch.rewards, hypers.knobs, trajectory) if VALUES in reads else None
    return LossInputs(
        batch=batch,
        advantages=method.compute_advantages(batch.rewards, hypers.knobs, key, trajectory),
        mask=mask,
        counted=counted,
        returns=returns,
        uniforms=method.draw(key, mask.shape) if UNIFORMS in reads else None,
    )


def token_batch(
    inputs: LossInputs, output: PolicyOutput[Array], reads: frozenset[str]
) -> TokenBatch:
    """Returns the core's view of a batch, at the trainer's current log-probs and entropies."""
    batch, log_probs = inputs.batch, output.log_probs
    here = jax.lax.stop_gradient(log_probs)
    proximal, ref = batch.proximal_log_probs, batch.ref_log_probs
    return TokenBatch(
        advantages=at_tokens(inputs.advantages, log_probs),
        mask=inputs.mask,
        behavior_log_probs=batch.behavior_log_probs,
        proximal_log_probs=here if proximal is None else proximal,
        ref_log_probs=here if ref is None else ref,
        entropy=output.entropy if ENTROPY in reads else None,
        uniforms=inputs.uniforms,
    )


class LossAux(NamedTuple):
    """Auxiliary results of a backward pass, beside the gradient."""

    total: Total
    output: PolicyOutput[Array]
    computed: Array
    """bool [N], groups whose log-probs were computed."""


def _loss(
    params: Params,
    inputs: LossInputs,
    hypers: Hypers,
    spec: UpdateSpec,
    region: Any,
    scale: Array | float,
    frozen: Frozen,
) -> tuple[Array, LossAux]:
    output = spec.policy_fn(join(params, frozen), inputs.batch, hypers.temperature)
    tokens = token_batch(inputs, output, spec.reads)
    losses = losses_of(spec, hypers, region, output.log_probs, tokens)
    if VALUES in spec.reads:
        method, returns = spec.algorithm, inputs.returns
        if method.critic is None or output.values is None or returns is None:
            raise ValueError(
                f"{method.name} learns values: it needs a critic, a policy with a value head"
                " and a batch with the values from before the update"
            )
        losses = losses + method.value_loss(output.values, returns, inputs.mask, hypers.knobs)
    if spec.centered:
        losses = losses + centering_losses(spec, hypers, output, inputs, tokens)
    output = output._replace(top_log_probs=None)  # read, and K times as large as the rest
    total = total_of(spec, hypers, losses, inputs)
    aux = LossAux(total=total, output=output, computed=_computed(inputs, spec))
    return total.total * scale, aux


def _computed(inputs: LossInputs, spec: UpdateSpec) -> Array:
    """Returns a mask of the groups that are not left out of a packing."""
    if spec.packed and spec.skip_zero_variance:
        return jnp.any(inputs.mask, axis=(1, 2))
    return jnp.ones(len(inputs.advantages), bool)


def total_of(spec: UpdateSpec, hypers: Hypers, losses: Array, inputs: LossInputs) -> Total:
    """Sums the losses of tokens as one total and its count (0 for pieces of groups)."""
    if inputs.shares is not None:
        losses = jnp.where(inputs.mask, inputs.shares * losses, 0)
        return Total(jnp.sum(losses), jnp.zeros((), losses.dtype))
    return spec.algorithm.total(losses, inputs.mask, hypers.knobs, counted=inputs.counted)


def _without_loss(inputs: LossInputs, hypers: Hypers, spec: UpdateSpec) -> Total:
    """Returns the total of a batch whose losses are all 0: none enters the count."""
    nothing = jnp.zeros(inputs.mask.shape, jnp.float32)
    return total_of(spec, hypers, nothing, inputs)


def losses_of(
    spec: UpdateSpec, hypers: Hypers, region: Any, log_probs: Array, tokens: TokenBatch
) -> Array:
    """Returns the whole loss per token: the method's, and its KL term where it has one."""
    losses = token_losses(spec, hypers, region, log_probs, tokens)
    if REFERENCE in spec.reads:
        losses = losses + spec.algorithm.kl_loss(log_probs, tokens, hypers.knobs)
    return losses


def centering_losses(
    spec: UpdateSpec,
    hypers: Hypers,
    output: PolicyOutput[Array],
    inputs: LossInputs,
    tokens: TokenBatch,
) -> Array:
    """Returns A C of each token, with C of `score_centering` over the batch's `top_ids`.

    The weight w(r) is the method's own: -dL/d log pi / A of a token with this ratio and advantage.
    Its loss must depend on no other token's ratio.
    """
    top, batch = output.top_log_probs, inputs.batch
    if top is None or batch.top_ids is None or batch.top_log_probs is None:
        raise ValueError(
            f"{spec.algorithm.name} with score centring reads the likeliest tokens and their"
            " log-probs at each place: give top_ids and top_log_probs in the batch"
        )
    gains = jnp.where(tokens.mask, tokens.advantages, 0)
    divisor = jnp.where(gains == 0, 1, gains)

    def weight(ratio: Array) -> Array:
        at = tokens.behavior_log_probs + jnp.log(ratio)
        losses = partial(spec.algorithm.token_loss, batch=tokens, knobs=hypers.knobs)
        return -jax.grad(lambda log_probs: jnp.sum(losses(log_probs)))(at) / divisor

    def weight_fn(ratio: Array) -> Array:
        each = jax.vmap(weight, in_axes=-1, out_axes=-1)
        return weight(ratio) if ratio.ndim == gains.ndim else each(ratio)

    present = batch.top_ids >= 0
    centering = score_centering(top, batch.top_log_probs, present, weight_fn=weight_fn)
    return gains * jnp.where(tokens.mask, centering, 0)


def token_losses(
    spec: UpdateSpec, hypers: Hypers, region: Any, log_probs: Array, tokens: TokenBatch
) -> Array:
    """Returns the method's loss per token inside its trust region, without the KL term."""
    trust = _region(spec, hypers)
    if trust is None:
        return spec.algorithm.token_loss(log_probs, tokens, hypers.knobs)
    return trust.loss(region, log_probs, tokens)


def _region(spec: UpdateSpec, hypers: Hypers) -> TrustRegion | None:
    if spec.region_fn is None:
        return None

    def objective(log_probs: Array, tokens: TokenBatch, **width: Array) -> Array:
        return spec.algorithm.token_loss(log_probs, tokens, {**hypers.knobs, **width})

    return spec.region_fn(objective)


def _parts(batch: Batch[Array], spec: UpdateSpec) -> int:
    """Returns the number of microbatches: as many as configured, or as the packing has."""
    if spec.packed != (batch.packing is not None):
        raise ValueError(
            f"the update's packed is {spec.packed}, and the batch has"
            f" {'no' if batch.packing is None else 'a'} packing: make both agree"
        )
    if batch.packing is None:
        return spec.microbatches
    return batch.packing.token_ids.shape[0] // spec.together


def _split(tree: Any, parts: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), tree)


def gradient(
    params: Params,
    inputs: LossInputs,
    hypers: Hypers,
    spec: UpdateSpec,
    region: Any = (),
    *,
    scale: Array | float = 1.0,
    frozen: Frozen = (),
) -> tuple[Params, LossAux]:
    """Returns the gradient of the loss total times `scale`, summed over microbatches.

    It is taken with respect to `params`, which `frozen` completes to the policy's.
    """
    static = {"hypers": hypers, "spec": spec, "region": region, "scale": scale}
    grad_fn = partial(jax.grad(_loss, has_aux=True), frozen=frozen, **static)
    parts = _parts(inputs.batch, spec)
    if inputs.batch.packing is not None and inputs.batch.packing.groups is not None:
        return _gradient_of_pieces(grad_fn, params, inputs, hypers, spec)
    if parts == 1:
        return grad_fn(params, inputs)

    def skip(part: LossInputs) -> tuple[Params, LossAux]:
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(grad_fn, params, part))
        return zeros[0], zeros[1]._replace(total=_without_loss(part, hypers, spec))

    def accumulate(grads: Params, part: LossInputs) -> tuple[Params, LossAux]:
        compute = partial(grad_fn, params)
        more, aux = (
            jax.lax.cond(jnp.any(part.mask), compute, skip, part)
            if spec.skip_zero_variance
            else compute(part)
        )
        return jax.tree.map(jnp.add, grads, more), aux

    start = jax.tree.map(jnp.zeros_like, params)
    grads, each = jax.lax.scan(accumulate, start, _split(inputs, parts))
    total = jax.tree.map(jnp.sum, each.total)
    output, computed = jax.tree.map(
        lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), (each.output, each.computed)
    )
    return grads, LossAux(total=total, output=output, computed=computed)


def _gradient_of_pieces(
    grad_fn: Callable[..., tuple[Params, LossAux]],
    params: Params,
    inputs: LossInputs,
    hypers: Hypers,
    spec: UpdateSpec,
) -> tuple[Params, LossAux]:
    """Returns the gradient of a batch that was cut by tokens, within groups if need be.

    A total is linear in the losses: each token's weight in the whole batch's is its gradient.
    """
    if spec.algorithm.looks_at > LooksAt.COMPLETION:
        raise ValueError(
            f"{spec.algorithm.name} looks at a whole {spec.algorithm.looks_at}, which a batch"
            " cut by tokens may split: pack it without a number of tokens"
        )
    packing, rows = inputs.batch.packing, inputs.mask.shape
    whole = inputs._replace(batch=inputs.batch._replace(packing=None))
    nothing = jnp.zeros(rows, inputs.batch.behavior_log_probs.dtype)
    shares = jax.grad(lambda losses: total_of(spec, hypers, losses, whole).total)(nothing)
    whole = whole._replace(shares=shares)

    def accumulate(sums: tuple, packing: Packing[Array]) -> tuple[tuple, None]:
        grads, total, output = sums
        more, aux = grad_fn(params, _piece(whole, packing))
        output = jax.tree.map(partial(_added, packing=packing), output, aux.output)
        grads = jax.tree.map(jnp.add, grads, more)
        return (grads, total + aux.total.total, output), None

    turns = _split(packing, _parts(inputs.batch, spec))
    first = _piece(whole, jax.tree.map(lambda x: x[0], turns))
    shapes = jax.eval_shape(grad_fn, params, first)[1]
    output = jax.tree.map(lambda x: jnp.zeros(rows, x.dtype), shapes.output)
    start = jax.tree.map(jnp.zeros_like, params), jnp.zeros((), shapes.total.total.dtype), output
    (grads, total, output), _ = jax.lax.scan(accumulate, start, turns)
    count = _without_loss(inputs, hypers, spec).count
    computed = _computed(inputs, spec)
    return grads, LossAux(total=Total(total, count), output=output, computed=computed)


def _piece(whole: LossInputs, packing: Packing[Array]) -> LossInputs:
    """Returns the groups at the places of some parts, without completions that are elsewhere."""
    groups, here = _places(packing)
    piece = jax.tree.map(lambda x: jnp.take(x, groups, axis=0, mode="clip"), whole)
    batch = piece.batch._replace(
        completion_mask=piece.batch.completion_mask & here,
        packing=packing._replace(groups=None, here=None),
    )
    return piece._replace(batch=batch, mask=piece.mask & here, counted=piece.counted & here)


def in_order(rows: PolicyOutput[Array], packing: Packing[Array], count: int) -> PolicyOutput[Array]:
    """Scatters rows [K A, G, T] of a batch cut by tokens to its groups [N, G, T]; 0 elsewhere."""

    def back(rows: Array) -> Array:
        return _added(jnp.zeros((count, *rows.shape[1:]), rows.dtype), rows, packing)

    return jax.tree.map(back, rows)


def _added(sums: Array, rows: Array, packing: Packing[Array]) -> Array:
    """Adds the rows of parts [K A, G, T] to [N, G, T], where their completions belong."""
    groups, here = _places(packing)
    here = here.reshape(*here.shape, *(1,) * (rows.ndim - here.ndim))
    return sums.at[groups].add(jnp.where(here, rows, 0), mode="drop")


def _places(packing: Packing[Array]) -> tuple[Array, Array]:
    """Returns the group of each place of the parts [K A], and its completions [K A, G, 1]."""
    assert packing.groups is not None
    assert packing.here is not None
    groups = packing.groups.ravel()
    return groups, packing.here.reshape(len(groups), -1, 1)


def gradient_of_update(
    state: TrainState, inputs: LossInputs, hypers: Hypers, spec: UpdateSpec
) -> tuple[Params, LossAux]:
    """Returns the gradient of the loss, the total divided by its count.

    A large model's total is divided before it is differentiated: dividing the gradient would hold
    it twice.
    """
    arguments = (state.params, inputs, hypers, spec, state.region)
    of = partial(gradient, *arguments, frozen=state.frozen)
    if is_large(state.params):
        return of(scale=1.0 / jnp.maximum(_without_loss(inputs, hypers, spec).count, 1.0))
    grads, aux = of()
    count = jnp.maximum(aux.total.count, 1.0)
    return jax.tree.map(lambda g: g / count.astype(g.dtype), grads), aux


def make_update(
    optimizer: optax.GradientTransformation,
    spec: UpdateSpec,
    *,
    options: CompilerOptions | None = None,
) -> UpdateFn:
    """Returns the jitted update `(state, batch, hypers) -> (state, metrics)`, state donated.

    Its frozen parameters are not: others may go on using them. `Hypers.learning_rate` scales what
    the optimizer returns (`state.apply_gradient`). `options` are those of the compiler
    (`memory.compiler_options`).
    """
    return join_frozen(jit_step(optimizer, spec, compiler_options=options))


StepFn = Callable[[TrainState, Frozen, Batch[Array], Hypers], tuple[TrainState, Metrics]]


def jit_step(
    optimizer: optax.GradientTransformation, spec: UpdateSpec, **jit_options: Any
) -> StepFn:
    """Returns the jitted step `(state, frozen, batch, hypers) -> (state, metrics)`.

    The frozen parameters are an argument that is not donated, and no result. Where the loss, the
    gradient's norm, the new weights or the region's new state are not finite, the state stays as it
    is, bit for bit, and the metric `skipped` is 1.

    Raises:
      ValueError: groups are to be skipped that carry loss, or that no microbatch sets apart; or the
        method's losses do not add up over microbatches, and there are several.
    """
    several = spec.packed or spec.microbatches > 1
    if several and not spec.algorithm.adds_up:
        raise ValueError(
            f"{spec.algorithm.name} looks at the whole batch, so that microbatches do not add up"
            f" to it: take one padded microbatch instead of {spec.microbatches}"
            f"{', packed' if spec.packed else ''}"
        )
    if spec.skip_zero_variance and not (spec.mask_zero_variance and several):
        raise ValueError(
            "skip_zero_variance leaves groups out a microbatch at a time: it needs "
            f"mask_zero_variance, which is {spec.mask_zero_variance}, and more than one "
            f"microbatch, of which there are {spec.microbatches}, or packed batches"
        )

    def update(
        state: TrainState, frozen: Frozen, batch: Batch[Array], hypers: Hypers
    ) -> tuple[TrainState, Metrics]:
        state = replace(state, frozen=frozen)
        inputs = loss_inputs(batch, spec, hypers)
        grads, aux = gradient_of_update(state, inputs, hypers, spec)
        log_probs = aux.output.log_probs
        tokens = token_batch(inputs, aux.output, spec.reads)
        drawn = inputs.batch.active_mask & aux.computed[:, None, None]
        loss_fn = partial(token_losses, spec, hypers, state.region)
        zero_variance = zero_variance_mask(batch.rewards) & (batch.rewards.shape[1] > 1)
        metrics = {
            **spec.metrics_fn(aux.output, tokens, drawn, loss_fn),
            **({"trust_region": state.region} if isinstance(state.region, Array) else {}),
            "loss": mean(aux.total),
            "grad_norm": optax.tree.norm(grads),
            **head_norm(grads),
            "zero_variance": jnp.mean(zero_variance, dtype=jnp.float32),
        }
        trust, region = _region(spec, hypers), state.region
        if trust is not None:
            region = trust.update(region, trust.measure(log_probs, tokens))
        is_finite = all_finite((metrics["loss"], metrics["grad_norm"], region))
        after, taken = guarded(state, grads, optimizer, hypers.learning_rate, is_finite)
        after = replace(after, region=choose(taken, region, state.region), frozen=())
        return after, {**metrics, "skipped": 1.0 - taken.astype(jnp.float32)}

    return jax.jit(update, donate_argnums=0, **jit_options)


def join_frozen(update: StepFn) -> UpdateFn:
    """Returns an update of whole states from `jit_step`'s."""

    def step(state: TrainState, batch: Batch[Array], hypers: Hypers) -> tuple[TrainState, Metrics]:
        after, metrics = update(replace(state, frozen=()), state.frozen, batch, hypers)
        return replace(after, frozen=state.frozen), metrics

    return step
