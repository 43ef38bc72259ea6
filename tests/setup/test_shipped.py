"""Warm starts that the package comes with: read by the run that they are of, and checked."""

import json
from contextlib import closing
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.warm_starts import SHIPPED, recipe_of
from ogrpo.config.train import Evaluation, WarmStart
from ogrpo.loop import start
from ogrpo.loop.evaluate import evaluate
from ogrpo.policy import init_params
from ogrpo.policy.config import tiny
from ogrpo.setup import cache, imitation
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from tests.run.small_run import make_parts_again

DECODER = tiny(16)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def params():
    return init_params(DECODER, jax.random.key(0), np.float32)


def test_weights_come_back_to_the_bit(params, tmp_path):
    cache.ship("one", "one", params, tmp_path)
    cache.ship("two", "two", jax.tree.map(np.zeros_like, params), tmp_path)
    file, weights = cache.read_shipped("one", np.float32, tmp_path)
    assert file == tmp_path / "one.safetensors"
    jax.tree.map(np.testing.assert_array_equal, weights, params)


def test_a_file_that_was_not_shipped_is_refused_with_the_remedy(params, tmp_path):
    cache.ship("recipe", "weights", params, tmp_path)
    assert cache.read_shipped("another", np.float32, tmp_path) is None
    file = tmp_path / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"SHA-256 begins with .* give --warm-start\.retrain"):
        cache.read_shipped("recipe", np.float32, tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match=r"weights\.safetensors.* is missing: install ogrpo anew"):
        cache.read_shipped("recipe", np.float32, tmp_path)


def shipped_file(prepared):
    """The name of the file that a run begins with; None where none is shipped."""
    manifest = json.loads((cache.FOLDER / cache.MANIFEST).read_text())
    return manifest.get(recipe_of(prepared), {"file": None})["file"]


def test_the_default_begins_with_what_is_shipped_and_trains_where_that_is_asked_for(monkeypatch):
    with closing(prepare(SHIPPED["default-0"])) as prepared:
        assert shipped_file(prepared) == "default-0.safetensors"
        assert shipped_file(replace(prepared, config=replace(prepared.config, seed=1))) is None
        monkeypatch.setattr(imitation, "_imitate", lambda *_: "imitated here")
        assert make_model(prepared, QUIET)[1] != "imitated here"
        here = replace(prepared.config, warm_start=WarmStart(retrain=True, cache=False))
        assert make_model(replace(prepared, config=here), QUIET)[1] == "imitated here"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_chains_begin_where_the_likeliest_answer_is_mostly_wrong(seed):
    """The shipped weights are read, by their hash, and more is sampled than is likeliest."""
    evaluation = Evaluation(prompts=128, samples=8, gradient_variance=False)
    with closing(prepare(replace(SHIPPED[f"chains-{seed}"], evaluation=evaluation))) as chains:
        assert shipped_file(chains) == f"chains-{seed}.safetensors"
        decoder, params = make_model(chains, QUIET)
        parts = make_parts_again(chains.config, chains, decoder)
        scores = evaluate(start(parts.learner.init(params), parts), parts, None)
    assert 0.2 < scores["pass@1/greedy"] < 0.45
    assert scores["pass@8/sampled"] > scores["pass@1/greedy"] + 0.15
