import numpy as np
import pytest

from ogrpo.evaluation import sample_and_judge
from ogrpo.rewards.scores import Scores
from ogrpo.rollout.protocol import Sampling
from ogrpo.tasks import Example
from tests.rollout.vllm import contract, world


def judge(request):
    rewards = np.array([len(text) % 2 for text in request.completions], np.float32)
    return Scores(rewards, {"odd": rewards}, rewards < 0, ())


@pytest.mark.parametrize("concurrent", [1, 2])
def test_held_out_answers_come_from_servers(farm, concurrent):
    config = world.decoder()
    problems = [Example(f"p{n}", {}, f"a.jsonl:{n + 1}") for n in range(len(world.PROMPTS))]
    with contract.connect([farm.start().url], config) as engine:
        engine.publish(world.make_params(config, 0), 0)
        chunks = sample_and_judge(
            engine,
            problems,
            encode=lambda problem: world.PROMPTS[int(problem.prompt[1:])],
            decode=lambda ids: world.TOKENIZER.decode(ids),
            sampling=Sampling(temperature=1.0, max_tokens=5, group_size=2),
            score=judge,
            seed=0,
            batch=1,
            concurrent=concurrent,
        )
        answers = [answer for chunk in chunks for answer in chunk]
    assert [(a.problem, a.sample) for a in answers] == [(n, g) for n in range(4) for g in range(2)]
    assert all(0 < a.tokens <= 5 and a.values["odd"] == len(a.text) % 2 for a in answers)
    assert all(a.truncated == (a.token_ids[-1] != world.EOS) for a in answers)
