"""Rewards from files and modules, as a command line names them, and their way into a process."""

import sys

import pytest

from ogrpo.rewards.load import load_reward
from ogrpo.rewards.reward import Reward
from tests.rewards import functions
from tests.rewards.asking import pool, request

FILE = """
import threading
from beside_the_file import SCALE

lock = threading.Lock()  # by value it could not be sent
bonus = 7

def reward(completions, answer):
    with lock:
        return [SCALE * (c == a) + shift for c, a in zip(completions, answer)]

class Judge:
    def __call__(self, completions, **columns):
        return [0.0] * len(completions)

shift = 1
judge = Judge()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_file.py").write_text("SCALE = 5\n")
    (tmp_path / "my_rewards.py").write_text(FILE)
    (tmp_path / "random.py").write_text("raise ImportError('hides the standard library')\n")
    yield tmp_path
    for name in [name for name in sys.modules if "my_rewards" in name or "beside_the" in name]:
        del sys.modules[name]


def test_a_function_of_a_file_works_here_and_in_a_process(folder):
    spec = f"{folder}/my_rewards.py"
    reward = load_reward(f"{spec}:reward")
    assert reward(completions=["4", "5"], answer=["4", "4"]) == [6, 1]
    assert load_reward(f"{spec}:reward") is reward
    with pool(reward, load_reward(f"{spec}:judge")) as p:
        assert p.score(request("4", "5", answer="4")).rewards.tolist() == [6.0, 1.0]
    import random

    assert random.random


def test_a_function_or_a_reward_of_a_module_is_found(folder, monkeypatch):
    assert load_reward("tests.rewards.functions:length") is functions.length
    (folder / "beside_the_cwd.py").write_text(
        "from ogrpo.rewards.reward import Reward\nhalf = Reward('half', len, 0.5)\n"
    )
    monkeypatch.chdir(folder)
    found = load_reward("beside_the_cwd:half")
    assert found == Reward("half", len, 0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_rewards.py", r"names no reward; write FILE\.py:NAME or PACKAGE\.MODULE:NAME"),
        (":reward", "names no reward"),
        ("{}/my_reward.py:reward", r"there is no file .*my_reward\.py; did you mean 'my_rewards\.py'\?"),
        ("{}/no/such.py:reward", r"there is no file .*such\.py\."),
        ("{}/my_rewards.py:rewards", r"has no 'rewards'; did you mean 'reward'\?"),
        ("{}/my_rewards.py:reward.what", r"has no 'reward\.what'"),
        ("{}/my_rewards.py:bonus", r"my_rewards\.py:bonus is int, not a function"),
        ("no_such_package.module:reward", r"there is no module 'no_such_package', .*a file is named"),
        ("tests.rewards.no_such:reward", r"there is no module 'tests\.rewards\.no_such'"),
        ("tests.rewards.functions:lenght", r"did you mean 'length'\?"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named(folder, spec, message):
    with pytest.raises(ValueError, match=message):
        load_reward(spec.format(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", r"broken\.py:2: .*cannot be imported: ZeroDivisionError"),
        ("x = 1\n\ndef f(:\n", r"broken\.py:3: .*cannot be imported: SyntaxError"),
        ("import no_such_thing\n", r"broken\.py:1: .*ModuleNotFoundError: .*'no_such_thing'"),
        ("raise SystemExit('usage')\n", r"broken\.py:1: .*SystemExit: usage"),
    ],
)
def test_an_error_at_import_tells_the_line(folder, text, message):
    (folder / "broken.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_reward(f"{folder}/broken.py:reward")
    sys.path.append(str(folder))
    with pytest.raises(ValueError, match=r"broken\.py:\d: .*cannot be imported"):
        load_reward("broken:reward")


def test_a_file_that_cannot_be_loaded_in_a_process_is_named_with_its_line(folder):
    (folder / "my_rewards_changed.py").write_text("def reward(completions): return [1.0]\n")
    reward = load_reward(f"{folder}/my_rewards_changed.py:reward")
    (folder / "my_rewards_changed.py").write_text("import os\n1 / 0\n")
    with pytest.raises(ValueError, match=r"(?s)reward 'reward' .*cannot be loaded .*line 2"):
        pool(reward)


def test_imports_have_a_bound_of_their_own(folder):
    text = "import time\ntime.sleep(0.8)\ndef reward(completions): return [1.0]\n"
    (folder / "my_rewards_slow.py").write_text(text)
    reward = load_reward(f"{folder}/my_rewards_slow.py:reward")
    with pool(reward, processes=1, seconds=0.5) as p:
        assert p.score(request("a")).rewards.tolist() == [1.0]
    with pytest.raises(RuntimeError, match=r"not ready after 0\.3 s: what their modules do"):
        pool(reward, start_seconds=0.3)
