"""Blocks that no method of `test_trl_names` has, through TRL's `GRPOTrainer._compute_loss` and ours.

Written against TRL 1.16. The trainer is never built: its loss method is called with the attributes
it reads, and with a forward pass that returns the log-probs at hand.
"""

import warnings
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ogrpo.core import aggregate, gates, objectives, surrogates
from ogrpo.core.objectives import TokenBatch, token_loss
from ogrpo.core.ratios import log_ratio, shared_mean_log_ratio

B, T, LONGEST = 6, 5, 8
EPS = {"eps_low": 0.15, "eps_high": 0.3}


@pytest.fixture(scope="module")
def trainer_class():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's imports, not of its loss
        from trl.trainer.grpo_trainer import GRPOTrainer
    return GRPOTrainer


def tensors():
    """TRL's names: per-token log-probs new, old (the trainer's), sampling (the engine's), ref."""
    rng = np.random.default_rng(11)
    old = -rng.uniform(0.3, 2.5, (B, T))
    new, ref, sampling = (old + rng.normal(0, 0.3, (B, T)) for _ in range(3))
    mask = np.arange(T) < rng.integers(1, T + 1, (B, 1))
    return SimpleNamespace(
        new=new, old=old, ref=ref, sampling=sampling, mask=mask, A=rng.normal(0, 1, B)
    )


def theirs(trainer_class, t, **options):
    """TRL's loss and its gradient in the log-probs."""
    new = torch.tensor(t.new, requires_grad=True)
    entropies = torch.zeros_like(new)
    config = {
        "beta": 0.0,
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": EPS["eps_low"],
        "epsilon_high": EPS["eps_high"],
        "off_policy_mask_threshold": None,
        "delta": None,
        "use_bias_correction_kl": False,
        **options,
    }
    arguments = {
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.25,  # exact in float32, in which TRL keeps it
        "steps_per_generation": 1,
        "delta": config.pop("delta"),
        "use_bias_correction_kl": config.pop("use_bias_correction_kl"),
    }
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, sync_gradients=False
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, entropies, None),
        get_off_policy_mask=trainer_class.get_off_policy_mask,
        args=SimpleNamespace(**arguments),
        accelerator=accelerator,
        model=SimpleNamespace(training=False),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        use_vllm=False,
        vllm_importance_sampling_correction=True,
        max_completion_length=LONGEST,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics={"eval": {k: [] for k in METRICS}},
        **config,
    )
    inputs = {
        "prompt_ids": torch.zeros(B, 1, dtype=torch.long),
        "prompt_mask": torch.ones(B, 1),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": torch.tensor(t.mask, dtype=torch.float64),
        "advantages": torch.tensor(t.A),
        "old_per_token_logps": torch.tensor(t.old),
        "ref_per_token_logps": torch.tensor(t.ref),
        "sampling_per_token_logps": torch.tensor(t.sampling),
        "importance_sampling_ratio": None,
        "num_items_in_batch": torch.tensor(float(t.mask.sum())),
    }
    loss = trainer_class._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), new.grad.numpy()


METRICS = [
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_max",
    "cispo_clip_ratio",
]


def ours(t, objective, reduction):
    """Our loss and its gradient. TRL's ratio is over the trainer's own `old`."""
    fields = [jnp.asarray(x) for x in (t.sampling, t.old, t.ref)]
    spread = jnp.asarray(np.repeat(t.A[:, None], T, 1))
    batch = TokenBatch(spread, jnp.asarray(t.mask), *fields)

    def loss(new):
        return reduction(objective(new, batch), batch.mask)

    return jax.value_and_grad(loss)(jnp.asarray(t.new))


def over_old(objective):
    """The objective with TRL's `old` as the policy its ratio is over."""

    def run(new, batch):
        return objective(new, batch._replace(behavior_log_probs=batch.proximal_log_probs))

    return run


def shared_gspo(new, batch):
    clip = partial(surrogates.clipped_surrogate, eps_low=0.05, eps_high=0.1)
    return token_loss(new, batch, surrogate_fn=clip, log_ratio_fn=shared_mean_log_ratio)


clipped = partial(objectives.grpo, **EPS)


def agree(one, other):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-10)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-9, atol=1e-12)


def test_luspo_is_gspo_with_one_ratio_summed_over_the_completion(trainer_class):
    options = {
        "loss_type": "luspo",
        "importance_sampling_level": "sequence",
        "epsilon_low": 0.05,
        "epsilon_high": 0.1,
    }
    with jax.enable_x64():
        t = tensors()
        found = ours(t, over_old(shared_gspo), aggregate.sequence_sum_mean)
        agree(found, theirs(trainer_class, t, **options))


def test_the_off_policy_sequence_mask_is_trls(trainer_class):
    def objective(new, batch):
        delta = log_ratio(new, batch.behavior_log_probs, batch.mask)
        kept = gates.off_policy_sequence_mask(delta, batch.advantages, batch.mask, delta=0.02)
        return jax.lax.stop_gradient(kept) * over_old(clipped)(new, batch)

    with jax.enable_x64():
        t = tensors()
        expected = theirs(trainer_class, t, off_policy_mask_threshold=0.02)
        assert expected[0] != theirs(trainer_class, t)[0]
        agree(ours(t, objective, aggregate.sequence_mean), expected)
