"""The drift that score centring takes away, measured on SmolLM2-135M with an int8 sampler.

Command: python -m experiments.centering.drift --trained RUN/model
Hardware and time: two CPU cores, 5 GiB, about 10 CPU-minutes. Rows of 2026-11-23: drift.jsonl.

The policy pi draws nothing itself: completions come from mu, its weights rounded to int8, or older
weights. Of the loss of `reinforce`, -A log pi, the gradient is drift + covariance at each place
(arXiv:2609.20807); the drift's own gradient is A sum_v mu(v) d log pi(v), here over the whole
vocabulary, and what centring over the k likeliest tokens leaves of it is the same less A C_k.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.console import Console

from experiments.variance.along import draw_batches
from ogrpo.batch import Batch
from ogrpo.core.advantages import centered
from ogrpo.core.corrections import score_centering
from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.log_probs import completion_log_probs_and_entropy
from ogrpo.policy.params import int8_weights
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import smollm2_135m

KEPT = (32, 128)
"""Tokens that centring is over."""
PROMPTS = 16
"""Prompts of a call."""
Params = Any
Surrogate = Callable[[jax.Array, jax.Array, Batch[jax.Array]], jax.Array]
"""`(log pi, log mu, batch) -> [N, G, T]`; the first two are [N, G, T, V]."""


def plain(log_pi: jax.Array, _: jax.Array, batch: Batch[jax.Array]) -> jax.Array:
    """Returns log pi of the tokens that were drawn."""
    return jnp.take_along_axis(log_pi, batch.completion_ids[..., None], axis=-1)[..., 0]


def drift(log_pi: jax.Array, log_mu: jax.Array, _: Batch[jax.Array]) -> jax.Array:
    """Returns sum_v mu(v) log pi(v)."""
    return jnp.sum(jnp.exp(log_mu) * log_pi, axis=-1)


def left(kept: int) -> Surrogate:
    """Returns what centring over so many tokens leaves of the drift."""

    def surrogate(log_pi: jax.Array, log_mu: jax.Array, batch: Batch[jax.Array]) -> jax.Array:
        top, ids = jax.lax.top_k(log_mu, kept)
        of_top = jnp.take_along_axis(log_pi, ids, axis=-1)
        centering = score_centering(of_top, top, jnp.ones_like(top, bool))
        return drift(log_pi, log_mu, batch) - centering

    return surrogate


SURROGATES = {"gradient": plain, "drift": drift, **{f"left of {k}": left(k) for k in KEPT}}


def whole(params: Params, config: DecoderConfig, batch: Batch[jax.Array]) -> jax.Array:
    """Returns log pi of the whole vocabulary at each place, [N, G, T, V]."""
    shape = (*batch.completion_ids.shape, config.vocab_size)
    batch = batch._replace(top_ids=jnp.broadcast_to(jnp.arange(config.vocab_size), shape))
    top = completion_log_probs_and_entropy(params, config, batch, 1.0).top_log_probs
    assert top is not None
    return top


def measure(
    config: DecoderConfig, pi: Params, mu: Params, batches: Iterable[Batch[jax.Array]]
) -> dict[str, float]:
    """Returns norms of sums over the groups, as shares of the gradient's.

    `error` is that of the difference of two halves, which has the variance of the gradient itself.
    """

    def loss(params: Params, log_mu: jax.Array, batch: Batch[jax.Array], name: str) -> jax.Array:
        values = SURROGATES[name](whole(params, config, batch), log_mu, batch)
        gains = centered(batch.rewards)[..., None]
        return jnp.sum(jnp.where(batch.active_mask, gains * values, 0))

    log_mu = jax.jit(lambda params, batch: whole(params, config, batch))
    pull = jax.jit(jax.grad(loss), static_argnames="name")
    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
    taught = [batch for batch in batches if float(jnp.std(batch.rewards)) > 0]
    norms: dict[str, float] = {"groups": len(taught)}
    for name in SURROGATES:
        halves = [jax.tree.map(jnp.zeros_like, pi) for _ in range(2)]
        for place, batch in enumerate(taught):
            grads = pull(pi, log_mu(mu, batch), batch, name=name)
            halves[place % 2] = add(halves[place % 2], grads)
        if name == "gradient":
            norms["error"] = float(optax.tree.norm(optax.tree.sub(*halves)))
        norms[name] = float(optax.tree.norm(add(halves[0], halves[1])))
    size = norms["gradient"]
    return {
        name: value if name in ("groups", "gradient") else value / size
        for name, value in norms.items()
    }


def main(options: list[str] | None = None) -> None:
    """Prints a row for each pair of policy and sampler."""
    parser = argparse.ArgumentParser(prog="python -m experiments.centering.drift")
    parser.add_argument("--trained", type=Path, required=True, help="folder of trained weights")
    parser.add_argument("--groups", type=int, default=32, help="groups of 4, a multiple of 16")
    parser.add_argument("--seed", type=int, default=0)
    typed = parser.parse_args(options)
    if typed.groups <= 0 or typed.groups % PROMPTS:
        parser.error(f"--groups is {typed.groups}: give a multiple of {PROMPTS}")
    with closing(prepare(smollm2_135m())) as prepared:
        decoder, first = make_model(prepared, Console(quiet=True))
        parts = make_parts(prepared.config, prepared, decoder)
        _, trained = load_pretrained(typed.trained, jnp.float32)
        for name, pi, sampler in (
            ("trained, int8", trained, trained),
            ("trained, of the first weights in int8", trained, first),
            ("first, int8", first, first),
        ):
            mu = int8_weights(sampler)
            drawn = draw_batches(parts, mu, typed.groups, PROMPTS, typed.seed, "drift")
            alone = [
                jax.tree.map(lambda x, n=n: x[n : n + 1], batch)
                for batch in drawn
                for n in range(PROMPTS)
            ]
            row = measure(decoder, pi, mu, alone)
            print(json.dumps({"policy, sampler": name, **row}), flush=True)


if __name__ == "__main__":
    main()
