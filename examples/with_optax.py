"""A policy of one's own, trained in a plain Optax loop with a whole method of ours.

    python examples/with_optax.py [ALGORITHM]

The policy is to count on from a number, modulo 10. Its sampler is renewed every 5 steps, so that
what it trains on is up to 4 steps old. ogrpo is one line of the loop: from log-probs, the sampler's
own and rewards to a loss. Any method of `ogrpo.ALGORITHMS` will do that needs no knob, no random
key, no reference or proximal policy, and nothing else of a completion: not its length, rewards of
its steps or values.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import optax

from ogrpo import ALGORITHMS, TokenBatch, mean

NUMBERS, LENGTH, WIDTH, GROUP = 10, 4, 32, 16
STEPS, SYNC_INTERVAL = 60, 5


def init(key):
    """Parameters: an embedding of the token before, and a head."""
    key_embedding, key_head = jax.random.split(key)
    return {
        "embedding": jax.random.normal(key_embedding, (NUMBERS, WIDTH)),
        "head": jax.random.normal(key_head, (WIDTH, NUMBERS)) / WIDTH**0.5,
    }


def next_log_probs(params, before):
    """log pi(. | the token before), [..., V] for tokens [...]."""
    return jax.nn.log_softmax(jnp.tanh(params["embedding"][before]) @ params["head"])


def completion_log_probs(params, prompts, tokens):
    """log pi of each token of completions [N, G, T] of prompts [N]."""
    first = jnp.broadcast_to(prompts[:, None, None], (*tokens.shape[:-1], 1))
    before = jnp.concatenate([first, tokens[..., :-1]], axis=-1)
    log_probs = next_log_probs(params, before)
    return jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]


def sample(params, prompts, key):
    """Completions [N, G, T] and the log-probs that they were drawn with."""

    def draw(before, key):
        token = jax.random.categorical(key, next_log_probs(params, before))
        return token, token

    start = jnp.broadcast_to(prompts[:, None], (len(prompts), GROUP))
    _, tokens = jax.lax.scan(draw, start, jax.random.split(key, LENGTH))
    tokens = jnp.moveaxis(tokens, 0, -1)
    return tokens, completion_log_probs(params, prompts, tokens)


def reward(prompts, tokens):
    """The share of tokens that count on from the prompt: 8 -> 9, 0, 1, 2. [N, G]."""
    expected = (prompts[:, None, None] + jnp.arange(1, LENGTH + 1)[None, None]) % NUMBERS
    return jnp.mean((tokens == expected).astype(jnp.float32), axis=-1)


def loss(params, prompts, tokens, behavior, *, algorithm, knobs):
    """A method's loss on completions that an earlier policy has drawn."""
    log_probs = completion_log_probs(params, prompts, tokens)
    batch = TokenBatch(
        advantages=jnp.zeros_like(behavior),  # the method computes its own from the rewards
        mask=jnp.ones(tokens.shape, bool),
        behavior_log_probs=behavior,
        proximal_log_probs=behavior,
        ref_log_probs=behavior,
    )
    return mean(algorithm(log_probs, batch, reward(prompts, tokens), knobs))


def train(name, steps=STEPS):
    """The mean reward of what was sampled at each step."""
    algorithm = ALGORITHMS[name]
    settings = {"algorithm": algorithm, "knobs": algorithm.settings({})}
    optimizer, prompts = optax.adam(0.03), jnp.arange(NUMBERS)
    params = sampler = init(jax.random.key(0))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, sampler, key):
        tokens, behavior = sample(sampler, prompts, key)
        gradient = jax.grad(partial(loss, **settings))(params, prompts, tokens, behavior)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, jnp.mean(reward(prompts, tokens))

    rewards = []
    for number in range(steps):
        if number % SYNC_INTERVAL == 0:
            sampler = params
        params, state, got = step(params, state, sampler, jax.random.key(number + 1))
        rewards.append(float(got))
    return rewards


def main():
    """Prints the reward of every tenth step."""
    name = sys.argv[1] if len(sys.argv) > 1 else "off_policy_grpo"
    rewards = train(name)
    print(f"{name}: reward of chance {1 / NUMBERS}, of a policy that counts 1.0")
    for number in (0, *range(9, STEPS, 10)):
        print(f"step {number + 1:>3}  reward {rewards[number]:.3f}")


if __name__ == "__main__":
    main()
