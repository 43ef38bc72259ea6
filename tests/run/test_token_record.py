"""Completions as tokens.jsonl has them: the texts of tokens, and values where there are any."""

import numpy as np

from ogrpo.loop.tokens import TokenSample
from ogrpo.run.token_record import token_record


def test_a_token_that_is_not_learned_from_has_no_log_probs():
    sample = TokenSample(
        prompt_ids=np.array([1]),
        token_ids=np.array([5, 6, 7]),
        length=9,
        behavior_log_probs=np.array([-0.5, 0, -0.25], np.float32),
        log_probs=np.array([-0.123456, 0, -0.25], np.float32),
        advantages=np.full(3, -0.5, np.float32),
        removed=np.array([True, False, False]),
        active=np.array([True, False, True]),
        reward=1.0,
        version=3,
        farthest=True,
    )
    record = token_record(7, [sample, sample._replace(advantages=np.arange(3.0))], str)
    one, other = record["completions"]
    assert record["step"] == 7
    assert (one["mu"], one["pi"]) == ([-0.5, None, -0.25], [-0.1235, None, -0.25])
    assert (one["advantage"], other["advantage"]) == (-0.5, [0, 1, 2])
    assert (one["removed"], one["staleness"], one["length"]) == ([0], 3, 9)
