"""A run's config.json is read as what its fields want, or refused by file and field."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ogrpo.config.train import TrainConfig
from ogrpo.config.values import from_json, to_json
from ogrpo.setup.presets import PRESETS


def changed(path: str, value: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(to_json(TrainConfig())))
    table, *names = [values, *path.split(".")]
    for name in names[:-1]:
        table = table[name]
    table[names[-1]] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("seed", "1", r"run/config\.json: seed is '1': give int"),
        ("seed", None, "seed is None: give int"),
        ("schedule.steps", 0, r"config\.json: schedule\.steps is 0: give at least 1"),
        ("schedule.stepz", 4, r"no option schedule\.stepz\. Did you mean schedule\.steps\?"),
        ("of_the_future", 4, r"no option of_the_future\. A newer ogrpo may have it"),
        ("rewards", [1], r"rewards is \[1\]: give tuple"),
        ("model.path", 7, r"model\.path is 7: give Path or NoneType"),
        ("warm_start.teacher.result_slip", "0.1", r"teacher\.result-slip is '0\.1': give float"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(path, value, message):
    with pytest.raises(ValueError, match=message):
        from_json(TrainConfig, changed(path, value), "run/config.json")


@pytest.mark.parametrize("name", PRESETS)
def test_what_was_written_is_read_as_it_was(name):
    config = dataclasses.replace(PRESETS[name](), preset=name, run_dir=Path("here"))
    assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config
