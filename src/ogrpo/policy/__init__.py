"""The decoder: parameters as a plain pytree, and pure functions of them."""

from ogrpo.policy.config import DecoderConfig, RopeScaling
from ogrpo.policy.decoder import Params, init_params
from ogrpo.policy.log_probs import (
    PolicyBatch,
    completion_log_probs,
    completion_log_probs_and_entropy,
    flat_log_probs,
)
from ogrpo.policy.pretrained import load_config, load_pretrained, save_pretrained
from ogrpo.policy.sampler import Samples, sample

__all__ = [
    "DecoderConfig",
    "Params",
    "PolicyBatch",
    "RopeScaling",
    "Samples",
    "completion_log_probs",
    "completion_log_probs_and_entropy",
    "flat_log_probs",
    "init_params",
    "load_config",
    "load_pretrained",
    "sample",
    "save_pretrained",
]
