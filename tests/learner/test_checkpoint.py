import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.state import init_state
from tests.learner.toy import make_params


def arrays(scale=1.0):
    state = init_state(make_params(), optax.scale_by_adam())
    return {"train": jax.tree.map(lambda x: x * jnp.asarray(scale, x.dtype), state)}


def test_what_was_saved_comes_back_bit_for_bit(tmp_path):
    saved = arrays(scale=1.5)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(3, saved, {"step": 3})
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest == 3
        restored, progress = checkpoints.restore(3, arrays())
    assert progress == {"step": 3}
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    jax.tree.map(np.testing.assert_array_equal, restored, saved)
    jax.tree.map(
        lambda a, b: pytest.fail(f"{a.dtype}") if a.dtype != b.dtype else None, restored, saved
    )


def test_progress_is_read_of_every_checkpoint_that_is_kept(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": jnp.float32(step)}, {"ids": [step]})
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.steps == [2, 3]
        assert [checkpoints.progress(step) for step in checkpoints.steps] == [
            {"ids": [2]}, {"ids": [3]}
        ]  # fmt: skip


def test_only_the_newest_are_kept_and_a_step_is_saved_once(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for step in (1, 2, 3, 3):
            checkpoints.save(step, {"x": jnp.float32(step)}, {})
        assert checkpoints.latest == 3
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["2", "3"]
