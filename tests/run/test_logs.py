"""Runs that learn from a log: as from the same groups of their own, or refused with the remedy."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from ogrpo.config.method import reads_behavior
from ogrpo.config.train import Logs
from ogrpo.core.algorithms import ALGORITHMS
from tests.run.small_run import CONFIG, go, left

WARM_UP = replace(CONFIG.schedule, steps=4, warmup=2, offline=True)
OFFLINE = replace(CONFIG.schedule, steps=2, offline=True)


def read(folder):
    files = sorted((folder / "experience").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def written(file, rows):
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Logs(path=file)


def without_log_probs(rows):
    names = ("prompt_ids", "token_ids", "reward")
    return [{name: row[name] for name in names} for row in rows]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run that collects two batches with its first weights and trains on them, once each."""
    folder = tmp_path_factory.mktemp("drawn") / "run"
    go(folder, schedule=WARM_UP)
    return folder


def test_a_log_teaches_what_the_same_groups_of_ones_own_do_to_the_bit(drawn, tmp_path):
    said = go(tmp_path / "run", schedule=OFFLINE, logs=Logs(path=drawn))
    assert "4 groups of 2 from 8 rows" in said
    (*_, record), weights = left(tmp_path / "run")
    assert weights == left(drawn)[1]
    assert (record["completions"], record["replay/logged"], record["replay/ratio"]) == (0, 4, 1)
    assert record["staleness"] == 2  # older than the first weights by one
    one, other = read(tmp_path / "run"), read(drawn)
    for row, was in zip(one, other, strict=True):
        assert row == was | {"policy_version": -1}


def test_a_model_that_is_named_computes_the_log_probs_that_a_log_lacks(drawn, tmp_path):
    rows = read(drawn)
    logs = replace(written(tmp_path / "log.jsonl", without_log_probs(rows)), behavior="start")
    assert "8 without log-probs" in go(tmp_path / "run", schedule=OFFLINE, logs=logs)
    for row, was in zip(read(tmp_path / "run"), rows, strict=True):
        np.testing.assert_allclose(row["log_probs"], was["log_probs"], atol=1e-5)
    # The folder of a model: the one that the first run ended with, which has moved.
    logs = replace(logs, behavior=str(drawn / "model"))
    go(tmp_path / "other", schedule=OFFLINE, logs=logs)
    one, was = read(tmp_path / "other")[0]["log_probs"], rows[0]["log_probs"]
    assert np.abs(np.subtract(one, was)).max() > 1e-3


def test_a_method_with_ratios_needs_log_probs_and_one_without_does_not(drawn, tmp_path):
    logs = written(tmp_path / "log.jsonl", without_log_probs(read(drawn)))
    with pytest.raises(ValueError, match=r"8 of 8 rows .* off_policy_grpo divides by: .*behavior"):
        go(tmp_path / "ratios", schedule=OFFLINE, logs=logs)
    go(tmp_path / "imitation", schedule=OFFLINE, logs=logs, algorithm="raft")
    assert left(tmp_path / "imitation")[0][-1]["update/skipped"] == 0


BLIND = ("reinforce", "rloo", "raft", "positives", "opo", "maxrl", "dpo", "opmd_pairwise")
READING = ("off_policy_grpo", "grpo", "dapo", "cispo", "gspo", "topr", "rec_one_side", "sppo")


@pytest.mark.parametrize("name", [*BLIND, *READING])
def test_methods_say_by_their_gradient_whether_they_read_behavior_log_probs(name):
    assert ALGORITHMS[name].name == name
    assert reads_behavior(replace(CONFIG, algorithm=name)) == (name in READING)


def test_parts_that_read_behavior_log_probs_count():
    config = replace(CONFIG, algorithm="reinforce")
    weighted = replace(config.override, weight="truncated")
    assert reads_behavior(replace(config, override=weighted))
    region = replace(config.trust_region, kind="mask")
    assert reads_behavior(replace(config, trust_region=region))


def test_a_run_goes_on_without_its_log_to_the_bit(drawn, tmp_path):
    log, schedule = written(tmp_path / "log.jsonl", read(drawn)), replace(OFFLINE, steps=4)
    optimizer = replace(CONFIG.optimizer, decay=0.0)  # the rate then knows no last step
    config = replace(CONFIG, optimizer=optimizer, logs=log, schedule=schedule)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    go(whole, config)
    go(broken, config, schedule=replace(schedule, steps=2))
    (tmp_path / "log.jsonl").unlink()
    go(broken, config, resume=True)
    assert left(broken) == left(whole)


def test_what_a_log_cannot_serve_is_refused_with_the_remedy(drawn, tmp_path):
    logs = written(tmp_path / "log.jsonl", read(drawn))

    def refused(match, **changes):
        options = {"schedule": OFFLINE, "logs": logs, **changes}
        with pytest.raises(ValueError, match=match):
            go(tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()

    refused("give --schedule.offline", schedule=CONFIG.schedule)
    refused(r"fewer than a draw of 5", schedule=replace(OFFLINE, draw=5))
    refused(r"all rows have log_probs", logs=replace(logs, behavior="start"))
    refused(r"behavior is start, which .* give --logs.path", logs=Logs(behavior="start"))
    refused(r"is not there", logs=Logs(path=tmp_path / "none.jsonl"))
    refused("are as they were logged", reward=replace(CONFIG.reward, flip=0.1))
    hot = replace(CONFIG.rollout, temperature=0.5)
    refused(r"8 refused: temperature .*give --rollout.temperature", rollout=hot)
    (tmp_path / "empty").mkdir()
    refused(r"no file that ends in .parquet", logs=Logs(path=tmp_path / "empty"))
