"""Shapes that are measured, and weights whose completions end by a known law."""

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np

from ogrpo.data.tokenizer import word_level
from ogrpo.policy import DecoderConfig, Params, init_params
from ogrpo.policy.config import SHAPES as DECODERS
from ogrpo.policy.decoder import head_weight
from ogrpo.policy.log_probs import run_prompt
from ogrpo.setup.devices import DTYPES
from ogrpo.setup.model import tiny_decoder
from ogrpo.tasks import arithmetic

EOS = 1
LOUDER = 8
"""What layers write, times so much, where the most likely token is drawn: with small random weights
and a tied head that would be the token before, again and again."""


@dataclass(frozen=True)
class Shape:
    """A batch: what one step of training asks of the sampler."""

    model: str
    """tiny (the default run's decoder) or 0.5b (the shape of Qwen2.5-0.5B)."""
    prompts: int
    """N"""
    group: int
    """G: completions of a prompt."""
    prompt: int
    """P: tokens of each prompt."""
    tokens: int
    """T: tokens of a completion at most."""
    ends: float = 0.0
    """Probability of the end of sequence at each token, about; 0: every completion has T tokens."""
    dtype: str = "float32"
    """float32 or bfloat16, of weights and cache."""
    greedy: bool = False
    """Take the most likely token, so that what the engines drew can be compared; for G = 1."""
    warm: int = 0
    """Tokens of a completion at most in batches that warm up; 0: T. A measurement of hundreds of
    steps needs no other such batch before it."""

    def __post_init__(self) -> None:
        if self.greedy and self.group > 1:
            raise ValueError(
                f"greedy with group={self.group}: all completions of a prompt are the same, and"
                " vLLM refuses to draw them; give more prompts and group=1"
            )
        if self.greedy and self.ends:
            raise ValueError(
                f"greedy with ends={self.ends}: a token that is likely everywhere would be the most"
                " likely everywhere; leave ends at 0"
            )


TINY = Shape("tiny", prompts=16, group=8, prompt=32, tokens=14)
LARGE = Shape("0.5b", prompts=2, group=8, prompt=128, tokens=64)
LONG = Shape("0.5b", prompts=1, group=2, prompt=128, tokens=1024, warm=8)
SHAPES = {
    "tiny": TINY,
    "tiny-ragged": dataclasses.replace(TINY, tokens=64, ends=0.05),
    "0.5b": LARGE,
    "0.5b-ragged": dataclasses.replace(LARGE, ends=0.05),
    "0.5b-bfloat16": dataclasses.replace(LARGE, dtype="bfloat16"),
    "0.5b-wide": dataclasses.replace(LARGE, prompts=8, group=16, tokens=32),
    "0.5b-wide-ragged": dataclasses.replace(LARGE, prompts=8, group=16, ends=0.05),
    "0.5b-long": LONG,
    "0.5b-long-greedy": dataclasses.replace(LONG, prompts=2, group=1, greedy=True),
}


def decoder_of(shape: Shape) -> DecoderConfig:
    if shape.model == "0.5b":
        return DECODERS["qwen2.5-0.5b"]
    return tiny_decoder(word_level(arithmetic.vocabulary()))


def make_weights(shape: Shape, config: DecoderConfig, seed: int) -> Params:
    """Random weights under which the end of sequence has about a given probability everywhere.

    Feature 0 of the stream is the same for every token and no layer writes to it, so that the final
    norm leaves it nearly constant; the entry of the (tied) embedding that reads it for the end of
    sequence is set so that the mean probability, over random prompts, is the one asked for.
    """
    params = init_params(config, jax.random.key(seed))
    attention, mlp = params["layers"]["self_attn"], params["layers"]["mlp"]
    for part in (attention["o_proj"], mlp["down_proj"]):
        part["weight"] = part["weight"].at[:, 0].set(0.0) * (LOUDER if shape.greedy else 1)
    embedding = params["embed_tokens"]
    level = 0.02 if shape.greedy else 1.0  # a large one drowns what is said of the tokens
    embedding["weight"] = embedding["weight"].at[:, 0].set(level)
    excess = _excess(shape, config, params)
    embedding["weight"] = embedding["weight"].at[EOS, 0].add(excess)
    return jax.tree.map(lambda leaf: leaf.astype(DTYPES[shape.dtype]), params)


def _excess(shape: Shape, config: DecoderConfig, params: Params) -> float:
    """Returns by how much the entry of the end of sequence exceeds other tokens', by bisection."""
    if not shape.ends:
        return -1e3
    ids = jax.random.randint(jax.random.key(1), (4, 16), EOS + 1, config.vocab_size)
    hidden, _ = jax.jit(run_prompt, static_argnums=1)(params, config, ids, ids >= 0)
    flat = hidden.reshape(-1, hidden.shape[-1])
    log_probs = np.asarray(jax.nn.log_softmax(flat @ head_weight(params).T), np.float64)
    ends, first = log_probs[:, EOS], np.asarray(flat[:, 0], np.float64)
    low, high = -1e2, 1e2
    for _ in range(60):
        middle = (low + high) / 2
        odds = np.exp(np.clip(ends + middle * first, -50, 50)) / -np.expm1(ends)
        low, high = (low, middle) if np.mean(odds / (1 + odds)) > shape.ends else (middle, high)
    return low
