"""Imitation of a task's worked solutions from given weights on."""

import dataclasses
import io
import re
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from ogrpo.config.train import Data, Model, Rollout, TrainConfig, WarmStart
from ogrpo.data.chat import PLAIN_CHAT
from ogrpo.data.tokenizer import train_bpe
from ogrpo.learner import state
from ogrpo.policy import decoder, init_params
from ogrpo.setup import imitation
from ogrpo.setup.find_task import check_sources, find_task
from ogrpo.setup.imitation import demonstration, fitting_demos, make_imitate, warm_start
from ogrpo.setup.model import make_model, save_model, tiny_decoder
from ogrpo.setup.prepare import make_tokenizer, prepare
from ogrpo.setup.presets import main_study
from tests.learner.toy import GRADIENT, V, make_batch, make_params, make_state, policy_fn
from tests.loop.walk import SUMS, with_options
from tests.run.small_run import failing

WARM = WarmStart(solutions=True, steps=6, batch=4, learning_rate=3e-3, save_every=2)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path / "cache"))
    texts = find_task(TrainConfig(task=SUMS)).task.texts()
    tokenizer = train_bpe(texts, vocab_size=270, chat_template=PLAIN_CHAT)
    decoder = tiny_decoder(tokenizer)
    save_model(tmp_path / "model", decoder, init_params(decoder, jax.random.key(0)), tokenizer)
    return TrainConfig(
        task=SUMS,
        data=Data(heldout="4"),
        model=Model(path=tmp_path / "model"),
        warm_start=WARM,
        rollout=Rollout(group_size=2, max_tokens=24),
    )


def imitated(config):
    console = Console(record=True, width=200)
    with closing(prepare(config)) as prepared:
        return make_model(prepared, console)[1], console.export_text()


def beside_weights(folder):
    files = (file for file in folder.iterdir() if file.suffix != ".safetensors")
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
def test_imitation_lowers_the_validation_loss_and_goes_on_where_it_was_stopped(
    config, monkeypatch, tmp_path
):
    whole, shown = imitated(config)
    losses = re.findall(r"of validation solutions (\S+)", shown)
    assert len(losses) == 3
    assert float(losses[-1]) < float(losses[0])
    (folder,) = (tmp_path / "cache" / "warm-start").iterdir()
    again, shown = imitated(config)
    assert f"warm start read from {folder}" in shown
    # `ogrpo eval --model.path` reads it: the tokenizer and its ends stand beside the weights.
    assert beside_weights(folder) == beside_weights(tmp_path / "model")

    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path / "other"))
    imitate, stopping = imitation.make_imitate, failing(KeyboardInterrupt(), at=6)
    stopped = patch.object(imitation, "make_imitate", lambda *args: stopping(imitate(*args)))
    with stopped, pytest.raises(KeyboardInterrupt):
        imitated(config)
    full = patch.object(imitation, "save_pretrained", side_effect=OSError(28, "no space"))
    with full, pytest.raises(OSError, match="no space"):
        imitated(config)
    resumed, shown = imitated(config)
    assert "imitation goes on from step 4" in shown
    for one in (again, resumed):
        jax.tree.map(np.testing.assert_array_equal, one, whole)
    assert len([*(tmp_path / "other" / "warm-start").iterdir()]) == 1


def test_without_it_nothing_is_imitated_and_nothing_is_left_out(config):
    plain = dataclasses.replace(config, warm_start=WarmStart())
    for model in (config.model, Model(random="tiny")):
        with closing(prepare(dataclasses.replace(plain, model=model))) as prepared:
            assert prepared.demos is None
    with pytest.raises(ValueError, match=r"warm-start\.steps is 6, .*warm-start\.solutions is not"):
        check_sources(with_options(config, {"warm_start.solutions": False}), None)
    with pytest.raises(ValueError, match=r"warm-start\.solutions is True"):
        check_sources(dataclasses.replace(config, model=Model()), None)


def test_a_task_without_solutions_is_refused(config, tmp_path):
    file = tmp_path / "bare.jsonl"
    file.write_text(Path(SUMS).read_text().replace("solution", "other"))
    with pytest.raises(ValueError, match="has no worked solutions to imitate"):
        imitated(dataclasses.replace(config, task=str(file)))


CONFIG = main_study(rollout=Rollout(max_tokens=4))
SHORT, LONG = np.arange(3, dtype=np.int32), np.arange(9, dtype=np.int32)


def demos(*answers):
    return [demonstration(SHORT, [answer, SHORT]) for answer in answers]


def test_long_demonstrations_are_left_out_and_counted_and_without_others_refused():
    console = Console(record=True, file=io.StringIO(), width=200)
    assert len(fitting_demos(CONFIG, demos(SHORT), console)) == 1
    assert console.export_text() == ""
    assert len(fitting_demos(CONFIG, demos(SHORT, LONG, LONG), console)) == 1
    assert "2 demonstrations longer than 4 tokens, not imitated" in console.export_text()
    remedy = r"at most rollout\.max-tokens = 4 .* larger --rollout\.max"
    with pytest.raises(ValueError, match=remedy):
        fitting_demos(CONFIG, demos(LONG), console)


def test_a_cached_warm_start_is_of_the_code_that_made_it(monkeypatch, tmp_path):
    config = main_study()
    located = find_task(config)
    tokenizer = make_tokenizer(config, located.task)
    shape = tiny_decoder(tokenizer)
    sources = imitation._sources()
    assert {decoder.__file__, state.__file__, imitation.__file__} <= {str(s) for s in sources}

    def folder():
        recipe = imitation.warm_start_recipe(config, shape, tokenizer, located.demos)
        return imitation._cache_folder(recipe)

    same = folder()
    assert folder() == same
    changed = tmp_path / "state.py"
    changed.write_text("# another optimizer\n")
    others = [source for source in sources if str(source) != state.__file__]
    monkeypatch.setattr(imitation, "_sources", lambda: [*others, changed])
    assert folder() != same


def test_loss_is_the_mean_negative_log_likelihood():
    batch = make_batch()
    log_probs = policy_fn(make_params(), batch, jnp.float32(1)).log_probs
    expected = -np.asarray(log_probs, np.float64)[np.asarray(batch.completion_mask)].mean()
    _, loss = make_imitate(GRADIENT, policy_fn)(make_state(), batch, jnp.float32(0.1))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_imitation_reaches_the_demonstrations_own_frequencies():
    batch = make_batch(n=1, g=64, t=8)
    imitate = make_imitate(optax.scale_by_adam(), policy_fn)
    first = make_state(optax.scale_by_adam())
    rate = optax.constant_schedule(0.05)
    *_, (state, _) = warm_start(first, [batch] * 300, imitate, rate, peak=0.05)
    ids = np.asarray(batch.completion_ids)[np.asarray(batch.completion_mask)]
    frequencies = np.bincount(ids, minlength=V) / ids.size
    row = np.asarray(state.params["table"][int(batch.prompt_ids[0, -1])], np.float64)
    np.testing.assert_allclose(np.exp(row) / np.exp(row).sum(), frequencies, atol=2e-3)
