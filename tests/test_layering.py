"""Arrows run one way: each package is imported in a fresh process, and what came along is checked."""

import json
import subprocess
import sys

import pytest

OURS = ("core", "policy", "learner", "rollout", "rewards", "data", "kernels", "trainer")
HEAVY = ("jax", "flax", "optax", "orbax", "httpx", "tokenizers", "math_verify", "matplotlib")

ALLOWED = {
    "ogrpo": set(),
    "ogrpo.batch": set(),
    "ogrpo.core": {"jax", "core"},
    "ogrpo.policy": {"jax", "flax", "optax", "orbax", "policy"},  # flax itself brings optax, orbax
    "ogrpo.learner": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.learner.update": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.learner.warm_start": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.learner.checkpoint": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.rollout": {"rollout"},
    "ogrpo.rollout.protocol": {"rollout"},
    "ogrpo.rollout.embedded": {"rollout"},
    "ogrpo.rollout.collection": {"rollout"},
    "ogrpo.rollout.vllm": {"rollout", "httpx"},
    "ogrpo.serve": {"rollout"},
    "ogrpo.rewards": {"rewards", "math_verify"},
    "ogrpo.rewards.math": {"rewards", "math_verify"},
    "ogrpo.data": {"data", "rollout", "tokenizers"},
    "ogrpo.data.batching": {"data", "rollout", "tokenizers"},
    "ogrpo.data.replay": {"data", "rollout", "tokenizers"},
    "ogrpo.data.tokenizer": {"data", "rollout", "tokenizers"},
    "ogrpo.data.gsm8k": {"data", "rollout", "tokenizers"},
    "ogrpo.evaluation": set(),
    # Kernels know the policy's interface; nothing but experiments knows them.
    "ogrpo.kernels.log_probs": {"jax", "flax", "optax", "orbax", "policy", "kernels"},
}

SCRIPT = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""


def imported(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, module], capture_output=True, text=True, check=True
    )
    names = set(json.loads(done.stdout))
    heavy = {name for name in HEAVY if name in names}
    return heavy | {name for name in OURS if f"ogrpo.{name}" in names}


@pytest.mark.parametrize("module", ALLOWED)
def test_a_package_pulls_in_only_what_lies_below_it(module):
    assert imported(module) <= ALLOWED[module]


def test_the_top_level_offers_the_core():
    import ogrpo
    import ogrpo.core.objectives

    assert ogrpo.token_loss is ogrpo.core.objectives.token_loss
    assert all(getattr(ogrpo, name) is not None for name in ogrpo.__all__)
