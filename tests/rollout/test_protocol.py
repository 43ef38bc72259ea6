import dataclasses

import numpy as np
import pytest

from ogrpo.protocol import Completion, Sampling, check_request

SAMPLING = Sampling(temperature=1.0, max_tokens=4, group_size=2)
COMPLETION = Completion(
    token_ids=np.array([3, 1], np.int32),
    log_probs=np.array([-0.5, -1.5], np.float32),
    policy_version=7,
    temperature=1.0,
    finish_reason="stop",
)


@pytest.mark.parametrize(
    ("whole", "field", "value", "message"),
    [
        *((SAMPLING, "temperature", x, rf"is {x}.*greedy=True") for x in (0.0, -1.0, np.nan)),
        (SAMPLING, "temperature", np.inf, r"is inf.*finite"),
        *((SAMPLING, name, 0, "is 0; give at least 1") for name in ("max_tokens", "group_size")),
        (COMPLETION, "token_ids", np.array([3], np.int32), "1 token_ids but 2 log_probs"),
        (COMPLETION, "token_ids", np.array([3, 1], np.int64), "token_ids is int64"),
        (COMPLETION, "token_ids", np.array([[3, 1]], np.int32), r"token_ids is int32 \(1, 2\)"),
        (COMPLETION, "log_probs", np.array([-0.5, -1.5]), "log_probs is float64"),
        (COMPLETION, "log_probs", [-0.5, -1.5], "log_probs is <class 'list'>"),
        (COMPLETION, "loss_mask", np.array([True]), "2 token_ids but 1 .*; give one for each"),
        (COMPLETION, "loss_mask", np.array([1, 0], np.int32), "loss_mask is int32"),
        (COMPLETION, "loss_mask", [True, False], "loss_mask is <class 'list'>"),
        (COMPLETION, "finish_reason", "eos", "finish_reason is 'eos'; use one of"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_it(whole, field, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        dataclasses.replace(whole, **{field: value})
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (np.array([], np.int32), "prompt 1 of the request has no token: leave it out"),
        (np.array([1, 16], np.int32), "prompt 1 has token 16, outside the vocabulary of 16"),
        (np.array([-1], np.int32), "prompt 1 has token -1, outside"),
        (np.arange(6, dtype=np.int32), "prompt 1 has 6 tokens but the engine takes 5"),
        (np.arange(5, dtype=np.int32), "prompt 1 of 5 tokens and max_tokens 4 do not fit the 8"),
        (np.array([1]), "prompt 1 is int64"),
        ([1], "prompt 1 is <class 'list'>"),
    ],
)
def test_what_no_engine_can_answer_is_refused_by_the_prompts_place(prompt, message):
    prompts = [np.array([1, 15], np.int32), prompt]
    with pytest.raises(ValueError, match=message):
        check_request(prompts, SAMPLING, vocab_size=16, max_prompt=5, max_length=8)
