"""Completions of the current policy from old ones as drafts, kept as far as its law allows.

    old completions [N, G, T] -> log-probs under both policies -> how many leading tokens stay
    rows with a rejected token [R] -> both laws [R, V] at that place -> a token of the residual
    rows still unfinished [S], as prompts (prompt + kept + that token) -> `sample`, group size 1

Rows are gathered on the host, once R and S are known, and repeated up to a power of two, so that
few shapes are compiled. `ogrpo.core.drafts` has the rule.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.core.drafts import kept_tokens, residual_log_probs
from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.decoder import Params, head_weight, product
from ogrpo.policy.flops import doubling
from ogrpo.policy.head import log_softmax
from ogrpo.policy.log_probs import completion_log_probs, last_valid, run_prompt
from ogrpo.policy.sampler import Sampled, inverse_cdf, sample


class Continued(NamedTuple):
    """Completions, and what their drafts saved."""

    samples: Sampled
    kept: jax.Array
    """Int32 [N, G]: leading tokens that are the draft's."""
    steps: int
    """Forward passes of one token a row; `sample` has one less than its longest completion."""


def continue_drafts(
    params: Params,
    config: DecoderConfig,
    draft_params: Params,
    drafts: Batch[jax.Array],
    key: jax.Array,
    *,
    temperature: float,
    eos_id: int,
    halvings: int = 0,
    least_read: int | None = None,
) -> Continued:
    """Returns completions with the law of softmax(z / temperature) of `params`, from old drafts.

    Draft token x_t stays with the chance min(1, p(x_t)/q(x_t)) while those before it do; after the
    first that does not comes a token of (p - q)+ normalised, then `sample`. If p = q, all stay.

    Source: speculative decoding (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
    arXiv:2302.01318); old completions as drafts: SPEC-RL (arXiv:2509.23232), without its lenience.
    Assumes drafts drawn from `draft_params` at this temperature, over the whole vocabulary, and
    independently of `params`: drafts that these weights were trained on, that were selected by
    reward or length, or that are continued twice, give another law. Rounding: a token is kept with
    a chance that is up to 2^-23 too high; p and q along a draft come from one program, the laws
    after a rejection from another and the rest from the sampler. They agree within rounding (1e-5
    nats a token in float32), and the law with p's as closely.

    Args:
      params: of the current policy, p.
      config: the shape of both.
      draft_params: that drew the drafts, q.
      drafts: prompts and completions; tokens and masks are read, nothing else. A draft without an
        `eos_id` at its end, and shorter than T whatever would have followed, goes on from p.
      key: a `jax.random.key`.
      temperature: > 0.
      eos_id: the token that ends a completion; within a draft it is the last.
      halvings, least_read: as for `sample`.

    Returns:
      Completions of at most T tokens, with their log-probs under p, and how many were kept. The
      loop of the sampler goes on until all rows end, or the one with most tokens left has T.

    Raises:
      ValueError: temperature <= 0, or what `completion_log_probs` and `sample` refuse.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    uniform_key, residual_key, sample_key = jax.random.split(key, 3)
    scale = jnp.float32(temperature)
    log_probs, draft_log_probs = (
        _log_probs(each, config, drafts, scale) for each in (params, draft_params)
    )
    uniforms = jax.random.uniform(uniform_key, log_probs.shape)
    kept = kept_tokens(log_probs, draft_log_probs, uniforms, drafts.completion_mask)
    rows = _Rows(drafts, np.asarray(kept), np.asarray(log_probs))
    lengths = np.asarray(drafts.completion_mask).sum(axis=-1).ravel()

    rest = rows.unfinished(np.arange(lengths.size), eos_id)
    if rest.size:
        which, ids, mask = rows.prefixes(rest)
        rejected = np.asarray(kept).ravel()[which] < lengths[which]
        uniforms = jax.random.uniform(residual_key, (which.size, 2))
        token_ids, scores = _draw_next(
            params, draft_params, config, ids, mask, rejected, scale, uniforms
        )
        rows.append(rest, token_ids[:, None], scores[:, None])
    rest, steps = rows.unfinished(rest, eos_id), 0
    if rest.size:
        which, ids, mask = rows.prefixes(rest)
        most = _size(int(rows.left[rest].max()), rows.longest)
        positions = ids.shape[1] + most  # those beyond the model's are of tokens that are cut off
        samples = sample(
            params,
            replace(config, max_positions=max(config.max_positions, positions)),
            jnp.asarray(ids),
            jnp.asarray(mask),
            sample_key,
            temperature=temperature,
            greedy=False,
            group_size=1,
            max_tokens=most,
            eos_id=eos_id,
            halvings=halvings,
            least_read=least_read,
        )
        steps = int(np.asarray(samples.mask).sum(axis=-1).max()) - 1
        rows.append(rest, samples.token_ids[:, 0], samples.log_probs[:, 0])
    return Continued(rows.samples(eos_id, kept.shape), kept, steps)


class _Rows:
    """Tokens [N*G, P + 2T] on the host: prompt and completion, and room for what will be cut."""

    def __init__(self, drafts: Batch[jax.Array], kept: np.ndarray, log_probs: np.ndarray) -> None:
        _, group, self.longest = log_probs.shape
        self.starts = np.repeat(np.asarray(drafts.prompt_mask).sum(axis=1), group)
        self.ends = self.starts + kept.ravel()
        self.ids = np.repeat(np.asarray(drafts.prompt_ids), group, axis=0)
        self.width = self.ids.shape[1] + self.longest
        self.ids = np.pad(self.ids, [(0, 0), (0, 2 * self.longest)])
        self.log_probs = np.zeros(self.ids.shape, np.float32)
        steps = np.arange(self.longest)
        self.places = np.arange(len(self.ids))[:, None], self.starts[:, None] + steps
        self.ids[self.places] = np.asarray(drafts.completion_ids).reshape(-1, self.longest)
        self.log_probs[self.places] = log_probs.reshape(-1, self.longest)

    @property
    def left(self) -> np.ndarray:
        return self.starts + self.longest - self.ends

    def unfinished(self, rows: np.ndarray, eos_id: int) -> np.ndarray:
        ended = (self.ids[rows, self.ends[rows] - 1] == eos_id) & (self.ends > self.starts)[rows]
        return rows[~ended & (self.left[rows] > 0)]

    def prefixes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rows, repeated, with their tokens so far and the mask of these."""
        rows = np.resize(rows, _size(rows.size, len(self.ids)))
        width = _size(int(self.ends[rows].max()), self.width)
        return rows, self.ids[rows, :width], np.arange(width) < self.ends[rows, None]

    def append(self, rows: np.ndarray, token_ids: jax.Array, log_probs: jax.Array) -> None:
        where = rows[:, None], self.ends[rows, None] + np.arange(token_ids.shape[1])
        self.ids[where] = np.asarray(token_ids)[: rows.size]
        self.log_probs[where] = np.asarray(log_probs)[: rows.size]
        self.ends[rows] += token_ids.shape[1]

    def samples(self, eos_id: int, grid: tuple[int, ...]) -> Sampled:
        """Returns the completions, which by now have `eos_id` or all T tokens."""
        ids, log_probs = self.ids[self.places], self.log_probs[self.places]
        ends = ids == eos_id
        mask = np.cumsum(ends, axis=1) - ends == 0
        arrays = np.where(mask, ids, 0), np.where(mask, log_probs, 0), mask
        grids = (jnp.asarray(x.reshape(*grid, self.longest)) for x in arrays)
        return Sampled(*grids, finished=jnp.asarray(ends.any(axis=1).reshape(grid)))


def _size(count: int, most: int) -> int:
    return next(size for size in doubling(1, most) if size >= count)


_log_probs = jax.jit(completion_log_probs, static_argnums=1)


@partial(jax.jit, static_argnames="config")
def _draw_next(
    params: Params,
    draft_params: Params,
    config: DecoderConfig,
    token_ids: jax.Array,
    mask: jax.Array,
    rejected: jax.Array,
    temperature: jax.Array,
    uniforms: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Draws a token behind each row [R, S]: of the residual if one was rejected, else of p."""

    def law(params: Params) -> jax.Array:
        hidden, _ = run_prompt(params, config, token_ids, mask)
        scores = product(last_valid(hidden, mask), head_weight(params), jnp.float32)
        return log_softmax(scores, temperature)

    log_probs = law(params)
    other = jnp.where(rejected[:, None], law(draft_params), -jnp.inf)
    token = inverse_cdf(jnp.exp(residual_log_probs(log_probs, other)), uniforms)
    return token, jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]
