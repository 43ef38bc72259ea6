"""Which reward decides what is right, and what each looks for: the first lines of a run."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

from ogrpo.config.train import TrainConfig
from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.judge import Judge
from ogrpo.rewards.reward import Reward, place_of
from ogrpo.tasks import Task

LOOKS_FOR = {
    "marker": "the one number after the last ####",
    "boxed": "the last \\boxed{...}",
    "free": "an answer anywhere, a box first",
    "choice": "the letter of a choice",
    "last": "the last number",
}
"""What each way to find an answer looks for."""


def judge_lines(task: Task) -> list[str]:
    """Returns what says which reward decides success, and a line about each reward."""
    rewards = task.heldout_rewards
    names = ", ".join(reward.name for reward in rewards)
    if task.success is not None:
        decides = f"{task.success} decides what is right (Pass@k)"
    elif len(rewards) == 1:
        decides = f"{names} decides what is right (Pass@k) where all that it gives is 0 or 1"
    else:
        decides = (
            f"the only one of {names} that is 0 or 1 decides what is right (Pass@k), if there is"
            " one: --by NAME says which"
        )
    trained = [reward for reward in task.rewards if reward not in rewards]
    return [
        decides,
        *(f"  {description(reward)}" for reward in rewards),
        *(f"  {description(reward)} (in training)" for reward in trained),
    ]


def description(reward: Reward) -> str:
    """Returns a reward's name, its weight where that is not 1, and what it looks for."""
    weight = "" if reward.weight == 1 else f", weight {reward.weight:g}"
    function = reward.function
    if not isinstance(function, Judge):
        return f"{reward.name}{weight}: {place_of(function)}"
    compares = (inspect.getdoc(type(function)) or "").partition("\n")[0].rstrip(".")
    extract = getattr(function, "extract", None)
    ways = [LOOKS_FOR[name] for name, way in EXTRACTORS.items() if way is extract]
    where = f"; it looks for {ways[0]}" if ways else ""
    return f"{reward.name}{weight}: {compares[:1].lower()}{compares[1:]}{where}"


def with_named_rewards(config: TrainConfig, rewards: Sequence[Reward]) -> TrainConfig:
    """Returns the config with the rewards of a task that was handed over, by file and name."""
    names = tuple(f"{_file(reward)}:{reward.name}" for reward in rewards)
    weights = tuple(reward.weight for reward in rewards)
    shown = weights if any(weight != 1 for weight in weights) else ()
    return replace(config, rewards=names, reward=replace(config.reward, weights=shown))


def _file(reward: Reward) -> str:
    """Returns the file of a reward's function without its line, which other changes move."""
    file, _, line = place_of(reward.function).rpartition(":")
    return file if line.isdigit() else place_of(reward.function)
