"""A new trust region, and what it costs: exact bias and variance, without a trainer.

    python examples/compose_a_loss.py

Between the two lines stands all that a new idea takes. The table compares its gradient estimator
with those it competes with, over every group that the sampler could have drawn.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ogrpo import OBJECTIVES, TokenBatch, token_loss
from ogrpo.core import advantages, estimators

# ---------------------------------------------------------------------------------------


def discounted(ratio, advantages, *, width):
    """Beyond `width` a log-ratio counts no further than its square root would."""
    distance = jnp.log(ratio)
    excess = jnp.maximum(jnp.abs(distance) - width, 0)
    bent = jnp.sign(distance) * (jnp.minimum(jnp.abs(distance), width) + jnp.sqrt(excess + 1) - 1)
    return advantages * jnp.exp(bent)


def my_objective(log_probs, batch, *, width=0.2):
    """-A bent(rho): a loss that any trainer of this package takes as it is."""
    return token_loss(log_probs, batch, surrogate_fn=partial(discounted, width=width))


# ---------------------------------------------------------------------------------------

MU = jnp.array([0.55, 0.30, 0.10, 0.05])  # the sampler
LOGITS = jnp.log(jnp.array([0.20, 0.30, 0.20, 0.30]))  # the policy, some updates later
REWARDS = jnp.array([0.0, 0.5, 0.0, 1.0])
GROUP = 4


def gradients(objective):
    """The estimate of grad J from every possible group of four, [256, 4]."""
    drawn = estimators.every_sample(MU, GROUP)

    def of_one_group(outcomes):
        behavior = jnp.log(MU)[outcomes][:, None]
        spread = advantages.leave_one_out(REWARDS[outcomes])[:, None]
        batch = TokenBatch(spread, jnp.ones((GROUP, 1), bool), behavior, behavior, behavior)

        def loss(logits):
            return objective(jax.nn.log_softmax(logits)[outcomes][:, None], batch).mean()

        return -jax.grad(loss)(LOGITS)

    return jax.jit(jax.vmap(of_one_group))(drawn.outcomes), drawn.probs


def main():
    """Prints the table."""
    truth = jax.grad(lambda logits: jax.nn.softmax(logits) @ REWARDS)(LOGITS)
    wide = {"eps_low": 1.0, "eps_high": 1e6}
    competitors = {
        "importance sampling": partial(OBJECTIVES["grpo"], **wide),
        "no correction": OBJECTIVES["reinforce"],
        "grpo, eps 0.2": OBJECTIVES["grpo"],
        "cispo, cap 2": partial(OBJECTIVES["cispo"], high=2.0),
        "mine, width 0.2": my_objective,
        "mine, width 1": partial(my_objective, width=1.0),
    }
    print(f"{'gradient estimator':<22}{'|bias|':>9}{'variance':>10}{'mse':>9}")
    for name, objective in competitors.items():
        moments = estimators.exact_moments(*gradients(objective), truth)
        bias = float(jnp.linalg.norm(moments.bias))
        print(f"{name:<22}{bias:>9.4f}{float(moments.variance):>10.4f}{float(moments.mse):>9.4f}")


if __name__ == "__main__":
    main()
