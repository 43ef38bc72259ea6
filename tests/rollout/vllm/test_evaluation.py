from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest

from ogrpo.cli.eval import EvalConfig
from ogrpo.cli.evaluate import sampling_of
from ogrpo.evaluation import sample_and_judge
from ogrpo.protocol import Sampling
from ogrpo.rewards.scores import Scores
from ogrpo.serving.bridge import embedded_engine
from ogrpo.tasks import Example
from ogrpo.tasks.registry import TASKS
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


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", "native", "portable"])
def test_every_tasks_protocol_is_drawn_on_every_engine(farm, engine):
    """Temperatures and greediness as the tasks have them, down to 0; sizes are the tiny model's."""
    config, params = world.decoder(), world.make_params(world.decoder(), 0)
    temperatures = {task.protocol.temperature for task in TASKS.values()}
    assert 0.0 in temperatures
    with ExitStack() as stack:
        if engine == "embedded":
            drawn_by = embedded_engine(config, eos_id=world.EOS, batch_size=4, prompt_length=None)
        else:
            url = farm.start(native=engine == "native").url
            drawn_by = stack.enter_context(contract.connect([url], config))
        drawn_by.publish(params, 0)
        for temperature in sorted(temperatures):
            options = EvalConfig(samples=1 if temperature == 0 else 2, max_tokens=5)
            sampling = sampling_of(options, SimpleNamespace(temperature=temperature))
            groups = drawn_by.generate(world.PROMPTS, sampling, 0)
            contract.check_groups(groups, world.PROMPTS, sampling)
            scale = sampling.log_prob_temperature
            assert world.worst_gap(config, params, groups, scale) < contract.EXACT
