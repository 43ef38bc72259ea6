"""The decoder: parameters as a plain pytree, and pure functions of them.

>>> import jax, jax.numpy as jnp
>>> from ogrpo import policy
>>> from ogrpo.batch import tokens_only
>>> from ogrpo.policy.config import tiny
>>> config = tiny(11)
>>> params = policy.init_params(config, jax.random.key(0))
>>> prompt_ids = jnp.array([[1, 2, 3], [4, 0, 0]])
>>> prompt_mask = jnp.array([[True, True, True], [True, False, False]])
>>> samples = policy.sample(
...     params, config, prompt_ids, prompt_mask, jax.random.key(1),
...     temperature=0.7, greedy=False, group_size=4, max_tokens=6, eos_id=5)
>>> batch = tokens_only(
...     prompt_ids=prompt_ids, prompt_mask=prompt_mask,
...     completion_ids=samples.token_ids, completion_mask=samples.mask)
>>> log_probs = policy.completion_log_probs(params, config, batch, 0.7)
>>> log_probs.shape
(2, 4, 6)
>>> bool(jnp.max(jnp.abs(log_probs - samples.log_probs)) < 1e-5)
True
"""

from ogrpo.policy.config import DecoderConfig, RopeScaling
from ogrpo.policy.decoder import Params, init_params
from ogrpo.policy.log_probs import (
    completion_log_probs,
    completion_log_probs_and_entropy,
    flat_log_probs,
)
from ogrpo.policy.pretrained import load_config, load_pretrained, save_pretrained
from ogrpo.policy.sampler import Sampled, sample

__all__ = [
    "DecoderConfig",
    "Params",
    "RopeScaling",
    "Sampled",
    "completion_log_probs",
    "completion_log_probs_and_entropy",
    "flat_log_probs",
    "init_params",
    "load_config",
    "load_pretrained",
    "sample",
    "save_pretrained",
]
