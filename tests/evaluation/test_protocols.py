"""Each task's way of evaluating runs as it stands on the trainer's own sampler, greedy ones too."""

import numpy as np
import pytest

from ogrpo.cli.eval import EvalConfig
from ogrpo.cli.evaluate import sampling_of
from ogrpo.evaluation import sample_and_judge
from ogrpo.serving.bridge import embedded_engine
from ogrpo.tasks import Example
from ogrpo.tasks.registry import TASKS
from tests.evaluation.engines import holds
from tests.policy.tiny import make_config, make_params

CONFIG = make_config(num_layers=1)
PARAMS = make_params(CONFIG)
TOKENS = 3  # of an answer, where the protocols allow up to 32,768
PROTOCOLS = {(t.protocol.samples, t.protocol.temperature): name for name, t in TASKS.items()}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if samples > 1 else [])
        for (samples, _), name in PROTOCOLS.items()
    ],
)
def test_every_protocol_runs_on_the_embedded_engine(name):
    engine = embedded_engine(CONFIG, eos_id=3, batch_size=2, prompt_length=4)
    engine.publish(PARAMS, 0)
    sampling = sampling_of(EvalConfig(max_tokens=TOKENS), TASKS[name].protocol)
    chunks = sample_and_judge(
        engine,
        [Example("one", {"answer": "7"}), Example("two", {"answer": "1"})],
        encode=lambda example: np.array([4, len(example.prompt)], np.int32),
        decode=lambda ids: " ".join(map(str, ids)),
        sampling=sampling,
        score=holds,
        seed=0,
        batch=2,
    )
    answers = [answer for chunk in chunks for answer in chunk]
    assert len(answers) == 2 * TASKS[name].protocol.samples
    assert all(1 <= answer.tokens <= TOKENS for answer in answers)


def test_temperature_0_asks_for_the_most_likely_token_once():
    greedy = {name: sampling_of(EvalConfig(), task.protocol).greedy for name, task in TASKS.items()}
    assert [name for name, is_greedy in greedy.items() if is_greedy] == ["gsm8k", "math", "toolace"]
