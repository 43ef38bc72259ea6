"""The bridge's promises, checked alike against the in-repo server and against vLLM."""

import re

import numpy as np
import pytest
from scipy import stats

from ogrpo.protocol import Sampling
from ogrpo.rollout import weights as files
from ogrpo.rollout.vllm import PublishRefused, ServerOptions, VllmEngine
from ogrpo.serving.bridge import connect_policy
from tests.rollout.vllm import world

SAMPLING = Sampling(temperature=1.0, max_tokens=12, group_size=4)
EXACT = 1e-4
MAX_LENGTH = 60


def connect(urls, config, *, max_length=MAX_LENGTH, in_flight="wait", **options) -> VllmEngine:
    seconds = {"timeout": 60.0, "patience": 90.0, "wait": 90.0}
    merged = ServerOptions(url=tuple(urls), **{**seconds, **options})
    how = {"eos_id": world.EOS, "max_length": max_length, "in_flight": in_flight}
    return connect_policy(merged, config, **how)


def check_groups(groups, prompts, sampling):
    assert len(groups) == len(prompts)
    for group, prompt in zip(groups, prompts, strict=True):
        np.testing.assert_array_equal(group.prompt_ids, prompt)
        assert len(group.completions) == sampling.group_size
        for c in group.completions:
            assert c.temperature == sampling.temperature
            ended = c.token_ids[-1] == world.EOS
            assert (c.finish_reason == "stop") == ended
            assert world.EOS not in c.token_ids[:-1]
            assert ended or len(c.token_ids) == sampling.max_tokens


def check_log_probs(engine, config, temperatures):
    """Those of the trainer, sampled at temperatures and greedily."""
    params = world.make_params(config, 0)
    engine.publish(params, 1)
    for temperature in temperatures:
        sampling = Sampling(temperature, max_tokens=12, group_size=4)
        groups = engine.generate(world.PROMPTS, sampling, 1)
        check_groups(groups, world.PROMPTS, sampling)
        assert world.worst_gap(config, params, groups, temperature) < EXACT
        # The test can fail: at another temperature the same log-probs are far off.
        assert world.worst_gap(config, params, groups, temperature + 0.5) > 100 * EXACT
    sampling = Sampling(1.0, max_tokens=12, group_size=2, greedy=True)
    groups = engine.generate(world.PROMPTS, sampling, 1)
    for group in groups:
        first, second = group.completions
        np.testing.assert_array_equal(first.token_ids, second.token_ids)
    assert world.worst_gap(config, params, groups) < EXACT
    first = [group.completions[0].token_ids[0] for group in groups]
    best = [world.next_token_probs(config, params, p).argmax() for p in world.PROMPTS]
    assert first == best


def check_pushes(engine, config, prompts=world.PROMPTS):
    """A -> B -> C -> A, each proven, and each with its own log-probs and version."""
    policies = {n: world.make_params(config, n) for n in range(3)}
    for version, which in enumerate((0, 1, 2, 0), start=1):
        engine.publish(policies[which], version)
        assert engine.version == version
        groups = engine.generate(prompts, SAMPLING, version)
        assert {c.policy_version for g in groups for c in g.completions} == {version}
        gaps = {n: world.worst_gap(config, params, groups) for n, params in policies.items()}
        assert gaps.pop(which) < EXACT
        assert min(gaps.values()) > 100 * EXACT


def check_distribution(engine, config):
    """First tokens against the policy's own distribution, over a tiny vocabulary."""
    params, prompt = world.make_params(config, 0), world.PROMPTS[0]
    engine.publish(params, 1)
    groups = engine.generate([prompt] * 40, Sampling(1.0, max_tokens=1, group_size=50), 3)
    drawn = [c.token_ids[0] for group in groups for c in group.completions]
    counts = np.bincount(drawn, minlength=world.VOCAB)
    probs = world.next_token_probs(config, params, prompt).astype(float)
    assert stats.chisquare(counts, len(drawn) * probs / probs.sum()).pvalue > 1e-5
    assert stats.chisquare(counts).pvalue < 1e-5  # of a uniform distribution


UP = "model.layers.1.mlp.up_proj.weight"


def without(tensors, name):
    return {key: array for key, array in tensors.items() if key != name}


def with_value(tensors, value):
    array = tensors[UP].copy()
    array[3, 5] = value
    return {**tensors, UP: array}


# A release's tensors with one thing wrong, and what the server says of it.
GARBAGE = {
    "missing": (lambda tensors: without(tensors, UP), f"lacks 1 tensors: {UP}"),
    "extra": (
        lambda tensors: {**tensors, UP.replace("layers.1", "layers.9"): tensors[UP]},
        "has unknown 1 tensors: model.layers.9",
    ),
    "shape": (lambda tensors: {**tensors, UP: tensors[UP].T.copy()}, "up_proj.weight has shape"),
    "nan": (lambda tensors: with_value(tensors, np.nan), "up_proj.weight has NaN"),
    "inf": (lambda tensors: with_value(tensors, -np.inf), "up_proj.weight has NaN or infinite"),
    "dtype": (
        lambda tensors: {key: array.astype(np.float16) for key, array in tensors.items()},
        "is F16, the model is served as float32",
    ),
    "truncated": (None, "has sha256"),  # whole tensors, of whose file the end is cut off
}


def check_garbage(engine, config, garbage, monkeypatch):
    """A release that is wrong is refused by the server itself, and the live model stays."""
    params, other = world.make_params(config, 1), world.make_params(config, 77)
    engine.publish(params, 1)
    write = files.write
    corrupt, message = garbage

    def sabotaged(file, tensors):
        if corrupt is not None:
            return write(file, corrupt(tensors))
        made = write(file, tensors)
        with file.open("r+b") as opened:
            opened.truncate(made[1] - 100)
        return made

    with monkeypatch.context() as patch:
        # The trainer's own checks are passed by: it is the server that must refuse.
        patch.setattr(files, "write", sabotaged)
        with pytest.raises(PublishRefused, match=re.escape(message)):
            engine.publish(other, 2)
    assert engine.version == 1
    groups = engine.generate(world.PROMPTS, SAMPLING, 5)
    assert {c.policy_version for g in groups for c in g.completions} == {1}
    assert world.worst_gap(config, params, groups) < EXACT
    engine.publish(other, 3)
    groups = engine.generate(world.PROMPTS, SAMPLING, 5)
    assert world.worst_gap(config, other, groups) < EXACT
