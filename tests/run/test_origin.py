"""Options that may change when a run is resumed, that are refused, and that never matter."""

import json
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from ogrpo.config.train import TrainConfig
from ogrpo.run.resuming import check_origin
from ogrpo.run.session import as_json

BEFORE = {
    "config": json.loads(json.dumps(as_json(TrainConfig()))),
    "data": {"tokenizer": "a", "training problems": "b", "held-out problems": "c"},
    "versions": {"jax": "0.10.2", "ogrpo": "0.1"},
    "devices": {"count": 1, "kind": "cpu", "processes": 1},
}


def now(path: str, value: Any) -> dict[str, Any]:
    origin = json.loads(json.dumps(BEFORE)) | {"config": as_json(TrainConfig())}
    *tables, name = path.split(".")
    table = reduce(getitem, tables, origin)
    assert name in table, path
    table[name] = value
    return origin


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("config.schedule.steps", 900, "--schedule.steps: 240 then, 900 now"),
        ("config.checkpoint.every", 3, "--checkpoint.every: 40 then, 3 now"),
        ("config.rollout.url", ["http://a"], "--rollout.url: [] then, ['http://a'] now"),
        ("config.mesh.fsdp", 2, "--mesh.fsdp: 1 then, 2 now"),
        ("config.push_to_hub", "me/it", "--push-to-hub: None then, me/it now"),
        ("data.held-out problems", "d", "held-out problems: not the checkpoint's"),
        ("versions.jax", "0.11", "jax: 0.10.2 then, 0.11 now"),
        ("devices.count", 8, "count: 1 then, 8 now"),
        ("devices.kind", "TPU v5e", "kind: cpu then, TPU v5e now"),
    ],
)
def test_what_only_shows_places_or_rounds_is_applied_and_told(path, value, line):
    assert check_origin(BEFORE, now(path, value), anyway=False) == [line]


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("config.seed", 1, "--seed: 0 then, 1 now"),
        ("config.optimizer.learning_rate", 0.5, "--optimizer.learning-rate: None then, 0.5 now"),
        ("config.algorithm", "dapo", "--algorithm: off_policy_grpo then, dapo now"),
        ("config.rollout.temperature", 0.5, "--rollout.temperature: 1.0 then, 0.5 now"),
        ("data.tokenizer", "d", "tokenizer: not the checkpoint's"),
        ("data.training problems", "d", "training problems: not the checkpoint's"),
    ],
)
def test_another_experiment_is_refused_unless_it_is_wanted(path, value, line):
    with pytest.raises(ValueError, match="--resume-anyway") as error:
        check_origin(BEFORE, now(path, value), anyway=False)
    assert line in str(error.value)
    assert check_origin(BEFORE, now(path, value), anyway=True) == [line]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config.task", "math-500"),
        ("config.lora.rank", 4),
        ("config.optimizer.moments", "factored"),
        ("config.evaluation.split", "validation"),
        ("config.evaluation.task", "math-500"),
        ("config.preset", "default"),
    ],
)
def test_what_a_checkpoint_cannot_go_with_is_refused_whatever_is_wanted(path, value):
    with pytest.raises(ValueError, match=rf"cannot change to {value}"):
        check_origin(BEFORE, now(path, value), anyway=True)
