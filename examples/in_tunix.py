"""A whole method of ours inside the released Tunix: its models, sampler and learner, our maths.

    pip install google-tunix==0.1.7
    python examples/in_tunix.py [ALGORITHM]

Tunix looks up a policy loss and an advantage estimator by name. `register` puts a method's own
under one, and `GRPOLearner` takes it from there. The command trains a small Qwen2 of Tunix to count
on from a digit, on a CPU.
"""

import sys
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from tunix.models.qwen2.model import ModelConfig, Qwen2
from tunix.rl import common, function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

from ogrpo import ALGORITHMS, Algorithm, TokenBatch, diagnostics, mean

# ---------------------------------------------------------------------------------------


def register(algorithm: Algorithm, *, group: int, **knobs: float) -> dict[str, object]:
    """Gives Tunix a method of ours.

    Args:
      algorithm: a method whose advantages are of the rewards alone, without random numbers.
      group: completions of a prompt; one microbatch has to hold whole groups.
      **knobs: its numbers, where they are not the published ones.

    Returns:
      What to make a `GRPOConfig` with.
    """
    settings = algorithm.settings(knobs)
    name = f"ogrpo:{algorithm.title(settings)}"
    loss = policy_loss(algorithm, settings, group)
    function_registry.register_policy_loss_fn(name)(loss)
    function_registry.register_advantage_estimator(name)(estimator(algorithm, settings))
    return {
        "policy_loss_fn": name,
        "advantage_estimator": name,
        "num_generations": group,
        "beta": settings["beta"],  # where it is 0 Tunix scores no reference
    }


def estimator(algorithm: Algorithm, knobs: Mapping[str, float]) -> Callable:
    """A method's advantages as Tunix asks for them."""

    def advantages(rewards, num_generations, **_):
        groups = jnp.asarray(rewards, jnp.float32).reshape(-1, num_generations)
        return np.asarray(algorithm.compute_advantages(groups, knobs)).reshape(-1)

    return advantages


def policy_loss(algorithm: Algorithm, knobs: Mapping[str, float], group: int) -> Callable:
    """A method's loss and reduction as Tunix asks for them."""

    def loss(model, train_example, algo_config, pad_id, eos_id, **_):
        log_probs = score(model, train_example, algo_config.temperature, pad_id, eos_id)
        batch = token_batch(log_probs, train_example)
        log_probs, batch = jax.tree.map(
            lambda x: x.reshape(-1, group, x.shape[-1]), (log_probs, batch)
        )
        values = algorithm.token_loss(log_probs, batch, knobs)
        divergence = jnp.zeros_like(values)
        if knobs["beta"]:
            divergence = algorithm.kl_loss(log_probs, batch, knobs)
        low, high = diagnostics.silenced_totals(
            log_probs, batch, loss_fn=lambda x, b: algorithm.token_loss(x, b, knobs)
        )
        aux = {
            "kl": mean(algorithm.total(divergence, batch.mask, knobs)) / (knobs["beta"] or 1),
            "pg_clipfrac": mean(low) + mean(high),
        }
        return mean(algorithm.total(values + divergence, batch.mask, knobs)), aux

    return loss


def score(model, example, temperature, pad_id, eos_id) -> jax.Array:
    """The model's log-probs of the completions, [B, T]."""
    graph, state = nnx.split(model)
    log_probs = common.compute_per_token_logps(
        graph,
        state,
        prompt_tokens=example.prompt_ids,
        completion_tokens=example.completion_ids,
        pad_id=pad_id,
        eos_id=eos_id,
        stop_gradient=False,
        temperature=temperature,
    )
    return log_probs.astype(jnp.float32)


def token_batch(log_probs: jax.Array, example) -> TokenBatch:
    """Returns the batch that Tunix knows of the tokens, [B, T].

    It scores them before the first update only where a batch is used more than once; used once,
    the policy is its own past.
    """
    old, ref = example.old_per_token_logps, example.ref_per_token_logps
    old = jax.lax.stop_gradient(log_probs) if old is None else old.astype(jnp.float32)
    ref = old if ref is None else ref.astype(jnp.float32)
    advantages = example.advantages.astype(jnp.float32)
    spread = jnp.broadcast_to(advantages[:, None], log_probs.shape)
    return TokenBatch(spread, example.completion_mask.astype(bool), old, old, ref)


# ---------------------------------------------------------------------------------------

LENGTH, GROUP, PROMPTS, STEPS = 3, 8, 10, 30


class Digits:
    """A tokenizer of digits: 0 pads, 1 ends, 2 begins."""

    def encode(self, text: str, **_) -> list[int]:
        """One token a digit."""
        return [int(digit) + 3 for digit in text]

    def decode(self, ids, **_) -> str:
        """The digits alone."""
        return "".join(str(int(token) - 3) for token in ids if token > 2)

    def pad_id(self) -> int:
        """Padding."""
        return 0

    def eos_id(self) -> int:
        """The end; a completion here is as long as it may be."""
        return 1

    def bos_id(self) -> int:
        """The beginning."""
        return 2


def reward(prompts, completions, **_) -> list[float]:
    """The share of digits that count on from the prompt's: 8 -> 901."""
    right = ["".join(str((int(p) + i) % 10) for i in range(1, LENGTH + 1)) for p in prompts]
    pairs = zip(right, completions, strict=True)
    return [sum(a == b for a, b in zip(x, y, strict=False)) / LENGTH for x, y in pairs]


def make_model() -> Qwen2:
    """A Qwen2 of one layer. Its matrices are drawn here: Tunix's own start has MLPs of zeros."""
    config = ModelConfig(
        num_layers=1,
        vocab_size=13,
        embed_dim=32,
        hidden_dim=64,
        num_heads=2,
        head_dim=16,
        num_kv_heads=2,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    model = Qwen2(config, rngs=nnx.Rngs(params=0))
    rng = np.random.default_rng(0)

    def drawn(path, leaf):
        norm = "norm" in jax.tree_util.keystr(path)
        return leaf if norm else jnp.asarray(rng.normal(0, 0.15, leaf.shape), leaf.dtype)

    nnx.update(model, jax.tree_util.tree_map_with_path(drawn, nnx.state(model)))
    return model


def train(name: str, steps: int = STEPS) -> list[float]:
    """Trains by Tunix's `GRPOLearner`; returns the mean reward of each step."""
    seen: list[float] = []

    def recorded(prompts, completions, **columns):
        rewards = reward(prompts, completions, **columns)
        seen.append(float(np.mean(rewards)))
        return rewards

    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (Role.ACTOR, Role.REFERENCE, Role.ROLLOUT)
    cluster = RLCluster(
        actor=make_model(),
        reference=make_model(),
        tokenizer=Digits(),
        cluster_config=ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            training_config=RLTrainingConfig(
                actor_optimizer=optax.adam(0.01), eval_every_n_steps=10**9, max_steps=steps
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=LENGTH,
                max_prompt_length=16,
                kv_cache_size=64,
                temperature=1.0,
            ),
        ),
    )
    config = GRPOConfig(**register(ALGORITHMS[name], group=GROUP))
    batch = {"prompts": np.array([str(digit) for digit in range(PROMPTS)])}
    GRPOLearner(rl_cluster=cluster, algo_config=config, reward_fns=recorded).train([batch] * steps)
    return seen


def main() -> None:
    """Prints the reward of every tenth step."""
    name = sys.argv[1] if len(sys.argv) > 1 else "dapo"
    rewards = train(name)
    print(f"{name} in Tunix")
    for step in (1, *range(10, len(rewards) + 1, 10)):
        print(f"step {step:>3}  reward {rewards[step - 1]:.3f}")


if __name__ == "__main__":
    main()
