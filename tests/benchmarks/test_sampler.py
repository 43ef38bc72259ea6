"""The sampler's benchmark: its own two engines as processes, and how tokens are compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sampler import run
from benchmarks.sampler.report import agreement, shared

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_engine_and_the_plain_sampler_draw_the_same_greedy_tokens(tmp_path):
    shape = "tiny:tokens=80,prompts=2,group=1,greedy=true,warm=2"
    found = tmp_path / "found.json"
    few = ["--rounds", "1", "--seconds", "0", "--warm-up", "1", "--json", str(found)]
    engines = ["--shapes", shape, "--engines", "ogrpo", "ogrpo-plain"]
    command = [sys.executable, "-m", "benchmarks.sampler.run", *engines, *few]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    runs = json.loads(found.read_text())["shapes"][shape]["runs"]
    for (of,) in runs.values():
        assert (of["tokens"], of["calls"]) == (160, 1)
        assert [*map(len, of["first"])] == [80, 80]
        assert all(len({*row}) > 1 for row in of["first"])
    assert "ogrpo-plain: 160 of 160 tokens are ogrpo's" in done.stdout


@pytest.mark.parametrize(
    ("theirs", "same"),
    [([5, 6, 7], 3), ([5, 8, 7], 1), ([4, 6, 7], 0), ([5, 6], 2), ([5, 6, 7, 8], 3)],
)
def test_tokens_are_shared_up_to_the_first_that_differs(theirs, same):
    assert shared([5, 6, 7], theirs) == same


def test_agreement_is_of_all_rounds():
    runs = {"a": [{"first": [[1, 2], [3]]}, {"first": [[4]]}]}
    runs["b"] = [{"first": [[1, 9], [3]]}, {"first": [[4, 5]]}]
    said = "b: 3 of 4 tokens are a's, up to the first that differs in each of 3 completions"
    assert agreement(runs)[-1] == said


@pytest.mark.parametrize(
    ("given", "said"),
    [("greedy=true", "group=8: .*group=1"), ("group=1,greedy=true,ends=0.1", "ends=0.1")],
)
def test_greedy_draws_that_say_nothing_are_refused(given, said):
    with pytest.raises(ValueError, match=f"greedy with {said}"):
        run.parse(f"tiny:{given}", run.SHAPES)
