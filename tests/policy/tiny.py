"""Tiny decoders of each family, and ragged batches, for the tests of this package."""

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch, tokens_only
from ogrpo.policy import DecoderConfig, Params, RopeScaling, Sampled, sample
from ogrpo.policy.decoder import param_shapes

_SCALING = RopeScaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=64
)


def make_config(family: str = "Qwen2", **changes) -> DecoderConfig:
    fields = {
        "architecture": f"{family}ForCausalLM",
        "vocab_size": 11,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8 if family == "Qwen3" else 4,
        "rope_theta": 10000.0,
        "rope_scaling": _SCALING if family == "Llama" else None,
        "rms_norm_eps": 1e-6,
        "tie_embeddings": family != "Llama",
        "max_positions": 64,
    }
    return DecoderConfig(**{**fields, **changes})


FAMILIES = ("Qwen2", "Qwen3", "Llama")


def make_params(config: DecoderConfig, seed: int = 0, dtype=jnp.float32) -> Params:
    """Parameters with every tensor random (biases and norms too) and logits of order one."""
    rng = np.random.default_rng(seed)

    def random(path, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        center = 1.0 if "norm" in jax.tree_util.keystr(path[:-1]) else 0.0
        return jnp.asarray(rng.normal(center, 0.3, leaf.shape), dtype)

    return jax.tree_util.tree_map_with_path(random, param_shapes(config))


def ragged_batch(config: DecoderConfig, n: int = 3, p: int = 5, g: int = 4, t: int = 4):
    """Prompts of lengths p, 2 and 1, completions of lengths 1 to t, noise on the padding."""
    rng = np.random.default_rng(0)
    prompt_lengths = np.array([p, 2, 1])[:n]
    lengths = rng.integers(1, t + 1, (n, g))
    lengths[0, 0] = t
    return tokens_only(
        prompt_ids=jnp.asarray(rng.integers(0, config.vocab_size, (n, p)), jnp.int32),
        prompt_mask=jnp.asarray(np.arange(p) < prompt_lengths[:, None]),
        completion_ids=jnp.asarray(rng.integers(0, config.vocab_size, (n, g, t)), jnp.int32),
        completion_mask=jnp.asarray(np.arange(t) < lengths[..., None]),
    )


def by_name(tree) -> dict:
    """The leaves of a tree by their names with dots."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def make_case(family: str = "Qwen2", **changes) -> tuple[DecoderConfig, Params, Batch]:
    """A config of a family, its parameters and a ragged batch."""
    config = make_config(family, **changes)
    return config, make_params(config), ragged_batch(config)


SAMPLING = {"temperature": 0.7, "greedy": False, "group_size": 4, "max_tokens": 6, "eos_id": 5}


def run_sampler(config, params, batch, seed=0, **changes) -> Sampled:
    """Completions of the batch's prompts, with settings other than `SAMPLING`'s."""
    prompts = batch.prompt_ids, batch.prompt_mask
    return sample(params, config, *prompts, jax.random.key(seed), **{**SAMPLING, **changes})
