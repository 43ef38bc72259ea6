"""Our methods inside Tunix, where it is installed: they train there, and GRPO is Tunix's own.

Tunix runs in a process of its own: it does without strict promotion and with warnings.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("tunix") is None:
    pytest.skip("no tunix here: pip install google-tunix==0.1.7", allow_module_level=True)
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPARE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from tunix.rl import function_registry as registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
sys.path.insert(0, "examples")
from in_tunix import make_model, register
from ogrpo import ALGORITHMS

N, G, P, T = 3, 4, 5, 6
rng = np.random.default_rng(3)
prompts = rng.integers(3, 13, (N, P)).repeat(G, axis=0)
lengths = rng.integers(1, T + 1, (N * G, 1))
tokens = np.where(np.arange(T) < lengths, rng.integers(3, 13, (N * G, T)), 0)
rewards = rng.integers(0, 3, N * G).astype(np.float32)

def example(advantages):
    return TrainExample(
        prompt_ids=jnp.asarray(prompts), prompt_mask=jnp.asarray(prompts != 0),
        completion_ids=jnp.asarray(tokens), completion_mask=jnp.asarray(tokens != 0),
        advantages=jnp.asarray(advantages), ref_per_token_logps=None,
        old_per_token_logps=jnp.asarray(rng.normal(-2.5, 0.5, (N * G, T)), jnp.float32),
    )

def judged(config, given):
    config.temperature = 0.7
    loss_fn = registry.get_policy_loss_fn(config.policy_loss_fn)
    loss = lambda model: loss_fn(model, given, algo_config=config, pad_id=0, eos_id=1)
    (value, aux), gradient = nnx.value_and_grad(loss, has_aux=True)(make_model())
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(gradient)]
    return float(value), float(aux["pg_clipfrac"]), np.concatenate(leaves)

theirs = GRPOConfig(num_generations=G, beta=0.0)
ours = GRPOConfig(**register(ALGORITHMS["grpo"], group=G, beta=0.0))
credit = [
    np.asarray(registry.get_advantage_estimator(c.advantage_estimator)(
        rewards=rewards, num_generations=G)) for c in (theirs, ours)
]
given = example(credit[0])
(value, clipped, slope), (own_value, own_clipped, own_slope) = (
    judged(config, given) for config in (theirs, ours)
)
print(json.dumps({
    "values": [value, own_value], "clipped": [clipped, own_clipped],
    "slopes": [np.abs(own_slope - slope).max(), np.abs(slope).max()],
    "credit": [c.tolist() for c in credit],
}))
"""


def run(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_grpo_is_tunixs_own_to_rounding():
    comparison = json.loads(run("-c", COMPARE).splitlines()[-1])
    tunix_value, our_value = comparison["values"]
    assert our_value == pytest.approx(tunix_value, rel=1e-5)
    assert comparison["clipped"][0] > 0.05
    apart, largest = comparison["slopes"]
    assert largest > 0
    assert apart < 1e-5 * largest
    theirs, ours = comparison["credit"]
    bessel = (3 / 4) ** 0.5  # ours divides by the population's deviation, as the paper does
    assert any(theirs)
    assert [x * bessel for x in ours] == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("name", ["dapo", "grpo"])
def test_tunix_trains_with_a_method_of_ours(name):
    """dapo without a reference, grpo with Tunix's."""
    rows = run("examples/in_tunix.py", name).splitlines()
    rewards = [float(row.split()[-1]) for row in rows if row.startswith("step")]
    assert len(rewards) == 4
    assert rewards[0] < 0.2
    assert rewards[-1] > rewards[0] + 0.15
