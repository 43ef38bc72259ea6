"""The bounded form of a buffer of a million completions."""

import numpy as np
import pytest

from benchmarks import replay_load
from benchmarks.replay_load import BATCH, G, compare, groups, main
from ogrpo.data.replay import BufferLimits, ReplayBuffer, fifo


def test_twenty_thousand_completions_come_back_from_memory_and_from_disk(tmp_path, capsys):
    report = main(completions=20_000, tokens=20, folder=tmp_path)
    assert report.held == 20_000 // (BATCH * G) * BATCH * G
    assert report.compared == 2 * report.held
    assert f"{report.compared:,} came back bit for bit" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["token_ids", "rewards", "problems"])
def test_one_changed_value_is_seen(name, monkeypatch):
    buffer = ReplayBuffer(replay_load.LAYOUT, BufferLimits(), fifo)
    buffer.insert_columns(groups(0, 5))
    assert compare(buffer, range(1), 5) == BATCH * G
    before = groups(0, 5)
    values = getattr(before, name).copy()
    values.flat[-1] += np.asarray(1).astype(values.dtype)
    monkeypatch.setattr(replay_load, "groups", lambda *_: before._replace(**{name: values}))
    with pytest.raises(ValueError, match=f"batch 0 came back with other {name}"):
        compare(buffer, range(1), 5)
