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
        ("seed", True, "seed is True: give int"),
        ("seed", 1.5, "seed is 1.5: give int"),
        ("seed", None, "seed is None: give int"),
        ("schedule", 3, "schedule is 3: give a table of options"),
        ("schedule.steps", [4], r"schedule\.steps is \[4\]: give int"),
        ("schedule.steps", 0, r"config\.json: schedule\.steps is 0: give at least 1"),
        ("schedule.stepz", 4, r"no option schedule\.stepz\. Did you mean schedule\.steps\?"),
        ("of_the_future", 4, r"no option of_the_future\. A newer ogrpo may have it"),
        ("rewards", "a.py:f", r"rewards is 'a\.py:f': give tuple"),
        ("rewards", [1], r"rewards is \[1\]: give tuple"),
        ("model.dtype", "float64", r"model\.dtype is 'float64': give"),
        ("model.path", 7, r"model\.path is 7: give Path or NoneType"),
        ("evaluation.gradient_variance", "false", r"gradient-variance is 'false': give bool"),
        ("warm_start.teacher.result_slip", "0.1", r"teacher\.result-slip is '0\.1': give float"),
        ("replay.half_life", False, r"replay\.half-life is False: give float"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(path, value, message):
    with pytest.raises(ValueError, match=message):
        from_json(TrainConfig, changed(path, value), "run/config.json")


@pytest.mark.parametrize("name", PRESETS)
def test_what_was_written_is_read_as_it_was(name):
    config = dataclasses.replace(PRESETS[name](), preset=name, run_dir=Path("here"))
    assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config


def test_options_that_an_older_version_had_not_are_as_in_a_new_run():
    values = changed("seed", 3)
    del values["certificate"], values["schedule"]["warmup"]
    assert from_json(TrainConfig, values) == dataclasses.replace(TrainConfig(), seed=3)
