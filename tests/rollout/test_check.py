"""The check of completions against their order, by itself and over what the embedded engine gives.

Before it: fields that no request and no completion has, and prompts that no engine can answer.
"""

from dataclasses import replace

import numpy as np
import pytest

from ogrpo.protocol import Completion, Group, Sampling, VersionSpan, check_request
from ogrpo.rollout.check import ABOVE_ZERO, NO_CHANCE, Duplicates, Requirements, flaws
from ogrpo.rollout.embedded import EmbeddedEngine
from tests.rollout.collection.scripted import SAMPLING, collector, turn
from tests.rollout.test_embedded import echo

EOS, MOST = 9, 5
REQUIRED = Requirements(Sampling(0.7, MOST, 3), vocab_size=10, eos_id=EOS, versions={0, 4})


def completion(*ids, **changes):
    ids = ids or (1, 2, EOS)
    whole = Completion(
        token_ids=np.array(ids, np.int32),
        log_probs=np.full(len(ids), -1.5, np.float32),
        policy_version=4,
        temperature=0.7,
        finish_reason="stop" if ids[-1] == EOS else "length",
    )
    return replace(whole, **changes)


def group(*drawn):
    return Group(np.array([1, 2], np.int32), drawn or tuple(completion(n, EOS) for n in range(3)))


def spans(*bounds):
    return {"version_spans": tuple(VersionSpan(*each) for each in bounds)}


WHOLE = {
    "one that ends itself": completion(),
    "one of the full length": completion(1, 2, 3, 4, 5),
    "one that ends at the limit": completion(1, 2, 3, 4, EOS),
    "rounded above zero": completion(log_probs=np.float32([-1.0, ABOVE_ZERO / 2, 0.0])),
    "of several versions": completion(policy_version=0, **spans((0, 0, 2), (4, 2, 3))),
    "with a span of no token": completion(**spans((4, 0, 3), (4, 3, 3))),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_whole_passes(name):
    assert flaws([group(), group(completion(), WHOLE[name], completion(3, EOS))], REQUIRED) == {}


@pytest.mark.parametrize(
    ("likeliest", "chance", "reason"),
    [
        *((10, -1.0, "tokens"), (-2, -1.0, "tokens"), (3, 3.0, "tokens"), (3, np.nan, "tokens")),
        *((2, -1.51, "log_probs"), (2, -1.5, None), (3, -1.0, None)),  # a drawn one's, and others'
    ],
)
def test_likeliest_tokens_that_cannot_be_are_refused(likeliest, chance, reason):
    top = {"top_ids": np.full((3, 1), likeliest), "top_log_probs": np.full((3, 1), chance)}
    flawed = flaws([group(completion(**top), *group().completions[1:])], REQUIRED)
    assert [flaw.reason for flaw in flawed.values()] == ([reason] if reason else [])


NEVER = np.full(3, -np.inf, np.float32)
MASSES = ((0.9509, None), (0.9511, "log_probs"), (0.99, "log_probs"))
"""Probabilities beside one of .05, and what is refused: more than 1.001 together."""


def others(chances):
    return {"top_ids": np.full((3, 2), [3, 4]), "top_log_probs": chances.astype(np.float32)}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "log_probs"),
        ({"log_probs": NEVER, "top_log_probs": np.stack([NEVER] * 2, 1)}, "log_probs"),
        ({"token_ids": np.array([1, -1, EOS], np.int32)}, "tokens"),
        ({"loss_mask": np.array([True, False, True])}, None),  # a tool's token was not drawn
        *((others(np.log([[0.05, p]] * 3)), reason) for p, reason in MASSES),
        ({"top_ids": np.full((2, 2), 2)}, None),  # the buffer says how many it takes
    ],
)
def test_what_was_drawn_is_looked_for_among_the_likeliest_where_there_are_any(fields, reason):
    chances = np.full((3, 2), [-3.0, -np.inf], np.float32)
    top = {"top_ids": np.full((3, 2), [2, -1]), "top_log_probs": chances}
    flawed = flaws([group(completion(**{**top, **fields}), *group().completions[1:])], REQUIRED)
    assert [flaw.reason for flaw in flawed.values()] == ([reason] if reason else [])


def test_tokens_behind_the_end_are_refused_but_in_several_turns():
    assert (
        flaws([group(completion(1, EOS, 2, 3, 4), *group().completions[1:])], REQUIRED)[0][0]
        == "finish"
    )
    turns = completion(1, EOS, 2, 3, 4, loss_mask=np.array([1, 1, 0, 1, 1], bool))
    assert flaws([group(turns, *group().completions[1:])], REQUIRED) == {}


def alike(log_prob, count, size=8):
    """`count` equal completions of 5 tokens among others that differ."""
    sampling = Sampling(1.0, MOST, size)
    each = {"temperature": 1.0, "log_probs": np.full(MOST, log_prob, np.float32)}
    same = [completion(1, 2, 3, 4, 5, **each) for _ in range(count)]
    others = [completion(1, 2, 3, 5, n, **each) for n in range(size - count)]
    return flaws([group(*same, *others)], replace(REQUIRED, sampling=sampling))


def test_equal_completions_are_refused_where_chance_does_not_explain_them():
    # All 8 alike: 7 times 5 tokens have to come again, of a chance of exp(35 x).
    threshold = NO_CHANCE / 35
    assert alike(threshold * 0.99, 8) == {}
    assert alike(threshold * 1.01, 8)[0].reason == "repeated"
    # Two of 8: 7 others could be the one that is alike, each with a chance of exp(5 x).
    threshold = (NO_CHANCE - np.log(7)) / 5
    assert alike(threshold * 0.99, 2) == {}
    assert alike(threshold * 1.01, 2)[0].reason == "repeated"


def spoiling(name, value):
    """A sampling function that sets the first completion of the second prompt of its first batch."""
    first = [True]

    def sample(_, *arrays, **how):
        drawn = echo(-1.0, *arrays, **how)
        drawn.finished[:] = True
        if first:
            first.clear()
            getattr(drawn, name)[1, 0] = value
        return drawn

    return sample


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("log_probs", np.nan, "log_probs"), ("token_ids", 99, "tokens"), ("finished", 0, "length")],
)
def test_what_the_embedded_engine_spoils_is_drawn_again_and_counted(name, value, reason):
    required = Requirements(SAMPLING, vocab_size=99)
    engine = EmbeddedEngine(spoiling(name, value), batch_size=3, prompt_length=1)
    with collector(engine, 2, required=required) as source:
        for step in range(2):
            prompts = [int(group.prompt_ids[0]) for group in turn(source, step).groups]
            assert prompts == [10 * step + n for n in range(3)]
        metrics = source.metrics()
    assert metrics["collect/retried"] == 1
    assert metrics["rollout/refused"] == metrics[f"rollout/refused/{reason}"] == 2


def placed(seed, log_prob=-3.0):
    """A group whose completions are unlikely, or not."""
    rng, log_probs = np.random.default_rng(seed), np.full(20, log_prob, np.float32)
    return group(*(completion(*rng.integers(0, 100, 20), log_probs=log_probs) for _ in range(2)))


def test_a_completion_enters_a_batch_under_one_order():
    duplicates, first, second = Duplicates(), placed(1), placed(2)
    assert not duplicates.repeated({0: first, 1: second}, greedy=False)
    assert not duplicates.repeated({0: first}, greedy=False)  # the same request, drawn again
    swapped = replace(placed(3), completions=(placed(3).completions[0], second.completions[1]))
    (flaw,) = duplicates.repeated({2: swapped, 3: placed(4)}, greedy=False).values()
    assert flaw.reason == "repeated"
    assert "exp(-60) came for another prompt too" in str(flaw)
    # What was refused is not kept in mind, what is likely may be alike, greedy answers are.
    assert not duplicates.repeated({4: placed(3)}, greedy=False)
    likely = placed(5, log_prob=-0.1)
    assert not duplicates.repeated({5: likely, 6: likely}, greedy=False)
    assert not duplicates.repeated({7: first}, greedy=True)


PAIR = completion(1, 2)


@pytest.mark.parametrize(
    ("whole", "field", "value", "message"),
    [
        *((SAMPLING, "temperature", x, rf"is {x}.*greedy=True") for x in (0.0, -1.0, np.nan)),
        (SAMPLING, "temperature", np.inf, r"is inf.*finite"),
        *((SAMPLING, name, 0, "is 0; give at least 1") for name in ("max_tokens", "group_size")),
        (PAIR, "token_ids", np.array([3], np.int32), "1 token_ids but 2 log_probs"),
        (PAIR, "token_ids", np.array([3, 1], np.int64), "token_ids is int64"),
        (PAIR, "token_ids", np.array([[3, 1]], np.int32), r"token_ids is int32 \(1, 2\)"),
        (PAIR, "log_probs", np.array([-0.5, -1.5]), "log_probs is float64"),
        (PAIR, "log_probs", [-0.5, -1.5], "log_probs is <class 'list'>"),
        (PAIR, "loss_mask", np.array([True]), "2 token_ids but 1 .*; give one for each"),
        (PAIR, "loss_mask", np.array([1, 0], np.int32), "loss_mask is int32"),
        (PAIR, "loss_mask", [True, False], "loss_mask is <class 'list'>"),
        (PAIR, "finish_reason", "eos", "finish_reason is 'eos'; use one of"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_it(whole, field, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        replace(whole, **{field: value})
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
