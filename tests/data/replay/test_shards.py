"""Two processes with a shard each against one buffer: content, statistics and distribution."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ogrpo.data.replay import Shard, allot, merge_statistics
from tests.data.replay.sharded import COUNT, GROUPS, SAMPLERS, masses, run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What each of two processes held, drew and counted; they run at the same time."""
    root = tmp_path_factory.mktemp("shards")
    command = [sys.executable, "-m", "tests.data.replay.sharded", str(root)]
    started = [
        subprocess.Popen([*command, str(index)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    outputs = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    return root, [json.loads(output) for output in outputs]


@pytest.fixture(scope="module")
def central(tmp_path_factory):
    return run(tmp_path_factory.mktemp("central"), Shard(0, 1))


def test_the_shards_part_the_groups(sharded, central):
    _, parts = sharded
    held = [set(part["held"]) for part in parts]
    assert not held[0] & held[1]
    assert held[0] | held[1] == set(central["held"]) == set(range(GROUPS))


@pytest.mark.parametrize("name", SAMPLERS)
def test_sharded_is_centralised_in_distribution(sharded, central, name):
    """Homogeneity of how often each group was drawn, by chi-square, and against the weights."""
    _, parts = sharded
    counts = np.sum([part["drawn"][name] for part in parts], axis=0)
    wanted = np.array(central["drawn"][name])
    assert counts.sum() == wanted.sum()
    assert stats.chi2_contingency([counts, wanted]).pvalue > 0.01
    weights = np.array(masses(name))
    expected = weights / weights.sum() * counts.sum()
    assert expected.min() > 5
    assert stats.chisquare(counts, expected).pvalue > 0.01


def test_the_shards_statistics_add_up_to_the_central_ones(sharded, central):
    _, parts = sharded
    merged = merge_statistics([part["statistics"] for part in parts])
    assert merged.keys() == central["statistics"].keys()
    for name, value in central["statistics"].items():
        # Pages and rings are allotted to each; which group was drawn most often is chance.
        if name not in ("bytes/allocated", "uses/max"):
            assert merged[name] == pytest.approx(value), name


def test_files_of_all_shards_open_as_one_table(sharded):
    import pyarrow.dataset as ds

    root, parts = sharded
    table = ds.dataset(root, partitioning="hive").to_table(columns=["problem", "shard"])
    found = set(zip(table["problem"].to_pylist(), table["shard"].to_pylist(), strict=True))
    assert found == {(problem, n) for n, part in enumerate(parts) for problem in part["held"]}


def test_allotment_is_multinomial_and_checked():
    counts = np.array([allot(COUNT, [1.0, 3.0], seed=seed) for seed in range(2000)])
    assert (counts.sum(axis=1) == COUNT).all()
    expected = stats.binom(COUNT, 0.75).pmf(np.arange(COUNT + 1)) * 2000
    enough = expected > 5
    found = np.bincount(counts[:, 1], minlength=COUNT + 1)
    rest = [found[~enough].sum()], [expected[~enough].sum()]
    assert stats.chisquare([*found[enough], *rest[0]], [*expected[enough], *rest[1]]).pvalue > 0.01
    for wrong in ([0.0, 0.0], [-1.0, 2.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="masses are"):
            allot(4, wrong, seed=0)
    with pytest.raises(ValueError, match="shard 2 of 2"):
        Shard(2, 2)


def test_merging_weighs_means_by_groups():
    one = {"groups": 3.0, "uses/mean": 1.0, "uses/max": 4.0, "evicted/uses": 2.0}
    two = {"groups": 1.0, "uses/mean": 3.0, "uses/max": 3.0}
    assert merge_statistics([one, two]) == {
        "groups": 4.0,
        "uses/mean": 1.5,
        "uses/max": 4.0,
        "evicted/uses": 2.0,
    }
    empty = {"groups": 0.0, "uses/mean": 0.0, "uses/max": 0.0}
    assert merge_statistics([empty, empty]) == empty
