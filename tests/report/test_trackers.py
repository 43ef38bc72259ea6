"""Each tracker, by its own library where it is installed: what it keeps is what was logged."""

import json
import re
import struct
import time
from unittest.mock import Mock

import pytest

from ogrpo.report import trackers

CONFIG = {"seed": 3, "schedule": {"steps": 2}}
RECORDS = [
    {"step": 0, "pass@1/greedy": 0.25, "reward": None, "heldout/by": "math"},
    {"step": 1, "pass@1/greedy": None, "reward": 0.5, "heldout/by": "math"},
]


def track(name, folder, records=RECORDS):
    warnings = []
    with trackers.tracking([name], folder, CONFIG, warnings.append) as log:
        for record in records:
            log(record)
    assert warnings == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a run"
    path.mkdir()
    return path


def test_tensorboards_event_files_have_each_figure_at_its_step(folder):
    pytest.importorskip("tensorboardX", reason="needs pip install 'ogrpo[track]'")
    from tensorboardX.proto.event_pb2 import Event

    track("tensorboard", folder)
    (file,) = (folder / "tensorboard").iterdir()
    data, seen, texts = file.read_bytes(), [], []
    while data:  # length, its checksum, the event, its checksum
        (size,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + size])
        data = data[12 + size + 4 :]
        for value in event.summary.value:
            if value.HasField("simple_value"):
                seen.append((event.step, value.tag, value.simple_value))
            else:
                texts.append(value.tensor.string_val[0].decode())
    assert seen == [(0, "pass_at_1/greedy", 0.25), (1, "reward", 0.5)]
    assert texts == ["seed = 3\n\nschedule.steps = 2"]


def offline_history(file):
    """The steps in an offline run's file: LevelDB's log of checksum, size, kind and record."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, steps = file.read_bytes()[7:], []
    while data:
        _, size, kind = struct.unpack("<IHB", data[:7])
        assert kind == 1  # a whole record
        items = Record.FromString(data[7 : 7 + size]).history.item
        data = data[7 + size :]
        names = ["/".join(each.nested_key) or each.key for each in items]
        values = [json.loads(each.value_json) for each in items]
        steps += [dict(zip(names, values, strict=True))] if items else []
    return steps


def test_weights_and_biases_keeps_an_offline_run(folder, monkeypatch):
    pytest.importorskip("wandb", reason="needs pip install 'ogrpo[track]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    track("wandb", folder)
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 60
    while len(steps := offline_history(file)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)  # a process of its own writes the file
    figures = [{key: each[key] for key in each if key[0] != "_"} for each in steps]
    assert [each["_step"] for each in steps] == [0, 1]
    assert figures == [{"pass@1/greedy": 0.25, "step": 0}, {"reward": 0.5, "step": 1}]


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on(tmp_path, monkeypatch):
    seen, warnings, broken = [], [], Mock(side_effect=OSError("no network"))
    kept = trackers.Tracker(lambda figures, step: seen.append((step, figures)), lambda: None)
    lost = trackers.Tracker(broken, broken)
    monkeypatch.setattr(trackers, "TRACKERS", {"lost": lambda *_: lost, "kept": lambda *_: kept})
    with trackers.tracking(["lost", "kept"], tmp_path, {}, warnings.append) as log:
        for record in RECORDS:
            log(record)
    assert seen == [(0, {"pass@1/greedy": 0.25}), (1, {"reward": 0.5})]
    assert warnings == ["--track lost: step 0 failed (no network); metrics.jsonl has every figure"]


MISSING = ImportError("No module named 'wandb'", name="wandb")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("excel", None, "--track excel: choose from tensorboard, wandb"),
        ("wandb", MISSING, "--track wandb needs wandb: pip install 'ogrpo[track]'"),
        ("wandb", RuntimeError("no API key"), "--track wandb does not start (no API key)"),
    ],
)
def test_a_tracker_that_cannot_start_ends_the_run_before_it_begins(
    tmp_path, monkeypatch, name, error, words
):
    if error:
        monkeypatch.setitem(trackers.TRACKERS, name, Mock(side_effect=error))
    refused = pytest.raises(ValueError, match=re.escape(words))
    with refused, trackers.tracking([name], tmp_path, {}, print):
        pass
