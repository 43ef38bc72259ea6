"""Our losses in PyTorch: values and gradients cross unchanged, and PyTorch's own formula agrees."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ogrpo import OBJECTIVES, TokenBatch, sequence_mean, token_mean

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_losses.py"
N, T = 6, 5


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def drawn(dtype=np.float32):
    """log-probs, advantages, mask, behavior, proximal and reference; the groups share advantages."""
    rng = np.random.default_rng(5)
    behavior = -rng.uniform(0.3, 2.5, (N, T))
    near = [behavior + rng.normal(0, 0.3, (N, T)) for _ in range(3)]
    mask = np.arange(T) < rng.integers(1, T + 1, (N, 1))
    advantages = np.broadcast_to(rng.normal(0, 1, (N, 1)), (N, T))
    floats = [x.astype(dtype) for x in (near[0], advantages, behavior, near[1], near[2])]
    return floats[0], floats[1], mask, *floats[2:]


@pytest.mark.parametrize("reduction", [sequence_mean, token_mean])
@pytest.mark.parametrize("name", ["grpo", "gspo", "decoupled", "cispo", "topr", "oapl"])
def test_value_and_gradient_are_jaxs(example, name, reduction):
    log_probs, *others = drawn()
    objective = OBJECTIVES[name]

    def scalar(x):
        batch = TokenBatch(*map(jnp.asarray, others))
        return reduction(objective(x, batch), batch.mask)

    value, slope = jax.value_and_grad(scalar)(jnp.asarray(log_probs))
    tensor = torch.tensor(log_probs, requires_grad=True)
    loss = example["torch_loss"](objective, reduction)
    ours = loss(tensor, *map(torch.tensor, others))
    (2 * ours).backward()
    np.testing.assert_allclose(ours.item(), value, rtol=1e-6)
    assert np.any(slope)
    np.testing.assert_allclose(tensor.grad, 2 * slope, rtol=1e-5, atol=1e-7)


def test_pytorchs_own_formula_has_the_same_gradient(example):
    assert example["difference"]() < 1e-5


def test_a_torch_policy_learns(example):
    before, after = example["train"](example["torch_loss"](OBJECTIVES["gspo"]))
    assert before < 0.2
    assert after > 0.9
