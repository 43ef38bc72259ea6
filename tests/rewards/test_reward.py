"""Rewards from functions, files and modules, as a command line names them, and their requests."""

import functools
import sys

import pytest

from ogrpo.rewards.reward import Reward, as_rewards, load_reward
from tests.rewards import functions
from tests.rewards.pools import pool, request


def test_functions_become_rewards_named_like_them_with_weights_in_their_order():
    partial = functools.partial(functions.equal, answer=["4"])
    rewards = as_rewards([functions.length, partial, Reward("other", functions.length, 0.5)])
    named = [(r.name, r.weight) for r in rewards]
    assert named == [("length", 1.0), ("equal", 1.0), ("other", 0.5)]
    rewards = as_rewards([functions.length, Reward("e", functions.equal)], [2.0, -1])
    assert [(r.name, r.weight) for r in rewards] == [("length", 2.0), ("e", -1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_rewards([]), "there is no reward"),
        (lambda: as_rewards([len, len]), r"two rewards are called 'len': .*\. Name one: Reward\("),
        (lambda: as_rewards([len], [1.0, 2.0]), "there are 2 weights for 1 rewards"),
        (lambda: as_rewards([len], [float("nan")]), "has weight nan; give a finite number"),
        (lambda: Reward("a/b", len), "without '/'"),
        (lambda: Reward("seconds", len), r"as a count of the metrics .*Reward\('my_seconds'"),
        (lambda: Reward("a", 0.5), "reward 'a' is no function but float: 0.5"),
    ],
)
def test_what_is_wrong_with_rewards_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Judge:
    async def __call__(self, completions):
        return [0.0]

    def method(self, completions):
        return [0.0]


def test_coroutines_are_known_in_all_their_forms_and_cannot_be_bounded():
    for function in (functions.judge, Judge(), functools.partial(Judge()), functools.partial(functions.judge)):  # fmt: skip
        assert Reward("judge", function).asynchronous
    for function in (functions.length, Judge().method, Judge, len):
        assert not Reward("judge", function).asynchronous
    judge = Judge()
    judge.bounded = True
    with pytest.raises(ValueError, match="cannot be bounded in a caller's thread"):
        Reward("judge", judge)


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


def test_a_function_of_a_file_or_of_a_module_works_here_and_in_a_process(folder, monkeypatch):
    spec = f"{folder}/my_rewards.py"
    reward = load_reward(f"{spec}:reward")
    assert reward(completions=["4", "5"], answer=["4", "4"]) == [6, 1]
    assert load_reward(f"{spec}:reward") is reward
    with pool(reward, load_reward(f"{spec}:judge")) as p:
        assert p.score(request("4", "5", answer="4")).rewards.tolist() == [6.0, 1.0]
    monkeypatch.delitem(sys.modules, "random")
    import random

    assert random.random
    assert load_reward("tests.rewards.functions:length") is functions.length
    (folder / "beside_the_cwd.py").write_text(
        "from ogrpo.rewards.reward import Reward\nhalf = Reward('half', len, 0.5)\n"
    )
    monkeypatch.chdir(folder)
    assert load_reward("beside_the_cwd:half") == Reward("half", len, 0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_rewards.py", r"names no reward; write FILE\.py:NAME or PACKAGE\.MODULE:NAME"),
        ("{}/my_reward.py:reward", r"there is no file .*my_reward\.py\. Did you mean 'my_rewards\.py'\?$"),
        ("{}/my_rewards.py:rewards", r"has no 'rewards'\. Did you mean 'reward'\?$"),
        ("no_such_package.module:reward", r"there is no module 'no_such_package', .*a file is named"),
        ("{}/broken.py:reward", r"broken\.py:2: .*cannot be imported: ZeroDivisionError"),
        ("{}/torn.py:reward", r"torn\.py:3: .*cannot be imported: SyntaxError"),
        ("broken:reward", r"broken\.py:2: .*cannot be imported"),
        ("torn:reward", r"torn\.py:3: .*cannot be imported"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_cannot_be_imported_is_named_with_its_line(folder, spec, message):
    (folder / "broken.py").write_text("x = 1\ny = x / 0\n")
    (folder / "torn.py").write_text("x = 1\n\ndef f(:\n")
    sys.path.append(str(folder))
    with pytest.raises(ValueError, match=message):
        load_reward(spec.format(folder))


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
