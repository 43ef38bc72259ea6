"""Runs that learn from a log: as from the same groups of their own, or refused with the remedy."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.chaos.compare import groups as read
from ogrpo.cli.main import main
from ogrpo.config.method import reads_behavior
from ogrpo.config.train import Logs
from ogrpo.data.logs import LogTerms, read_log
from ogrpo.data.replay import Experience
from ogrpo.loop.collect import scored
from ogrpo.loop.tokens import TokenSample, token_record
from ogrpo.protocol import Completion, Group
from ogrpo.setup.logs import model_score, support
from tests.run.small_run import CONFIG, go, left

WARM_UP = replace(CONFIG.schedule, steps=4, warmup=2, offline=True)
OFFLINE = replace(CONFIG.schedule, steps=2, offline=True)


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


def test_methods_and_their_parts_say_whether_they_read_behavior_log_probs():
    def reads(name, beta=0.0, region="none", **parts):
        override, knobs = replace(CONFIG.override, **parts), replace(CONFIG.knobs, beta=beta)
        region = replace(CONFIG.trust_region, kind=region)
        values = {"override": override, "knobs": knobs, "trust_region": region}
        return reads_behavior(replace(CONFIG, algorithm=name, **values))

    for name in ("reinforce", "raft", "dpo", "opmd_pairwise"):
        assert not reads(name)
    assert not reads("reinforce", gate=("top_entropy",))
    assert not reads("grpo", weight="unit", beta=0.1)
    for name in ("off_policy_grpo", "grpo", "topr", "rec_one_side", "sppo"):
        assert reads(name)
    assert reads("grpo", weight="unit", gate=("token",))
    assert reads("grpo", weight="unit", kl="importance_k3", beta=0.1)
    assert reads("reinforce", weight="truncated")
    assert reads("reinforce", region="mask")


def test_a_mix_draws_its_share_from_the_log_at_every_step(drawn, tmp_path):
    logs = replace(written(tmp_path / "log.jsonl", read(drawn)), mix=0.5)
    go(tmp_path / "run", logs=logs)
    _, *records = left(tmp_path / "run")[0]
    assert len(records) == CONFIG.schedule.steps
    for step, record in enumerate(records, 1):
        oldest, mean = record["staleness/max"], record["staleness"]
        assert oldest == step  # one of two groups is of the log, older than the first weights
        assert step / 2 <= mean < step


def test_a_run_goes_on_without_its_log_to_the_bit(drawn, tmp_path):
    log = written(tmp_path / "log.jsonl", without_log_probs(read(drawn)))
    behavior = shutil.copytree(drawn / "model", tmp_path / "behavior")
    log, schedule = replace(log, behavior=str(behavior)), replace(OFFLINE, steps=4)
    optimizer = replace(CONFIG.optimizer, decay=0.0)  # the rate then knows no last step
    config = replace(CONFIG, optimizer=optimizer, logs=log, schedule=schedule)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    go(whole, config)
    go(broken, config, schedule=replace(schedule, steps=2))
    (tmp_path / "log.jsonl").unlink()
    shutil.rmtree(behavior)
    go(broken, config, resume=True)
    assert left(broken) == left(whole)


def test_a_run_that_was_to_begin_again_with_a_log_that_the_buffer_refuses_begins_later(
    drawn, tmp_path
):
    logs, steps = Logs(path=drawn), replace(OFFLINE, steps=1)
    go(tmp_path / "run", schedule=steps, logs=logs)
    fresh = replace(CONFIG.replay, max_staleness=0)
    with pytest.raises(ValueError, match="refused 4 as stale"):
        go(tmp_path / "run", schedule=steps, logs=logs, resume_from=0, replay=fresh)
    said = go(tmp_path / "run", schedule=steps, logs=logs, resume=True)
    assert "no checkpoint yet: starting over" in said


def test_what_a_log_cannot_serve_is_refused_with_the_remedy(drawn, tmp_path):
    logs = written(tmp_path / "log.jsonl", read(drawn))

    def refused(match, **changes):
        options = {"schedule": OFFLINE, "logs": logs, **changes}
        with pytest.raises(ValueError, match=match):
            go(tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()

    refused("give --schedule.offline to train on it alone, --logs.mix", schedule=CONFIG.schedule)
    mixed = {"logs": replace(logs, mix=0.2), "schedule": CONFIG.schedule}
    refused(r"logs.mix is 0.2, of a draw of 2 groups, which leaves one side none", **mixed)
    refused(r"logs.mix is 0.5.*give --logs.path, without --sch", logs=replace(logs, mix=0.5))
    refused(r"needs at least 5", schedule=replace(OFFLINE, draw=5))
    mixed = {"logs": replace(logs, mix=0.5), "schedule": replace(CONFIG.schedule, draw=10)}
    refused(r"has 4 groups of 2 .* needs at least 5: give a smaller", **mixed)
    joined = {"replay": replace(CONFIG.replay, groups=5, sampler="uniform")}
    none = {"rollout": replace(CONFIG.rollout, group_size=9), "schedule": CONFIG.schedule}
    refused(r"has 0 groups of 9 .* needs at least 1", **joined, **none)
    refused(r"all rows have log_probs", logs=replace(logs, behavior="start"))
    refused(r"behavior is start, which .* give --logs.path", logs=Logs(behavior="start"))
    refused(r"is not there", logs=Logs(path=tmp_path / "none.jsonl"))
    refused("are as they were logged", reward=replace(CONFIG.reward, flip=0.1))
    hot = replace(CONFIG.rollout, temperature=0.5)
    refused(r"8 refused: temperature .*give --rollout.temperature", rollout=hot)
    (tmp_path / "empty").mkdir()
    refused(r"no file that ends in .parquet", logs=Logs(path=tmp_path / "empty"))


def test_a_log_says_what_it_can_teach(drawn, tmp_path, capsys):
    rows = read(drawn)
    logs = written(tmp_path / "log.jsonl", [*rows, {**rows[0], "reward": "", "policy": "x"}])
    assert main(["logs", str(logs.path), "--group-size", "2"]) == 0
    said = capsys.readouterr().out
    assert "9 rows, 8 accepted" in said
    assert "1 rows refused: reward (" in said
    assert "8 by no named policy, version 0" in said
    assert "4 groups of 2" in said
    rewards = np.array([row["reward"] for row in rows]).reshape(-1, 2)
    equal = (rewards[:, 0] == rewards[:, 1]).mean()
    assert f"mean {rewards.mean():.4g}, " in said
    assert f"{equal:.1%} of the groups have equal ones" in said
    assert "under" not in said
    # A model that another drew them by, and texts whose tokens are not known without one.
    texts = [{"prompt": "a", "completion": "b", "log_probs": [-1.0] * 3, "reward": 1}] * 2
    assert main(["logs", str(written(tmp_path / "texts.jsonl", texts).path)]) == 0
    assert "1 prompts, 0 groups of 8" in capsys.readouterr().out
    folder = ["logs", str(drawn), "--group-size", "2"]
    assert main([*folder, "--model.path", str(drawn / "model")]) == 0
    said = capsys.readouterr().out
    assert "100.0% of the completions have a finite log-prob" in said
    assert "log pi/mu of 8 completions" in said


def test_the_figures_of_a_log_are_those_of_its_ratios():
    rng, groups, rewards = np.random.default_rng(0), [], np.array([1, 0], np.float32)

    def log_probs(ids):
        return np.log(ids / 20).astype(np.float32)

    for n in range(40):
        drawn = [rng.integers(1, 9, rng.integers(1, 5), np.int32) for _ in rewards]
        done = tuple(Completion(ids, log_probs(ids), 0, 1.0, "stop") for ids in drawn)
        groups.append(Experience(Group(np.array([n], np.int32), done), rewards, n))

    def twice_as_likely_where_right(batch):
        """Twice the chance of each first token of the successes, half that of the failures."""
        out = log_probs(np.maximum(batch.completion_ids, 1))
        out[..., 0] += np.log(np.float32([2.0, 0.5]))
        return out

    figures = support(groups, twice_as_likely_where_right, together=3)
    ratios = np.tile([2.0, 0.5], 40)
    np.testing.assert_allclose(np.exp(figures.ratios), ratios, rtol=1e-5)
    assert figures.finite == 1
    assert figures.mass == pytest.approx(ratios.mean(), rel=1e-5)
    share = ratios.sum() ** 2 / 80 / (ratios**2).sum()
    assert figures.ess_sequence == pytest.approx(share, rel=1e-5)
    assert 0 < figures.gain < ((ratios - 1) * np.tile([1, 0], 40)).mean()
    assert figures.ess_token > figures.ess_sequence
    nothing = support(groups, lambda x: np.full(x.completion_ids.shape, np.nan), together=7)
    assert (nothing.finite, len(nothing.ratios)) == (0, 0)
    assert np.isnan([nothing.gain, nothing.mass, nothing.ess_sequence]).all()


def test_fresh_groups_join_a_log_and_replace_it(drawn, tmp_path):
    replay = replace(CONFIG.replay, groups=5, sampler="uniform")
    go(tmp_path / "run", logs=Logs(path=drawn), replay=replay)
    first, *_, last = [r for r in left(tmp_path / "run")[0] if r["step"] > 0]
    assert first["replay/logged"] == 4
    assert (first["replay/groups"], first["replay/evicted/groups"]) == (5, 1)
    assert last["replay/evicted/groups"] == 7
    assert last["replay/ratio"] == 8 / (4 + 8)


def test_a_log_teaches_what_it_rewards(drawn, tmp_path):
    """Of each prompt's two completions the first is said to be right, whoever judged it."""
    rows = [row | {"reward": 1.0 - n % 2} for n, row in enumerate(without_log_probs(read(drawn)))]
    log = written(tmp_path / "log.jsonl", rows)
    schedule = replace(OFFLINE, steps=8, evaluate_every=8)
    go(tmp_path / "run", schedule=schedule, logs=log, algorithm="raft")
    score = model_score(tmp_path / "run" / "model", "float32", 1.0)
    terms = LogTerms(group_size=2, encode_prompt=np.array, encode=None)
    groups = read_log([(row, "") for row in rows], terms).experiences
    after = [float(x.sum()) for x in scored(groups, score, (96, 8), together=4)]
    before = [sum(row["log_probs"]) for row in read(drawn)]
    gained = np.subtract(after, before).reshape(-1, 2)
    assert (gained[:, 0] > 1).all()
    assert (gained[:, 0] > gained[:, 1]).all()


def test_a_token_that_is_not_learned_from_has_no_log_probs():
    sample = TokenSample(
        prompt_ids=np.array([1]),
        token_ids=np.array([5, 6, 7]),
        length=9,
        behavior_log_probs=np.array([-0.5, 0, -0.25], np.float32),
        log_probs=np.array([-0.123456, 0, -0.25], np.float32),
        advantages=np.full(3, -0.5, np.float32),
        removed=np.array([True, False, False]),
        active=np.array([True, False, True]),
        reward=1.0,
        version=3,
        farthest=True,
    )
    record = token_record(7, [sample, sample._replace(advantages=np.arange(3.0))], str)
    one, other = record["completions"]
    assert record["step"] == 7
    assert (one["mu"], one["pi"]) == ([-0.5, None, -0.25], [-0.1235, None, -0.25])
    assert (one["advantage"], other["advantage"]) == (-0.5, [0, 1, 2])
    assert (one["removed"], one["staleness"], one["length"]) == ([0], 3, 9)
