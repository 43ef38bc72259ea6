"""The process itself: its protocol, its surroundings, its end."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest

from ogrpo.system.worker import WorkerProcess
from tests.processes import alive, eventually, gone
from tests.rewards import functions
from tests.rewards.pools import pool, request


@pytest.fixture
def start():
    workers = []

    def start(function, memory_gib=2.0):
        functions = {"f": cloudpickle.dumps(function)}
        workers.append(WorkerProcess(functions, memory_gib=memory_gib, files={}))
        workers[-1].load(60.0)
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def test_the_process_is_no_fork_and_imports_neither_ours_nor_the_callers_main(start):
    def look(marker):
        import os
        import sys

        heavy = [m for m in ("ogrpo", "jax", "numpy", "pytest") if m in sys.modules]
        main = [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")]
        return [heavy, main, os.environ["JAX_PLATFORMS"], hash("a"), sys.path[-1], marker in globals()]  # fmt: skip

    first = start(look).call("f", {"marker": "start"}, seconds=9.0).result
    assert first == start(look).call("f", {"marker": "start"}, seconds=9.0).result
    assert first[:3] == [[], [], "cpu"]
    assert first[4] == sys.path[-1]


def test_what_a_function_prints_or_reads_does_not_touch_the_protocol(start, capfd):
    def noisy():
        import os

        os.write(1, b"\0\0\0\0\0\0\0\5loud1")
        print("loud2")
        subprocess.run(["echo", "loud3"], check=True)
        return sys.stdin.read()

    worker = start(noisy)
    assert [worker.call("f", {}, seconds=9.0).result for _ in range(2)] == ["", ""]
    out, err = capfd.readouterr()
    assert out == ""
    assert all(f"loud{i}" in err for i in (1, 2, 3))


def test_a_call_under_way_is_answered_when_the_process_is_killed(start):
    worker = start(functions.overruns)
    thread = ThreadPoolExecutor(1)  # no `with`, which waits without end for what never returns
    answer = thread.submit(worker.call, "f", {"completions": ["bad"]}, seconds=60.0)
    time.sleep(0.1)
    worker.kill("for a test")
    reply = answer.result(20.0)
    thread.shutdown()
    assert (reply.kind, reply.ended) == ("died", True)
    assert reply.message == "its process ended: for a test"
    assert worker.call("f", {"completions": []}, seconds=9.0).kind == "died"


ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.scores import ScoreRequest
{more}
pool = RewardPool([reward], processes=2, seconds=100.0, memory_gib=1.0)
ask = ScoreRequest.of_group("q", ["a", "bb"], completion_ids=[[1], [2]], finish_reasons=["stop"] * 2,
                            columns={{"folder": sys.argv[1]}})
print(pool.score(ask).rewards.tolist())
"""
REWARD = "def reward(completions, **columns): print('seen'); return [scale * len(c) for c in completions]\nscale = 2"


def write(folder, more):
    script = folder / "script.py"
    script.write_text(SCRIPT.format(more=textwrap.dedent(more)))
    return [sys.executable, "-X", "dev", "-W", "error", str(script), str(folder)]


def test_an_unguarded_script_works_and_ends_without_a_warning(tmp_path):
    done = subprocess.run(write(tmp_path, REWARD), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("[2.0, 4.0]\n", "seen\n", 0)


def test_processes_end_when_the_caller_is_killed(tmp_path):
    """Even in a step in C that holds the interpreter's lock, and so do the processes they started."""
    command = write(tmp_path, "from tests.rewards.functions import leaves_a_child as reward")
    caller = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        pids = tmp_path / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60.0)
        children = [int(pid) for pid in pids.read_text().split()]
        assert alive(children[0])
    finally:
        caller.kill()
        caller.wait()
    assert all(gone(pid) for pid in children)


def test_closing_ends_all_processes_and_what_is_under_way():
    p, before = pool(functions.overruns, functions.judge), threading.active_count()
    threads = ThreadPoolExecutor(3)
    scored = [threads.submit(p.score, request(text)) for text in ("bad", "bad", "block")]
    assert eventually(lambda: p.metrics()["reward/processes"] == 3)
    children = [worker._child._process for worker in p._workers._workers]
    time.sleep(0.1)
    p.close()
    p.close()
    for each in scored:
        with pytest.raises(RuntimeError, match=r"^the pool of rewards was closed\.$"):
            each.result(20.0)
    threads.shutdown()
    assert len(children) == 3
    assert all(child.returncode is not None for child in children)
    assert eventually(lambda: threading.active_count() <= before)
    with pytest.raises(RuntimeError, match="the pool of rewards is closed"):
        p.score(request("a"))
