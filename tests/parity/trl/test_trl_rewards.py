"""A user's reward functions through TRL's `_calculate_rewards` and, unchanged, through our pool.

Written against TRL 1.16. Its trainer is built, on a model of twelve words.
"""

import warnings

import numpy as np
import pytest

from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward, as_rewards
from ogrpo.rewards.scores import ScoreRequest
from tests.parity.trl import user_rewards
from tests.parity.trl.models import QUIET, tiny

TEXTS = ["a", "b b", "<think>\n2 + 2\n</think>\n$\\boxed{4}$", ""]
IDS = [[2], [3, 3], [4, 5], [1]]
ROW = {"answer": "a", "level": 3, "solution": "$4$"}
CHAT = [{"role": "system", "content": "add"}, {"role": "user", "content": "2 + 2 ?"}]


def theirs(trl, prompt, functions, weights):
    """The values [n, rewards] and the rewards [n] that TRL's trainer computes."""
    from datasets import Dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what TRL thinks of the options
        config = trl.GRPOConfig(
            **QUIET,
            per_device_train_batch_size=len(TEXTS),
            num_generations=len(TEXTS),
            reward_weights=weights,
        )
        rows = [{"prompt": prompt, **ROW}] * len(TEXTS)
        options = {"reward_funcs": functions, "train_dataset": Dataset.from_list(rows)}
        trainer = trl.GRPOTrainer(args=config, **options, **tiny())
        request = score_request(prompt)
        values = trainer._calculate_rewards(rows, request.prompts, request.completions, IDS)
    rewards = (values * trainer.reward_weights.unsqueeze(0)).nansum(dim=1)  # as it does afterwards
    return trainer.reward_func_names, values.numpy(), rewards.numpy()


def score_request(prompt):
    how = {"completion_ids": IDS, "finish_reasons": ["stop"] * len(TEXTS), "columns": ROW}
    return ScoreRequest.of_group(prompt, TEXTS, **how)


def ours(prompt, rewards, **options):
    bounds = {"processes": 2, "seconds": 60.0, "memory_gib": 4.0, **options}
    with RewardPool(rewards, **bounds) as pool:
        return pool.score(score_request(prompt))


def agree(actual, expected):
    names, values, rewards = expected
    assert list(actual.values) == names
    np.testing.assert_array_equal(np.stack([*actual.values.values()], axis=1), values)
    np.testing.assert_allclose(actual.rewards, rewards, rtol=1e-6)
    assert actual.failures == ()
    assert len(np.unique(rewards)) > 1


@pytest.mark.parametrize("functions", [user_rewards.TEXT, user_rewards.CHAT], ids=["text", "chat"])
def test_the_same_functions_give_the_same_values_and_sums(trl, functions):
    prompt = "2 + 2 ?" if functions is user_rewards.TEXT else CHAT
    weights = [0.5 + 0.25 * i for i in range(len(functions))]
    expected = theirs(trl, prompt, functions, weights)
    agree(ours(prompt, as_rewards(functions, weights)), expected)


def test_a_reward_that_does_not_apply_is_left_out_as_in_trl(trl):
    functions = [user_rewards.exact, user_rewards.only_short]
    expected = theirs(trl, "2 + 2 ?", functions, [1.0, 2.0])
    rewards = [functions[0], Reward("only_short", functions[1], 2.0)]
    assert np.isnan(expected[1]).any()
    agree(ours("2 + 2 ?", rewards), expected)


def test_trls_own_rewards_run_in_the_pool(trl):
    """One sets alarms, which needs a main thread. They are imported with TRL, hence the memory."""
    functions = [
        trl.rewards.accuracy_reward,
        trl.rewards.think_format_reward,
        trl.rewards.get_repetition_penalty_reward(ngram_size=1, max_penalty=-1.0),
        trl.rewards.get_soft_overlong_punishment(max_completion_len=2, soft_punish_cache=1),
    ]
    expected = theirs(trl, CHAT, functions, None)
    assert np.any(expected[1], axis=0).all()
    agree(ours(CHAT, as_rewards(functions), memory_gib=32.0), expected)
