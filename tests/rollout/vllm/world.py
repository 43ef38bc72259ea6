"""A tiny policy that any server can serve, and what the trainer itself thinks of samples of it."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.data.tokenizer import word_level
from ogrpo.policy import DecoderConfig, Params, save_pretrained
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.log_probs import flat_log_probs, flat_logits
from ogrpo.protocol import Group, IntArray

TOKENIZER = word_level([f"w{n}" for n in range(13)])
EOS = TOKENIZER.eos_id
VOCAB = 16
POSITIONS = 128
PROMPTS = [np.array(ids, np.int32) for ids in ([1, 2, 3], [4, 5], [6], [7, 8, 9, 10])]


def decoder(*, tied: bool = True) -> DecoderConfig:
    """Head size 32 is the least that vLLM serves."""
    return DecoderConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=tied,
        max_positions=POSITIONS,
    )


def make_params(config: DecoderConfig, seed: int) -> Params:
    """Every tensor random, logits of order one; two seeds are nats apart."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        center, scale = (1.0, 0.2) if "norm" in name else (0.0, 0.12)
        return jnp.asarray(rng.normal(center, scale, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def save(folder: Path, config: DecoderConfig, params: Params) -> Path:
    save_pretrained(folder, config, params, extra_fields={"eos_token_id": EOS})
    TOKENIZER.save(folder)
    return folder


def save_both(make_folder: Callable[[str], Path]) -> dict[bool, Path]:
    """Folders of first weights, tied and untied."""
    configs = {tied: decoder(tied=tied) for tied in (True, False)}
    return {
        tied: save(make_folder("policy"), config, make_params(config, 100))
        for tied, config in configs.items()
    }


@cache
def _scorer(config: DecoderConfig):
    return jax.jit(partial(_flat, config=config))


def _flat(params, ids, mask, temperature, *, config):
    return flat_log_probs(params, config, ids, mask, temperature)


def log_probs(
    config: DecoderConfig, params: Params, groups: Sequence[Group], temperature: float
) -> list[np.ndarray]:
    """The trainer's log-probs of every completion, one after the other."""
    rows = [(g.prompt_ids, c.token_ids) for g in groups for c in g.completions]
    ids = np.zeros((-(-len(rows) // 16) * 16, 64), np.int32)
    mask = np.zeros(ids.shape, bool)
    for n, (prompt, drawn) in enumerate(rows):
        ids[n, : len(prompt) + len(drawn)] = np.concatenate([prompt, drawn])
        mask[n, : len(prompt) + len(drawn)] = True
    mask[len(rows) :, 0] = True
    scores = np.asarray(
        _scorer(config)(params, jnp.asarray(ids), jnp.asarray(mask), jnp.float32(temperature))
    )
    return [
        scores[n, len(prompt) - 1 : len(prompt) - 1 + len(drawn)]
        for n, (prompt, drawn) in enumerate(rows)
    ]


def worst_gap(
    config: DecoderConfig, params: Params, groups: Sequence[Group], temperature: float = 1.0
) -> float:
    """The largest difference between a server's log-probs and the trainer's, in nats."""
    trained = log_probs(config, params, groups, temperature)
    drawn = [c.log_probs for g in groups for c in g.completions]
    return max(np.abs(a - b).max(initial=0.0) for a, b in zip(trained, drawn, strict=True))


def next_token_probs(config: DecoderConfig, params: Params, prompt: IntArray) -> np.ndarray:
    return np.asarray(_next_probs(config)(params, jnp.asarray(prompt)[None]))


@cache
def _next_probs(config: DecoderConfig):
    def probs(params, ids):
        scores = flat_logits(params, config, ids, jnp.ones(ids.shape, bool))
        return jax.nn.softmax(scores[0, -1])

    return jax.jit(probs)
