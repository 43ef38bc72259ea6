"""The harness of the side-by-side benchmarks, with workers that do next to nothing."""

import sys

import numpy as np
import pytest

from benchmarks.side_by_side import harness, sampler
from benchmarks.side_by_side.harness import HERE, Worker, parse
from benchmarks.side_by_side.sampler import REPORT, SHAPES
from benchmarks.side_by_side.update import Bench, Options
from benchmarks.side_by_side.update_cases import SHAPES as UPDATES
from benchmarks.side_by_side.update_cases import SYSTEMS

WORKERS = {
    "engine": """
from worker import serve
print("a library speaks")
serve(lambda job: lambda ids, seed, most: [[seed] * most for _ in ids], "numpy")
""",
    "update": """
from worker import Clock, Job
job = Job()
clock, updates = Clock(job, "numpy"), iter(job.batch()["losses"])
while clock.tick(next(updates), 2.0):
    pass
""",
    "broken": "raise ValueError('no such model')",
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "HERE", tmp_path)
    for name, text in WORKERS.items():
        path = f"import sys; sys.path.append({str(HERE)!r})"
        (tmp_path / f"{name}.py").write_text(f"{path}\n{text}")
    job = {"shape": {"prompts": 2, "prompt": 3}, "settings": {}, "eos": 1, "vocabulary": 9}
    return lambda name, **fields: Worker(name, sys.executable, job | fields, tmp_path, 1)


def test_an_engine_answers_requests_and_its_cost_is_read(start):
    with start("engine") as worker:
        versions = worker.answer()
        assert versions == {"numpy": np.__version__}
        drawn = worker.ask(seconds=0.0, seed=5, most=4)
    assert (drawn["tokens"], drawn["calls"], drawn["first"]) == (8, 1, [[5] * 4] * 2)
    assert drawn["cpu"] >= 0
    assert drawn["peak"] > 5
    run = {**drawn, "cpu": 2.0, "wall": 1.0, "versions": versions}
    part = {"shape": {"greedy": True}, "runs": {"ogrpo": [run], "vllm": [run | {"cpu": 4.0}]}}
    machine = dict.fromkeys(("date", "commit", "cpu", "cores", "system", "python"), "x")
    measured = {"machine": machine | {"memory": 1.0, "load": 0.0}, "command": "python"}
    text = REPORT.text({**measured, "shapes": {"tiny": part}})
    assert "| ogrpo | 4 (4 to 4) | 8 (8 to 8) |" in text
    assert "| vllm | 2 (2 to 2) | 1 (1 to 1) |" in text
    assert "vllm: 8 of 8 tokens are ogrpo's" in text


@pytest.mark.parametrize(("warm_up", "updates"), [(2, 3), (0, 1)])
def test_updates_are_timed_after_the_warm_up_or_from_the_first(start, tmp_path, warm_up, updates):
    np.savez(tmp_path / "batch.npz", losses=np.arange(9.0))
    with start("update", warm_up=warm_up, updates=updates, seconds=0.0) as worker:
        figures = worker.answer()
    assert figures["losses"] == [*map(float, range(warm_up + updates))]
    assert figures["updates"] == updates
    assert figures["peak"] >= figures["timed_peak"] > 0


@pytest.mark.parametrize("loss", [1.1, float("nan")])
def test_a_system_that_computes_something_else_is_not_measured(loss, tmp_path):
    class Answered(Bench):
        def call(self, python, name, settings, **fields):
            losses = [1.0, loss if name == "trl" else 1.0]
            return {"losses": losses[::-1], "norms": [2.0, 2.0]}

    systems = {name: (name, SYSTEMS[name]) for name in ("ogrpo", "trl")}
    pythons = dict.fromkeys(systems, sys.executable)
    bench = Answered(Options(), UPDATES["A"], systems, pythons, tmp_path)
    with pytest.raises(ValueError, match="trl does not compute what ogrpo does"):
        bench.check()


def test_a_worker_that_ends_is_quoted(start):
    with start("broken") as worker, pytest.raises(RuntimeError, match="no such model"):
        worker.answer()


def test_environments_of_both_benchmarks_are_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path))
    assert sampler.Options().environments == tmp_path
    assert Options().environments == tmp_path / "benchmarks"


def test_fields_of_a_setting_are_changed_by_name():
    assert parse("ogrpo:lora=16,remat=full", SYSTEMS)[1].lora == 16
    assert parse("trl:checkpointing=false", SYSTEMS)[1].checkpointing is False
    shape = parse("tiny:tokens=100,prompts=3,group=1,greedy=true", SHAPES)[1]
    assert (shape.tokens, shape.prompt, shape.greedy) == (100, 32, True)
    with pytest.raises(ValueError, match="did you mean 'remat'"):
        parse("ogrpo:remit=full", SYSTEMS)
    with pytest.raises(ValueError, match="there is no 'nemo'"):
        parse("nemo", SYSTEMS)
    with pytest.raises(ValueError, match="tiny has none: give --shapes smollm2"):
        sampler.main(sampler.Options(shapes=("smollm2", "tiny"), engines=("llamacpp",)))
