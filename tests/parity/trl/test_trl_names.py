"""The rows on TRL in `docs/names.md`, whole: TRL's trainer and our method on the same rewards,
completions and log-probs give the same loss and gradient.

Written against TRL 1.16. Its trainer is built, and scores its own rollouts; only the forward pass
is replaced, by one that returns the log-probs at hand.
"""

import ast
import inspect
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ogrpo.core.aggregate import mean
from ogrpo.core.objectives import TokenBatch
from tests import names
from tests.parity.trl.models import QUIET, tiny

PROMPTS, G, T, LONGEST = 2, 4, 5, 8
TRL = [row for row in names.rows() if row.project.startswith("TRL")]
LIKE = [row for row in TRL if row.ours and row.table != "Other trainers"]


def tensors():
    """new, old (the trainer's own), sampling (the engine's), ref, H [P, G, T]; rewards [P, G]."""
    rng = np.random.default_rng(5)
    old = -rng.uniform(0.3, 2.5, (PROMPTS, G, T))
    new, ref, sampling = (old + rng.normal(0, 0.8, old.shape) for _ in range(3))
    mask = np.arange(T) < rng.integers(2, T + 1, (PROMPTS, G, 1))
    mask[0, 0] = True
    rewards = np.array([[1.0, 0.0, 0.5, 0.0], [0.25, 0.75, 1.0, 1.0]])
    entropy = rng.uniform(0, 2, old.shape)
    others = {"H": entropy, "mask": mask, "rewards": rewards}
    return SimpleNamespace(new=new, old=old, ref=ref, sampling=sampling, **others)


def build(trl, t, options):
    """TRL's trainer with the options; its rollouts and rewards are `t`'s."""
    from datasets import Dataset

    later = {"beta": 0.0, "use_vllm": "vllm_importance_sampling_mode" in options}
    later = {name: options.get(name, value) for name, value in later.items()}
    rest = {name: value for name, value in options.items() if name not in later}
    lengths = t.mask.sum(-1).ravel()
    drew = t.old if "off_policy_mask_threshold" in options else t.sampling

    def rollout(prompts, trainer):
        ids = [[2] * n for n in lengths]
        log_probs = [list(x[:n]) for x, n in zip(drew.reshape(-1, T), lengths, strict=True)]
        return {"prompt_ids": [[3]] * len(prompts), "completion_ids": ids, "logprobs": log_probs}

    config = trl.GRPOConfig(
        **QUIET,
        gradient_checkpointing=False,
        per_device_train_batch_size=PROMPTS * G,
        num_generations=G,
        max_completion_length=LONGEST,
        num_iterations=2,  # or TRL takes the present policy for its old one
        **rest,
    )
    trainer = trl.GRPOTrainer(
        reward_funcs=lambda completions, **_: t.rewards.ravel().tolist(),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * PROMPTS * G),
        rollout_func=rollout,
        **tiny(),
    )
    # An engine and a reference model that would have to be loaded are said to be there.
    trainer.use_vllm, trainer.beta, trainer.ref_model = later["use_vllm"], later["beta"], "ref"
    trainer._last_loaded_step = trainer.state.global_step
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def theirs(trl, t, options):
    """TRL's loss and its gradient in the log-probs, from the rewards on."""
    new = torch.tensor(t.new.reshape(-1, T), requires_grad=True)
    stale = {"ref": torch.tensor(t.ref.reshape(-1, T)), "old": torch.tensor(t.old.reshape(-1, T))}

    def forward(model, *_, **__):
        now = new if torch.is_grad_enabled() else stale["ref" if model == "ref" else "old"]
        return now, torch.tensor(t.H.reshape(-1, T)), None

    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what TRL thinks of the options
            trainer = build(trl, t, options)
            trainer._get_per_token_logps_and_entropies = forward
            inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * PROMPTS * G)
            loss = trainer._compute_loss(trainer.model, inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    loss.backward()
    return loss.item(), new.grad.numpy().reshape(t.new.shape)


def ours(t, title, options):
    """Our loss and its gradient. TRL's ratio is over the trainer's own `old`."""
    algorithm, overrides = names.build(title)
    knobs = names.settings(algorithm, overrides, LONGEST)
    engine = t.sampling if "vllm_importance_sampling_mode" in options else t.old
    fields = [jnp.asarray(x) for x in (engine, t.old, t.ref)]
    batch = TokenBatch(jnp.zeros(t.new.shape), jnp.asarray(t.mask), *fields)
    batch = batch._replace(entropy=jnp.asarray(t.H))
    rewards = jnp.asarray(t.rewards)

    def loss(new):
        return mean(algorithm(new, batch, rewards, knobs))

    return jax.value_and_grad(loss)(jnp.asarray(t.new))


@pytest.mark.parametrize("row", LIKE, ids=lambda row: row.theirs)
def test_the_whole_method_is_trls(trl, row):
    with jax.enable_x64():
        t = tensors()
        expected = theirs(trl, t, row.options)
        actual = ours(t, row.ours, row.options)
    assert np.any(expected[1])
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-8, atol=1e-12)


def compared_with(module, attribute):
    """The strings that a module compares an attribute with."""
    tree = ast.parse(inspect.getsource(module))
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Compare)]
    sides = [n.comparators for n in nodes if getattr(n.left, "attr", None) == attribute]
    values = {getattr(n, "value", None) for side in sides for c in side for n in ast.walk(c)}
    return {value for value in values if isinstance(value, str)}


@pytest.mark.parametrize(
    "option",
    ["loss_type", "scale_rewards", "importance_sampling_level", "vllm_importance_sampling_mode"],
)
@pytest.mark.usefixtures("trl")
def test_every_name_that_trl_knows_is_in_the_table(option):
    from trl.trainer import grpo_trainer

    named = {row.options[option] for row in TRL if option in row.options}
    assert named == compared_with(grpo_trainer, option)
    assert len(named) > 1


def test_every_argument_of_grpo_config_has_an_option_or_none(trl):
    text = (Path(__file__).parents[3] / "docs/from_trl.md").read_text()
    table = text.split("### GRPOConfig")[1].split("\n### ")[0]
    named = re.findall(r"^\| `(\w+)` \| ", table, re.M)
    assert len(named) == len(set(named))
    assert set(named) == set(vars(trl.GRPOConfig)["__annotations__"])
