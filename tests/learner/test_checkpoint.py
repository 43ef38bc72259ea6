import json
import os
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner.checkpoint import IN_FLIGHT, CheckpointError, Checkpoints
from tests.learner.toy import bits


def test_the_newest_are_kept_with_their_progress_and_a_step_is_saved_once(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for step in (1, 2, 3, 3):
            checkpoints.save(step, {"x": jnp.float32(step)}, {"ids": [step]})
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest == 3
        assert checkpoints.steps == [2, 3]
        assert [checkpoints.progress(step)["ids"] for step in (2, 3)] == [[2], [3]]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["2", "3"]


VALUES = {"x": np.arange(200.0, dtype=np.float32), "y": np.ones((3, 5), np.float32)}


def saved(folder: Path, *steps: int, keep: int = 3) -> None:
    with Checkpoints(folder, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, jax.tree.map(jnp.asarray, VALUES), {"step": step})


def test_one_flipped_bit_anywhere_is_found(tmp_path):
    saved(tmp_path, 3)
    files = [path for path in (tmp_path / "3").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"manifest.json", "progress.json", "_METADATA", "manifest.ocdbt"} <= names
    rng, tried = np.random.default_rng(0), 0
    for path in files:
        data = path.read_bytes()
        bits = {0, 8 * len(data) - 1, *rng.integers(0, 8 * len(data), 6).tolist()}
        for bit in bits:
            mutated = bytearray(data)
            mutated[bit // 8] ^= 1 << bit % 8
            path.write_bytes(mutated)
            with Checkpoints(tmp_path, keep=3) as checkpoints:
                assert checkpoints.damage(3) is not None, (path, bit)
                with pytest.raises(CheckpointError, match=r"checkpoint .*3 is damaged"):
                    checkpoints.restore(3, VALUES)
            tried += 1
        path.write_bytes(data)
    assert tried > 70
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        assert checkpoints.damage(3) is None


@pytest.mark.parametrize(
    ("path", "harm", "message"),
    [
        ("arrays/d/*", lambda file: file.unlink(), "is missing"),
        ("arrays/d/*", lambda file: os.truncate(file, 7), "7 bytes of"),
        ("arrays/d/*", lambda file: file.write_bytes(file.read_bytes() + b"0"), "bytes of"),
        *(
            ("manifest.json", partial(Path.write_text, data=text), message)
            for message, texts in {
                "cannot be read": ("", "[", "[" * 5000),
                "was changed after it was written": ("3", "{}", '{"files": 3}'),
            }.items()
            for text in texts
        ),
    ],
)
def test_damage_is_told_with_the_files_name(tmp_path, path, harm, message):
    saved(tmp_path, 3)
    file = next((tmp_path / "3").glob(path))
    harm(file)
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        damage = checkpoints.damage(3)
    assert damage is not None
    assert file.name in damage
    assert message in damage


def test_a_manifest_is_of_one_checkpoint(tmp_path):
    saved(tmp_path, 3)
    (tmp_path / "3").rename(tmp_path / "5")
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        assert checkpoints.damage(5) == "manifest.json is of another checkpoint"


def test_what_a_killed_process_left_is_no_checkpoint_and_is_cleared_away(tmp_path):
    saved(tmp_path, 1, 2)
    for name in (".writing-3", ".deleting-1"):
        shutil.copytree(tmp_path / "2", tmp_path / name)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.steps == [1, 2]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2"]


def test_progress_that_cannot_be_written_leaves_the_checkpoints_that_were_there(tmp_path):
    saved(tmp_path, 1, keep=1)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        with pytest.raises(CheckpointError, match=r"step 2 cannot be written to"):
            checkpoints.save(2, VALUES, {"gaps": float("nan")})
        assert checkpoints.steps == [1]
        assert checkpoints.damage(1) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]


def test_a_checkpoint_is_set_aside_whole(tmp_path):
    saved(tmp_path, 1, 2)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        place = checkpoints.set_aside(2)
        assert checkpoints.steps == [1]
        checkpoints.save(2, VALUES, {"again": True})
        assert checkpoints.set_aside(2) != place
    assert json.loads((place / "progress.json").read_text()) == {"step": 2}


@pytest.mark.parametrize(
    ("name", "at_a_time"), [("a[b]c", IN_FLIGHT), ("a*b", IN_FLIGHT), ("ünï", IN_FLIGHT), ("a", 64)]
)
def test_any_path_holds_checkpoints_of_any_size_which_come_back_bit_for_bit(
    tmp_path, monkeypatch, name, at_a_time
):
    monkeypatch.setattr("ogrpo.learner.checkpoint.IN_FLIGHT", at_a_time)
    folder = tmp_path / name / "checkpoints"
    saved(folder, 3)
    with Checkpoints(folder, keep=2) as checkpoints:
        restored, progress = checkpoints.restore(3, jax.tree.map(np.zeros_like, VALUES))
        assert bits(restored) == bits(VALUES)
        assert progress == {"step": 3}
        assert [*folder.iterdir()] == [folder / "3"]


def test_arrays_of_another_run_are_refused_in_words(tmp_path):
    saved(tmp_path, 3)
    others = pytest.raises(CheckpointError, match=r"checkpoint .*3 cannot be read as this run's")
    with Checkpoints(tmp_path, keep=2) as checkpoints, others:
        checkpoints.restore(3, {"x": VALUES["x"]})
