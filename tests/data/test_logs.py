"""Completions that anybody logged are checked, counted and put into groups; ours come back whole."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.data.logs import LogTerms, RefusedRow, lacks_log_probs, read_log, to_row
from ogrpo.data.replay import BufferLimits, Experience, Layout, ReplayBuffer, fifo
from ogrpo.tasks.rows import read_parquet
from tests.data.replay.make import all_facts, experience

EOS = 0


def letters(text):
    if "?" in text:
        raise ValueError("'?' is not in the vocabulary")
    return np.array([ord(letter) - 96 for letter in text], np.int32)


TERMS = LogTerms(
    group_size=2,
    encode_prompt=letters,
    encode=letters,
    eos_id=EOS,
    temperature=1.0,
    vocab_size=30,
    prompt_length=5,
    completion_length=6,
    held_out=frozenset({letters("held").tobytes()}),
)
ROW = {"prompt": "ab", "token_ids": [3, 4, 0], "log_probs": [-1.0, -2.0, -0.5], "reward": 1.0}


def read(*rows):
    return read_log([(row, f"log:{n}") for n, row in enumerate(rows, 1)], TERMS)


def test_rows_become_groups_of_their_prompt_in_the_order_of_the_file():
    rows = [
        {**ROW, "reward": float(n), "prompt": prompt, "version": n, "policy": "old"}
        for n, prompt in enumerate(("ab", "cd", "ab", "ab", "cd"))
    ]
    log = read(*rows)
    assert [one.rewards.tolist() for one in log.experiences] == [[0, 2], [1, 4]]
    assert [one.problem for one in log.experiences] == [0, 1]
    assert [one.group.prompt_ids.tolist() for one in log.experiences] == [[1, 2], [3, 4]]
    assert (log.rows, log.accepted, log.prompts, log.remainder) == (5, 5, 2, 1)
    assert log.policies == {("old", n): 1 for n in range(5)}


def test_a_reward_of_null_or_nan_was_not_judged_and_a_row_without_one_is_refused():
    for reward in (None, float("nan")):
        assert np.isnan(to_row({**ROW, "reward": reward}, TERMS).reward)
    with pytest.raises(RefusedRow, match="absent"):
        to_row({name: value for name, value in ROW.items() if name != "reward"}, TERMS)


def test_a_text_ends_with_the_end_token_where_it_was_not_cut_off():
    text = {"prompt_ids": [1, 2], "completion": "ef", "reward": True}
    assert to_row(text, TERMS).completion.token_ids.tolist() == [5, 6, EOS]
    assert to_row(text, TERMS).completion.finish_reason == "stop"
    assert lacks_log_probs(to_row(text, TERMS).completion)
    cut = to_row({**text, "finish_reason": "length"}, TERMS).completion
    assert (cut.token_ids.tolist(), cut.finish_reason) == ([5, 6], "length")
    ended = replace(TERMS, encode=lambda text: np.append(letters(text), np.int32(EOS)))
    assert to_row(text, ended).completion.token_ids.tolist() == [5, 6, EOS]  # of the text's own
    # Log-probs say whether the end was drawn.
    for number, tokens in ((2, [5, 6]), (3, [5, 6, EOS])):
        row = to_row({**text, "log_probs": [-1.0] * number}, TERMS)
        assert row.completion.token_ids.tolist() == tokens
        assert not lacks_log_probs(row.completion)
    # None was drawn where the text was cut off, nor a second one.
    for changes, number, terms in (({"finish_reason": "length"}, 3, TERMS), ({}, 4, ended)):
        one_more = {**text, **changes, "log_probs": [-1.0] * number}
        with pytest.raises(RefusedRow, match="give one for each"):
            to_row(one_more, terms)


def test_a_temperature_in_single_precision_is_the_runs():
    terms = replace(TERMS, temperature=0.7)
    assert to_row({**ROW, "temperature": float(np.float32(0.7))}, terms).reward == 1.0


HOSTILE = {
    "no prompt": ({"prompt": None}, "prompt"),
    "a prompt out of the vocabulary": ({"prompt": "?"}, "prompt"),
    "a prompt of another kind": ({"prompt": 3}, "prompt"),
    "an empty prompt": ({"prompt": None, "prompt_ids": []}, "prompt"),
    "a long prompt": ({"prompt": "abcdef"}, "prompt length"),
    "a held-out prompt": ({"prompt": "held"}, "held out"),
    "an unknown token": ({"token_ids": [3, 30, 0]}, "token ids"),
    "a negative token": ({"token_ids": [3, -1, 0]}, "token ids"),
    "tokens that are no numbers": ({"token_ids": "abc"}, "token ids"),
    "half a token": ({"token_ids": [3, 4.5, 0]}, "token ids"),
    "true as a token": ({"token_ids": [3, True, 0]}, "token ids"),
    "no token": ({"token_ids": [], "log_probs": []}, "completion"),
    "no completion": ({"token_ids": None}, "completion"),
    "a list as a text": ({"token_ids": None, "completion": ["a"]}, "completion"),
    "a long completion": ({"token_ids": [1] * 7, "log_probs": [-1.0] * 7}, "completion length"),
    "too few log-probs": ({"log_probs": [-1.0]}, "log_probs"),
    "a log-prob of NaN": ({"log_probs": [-1.0, float("nan"), -1.0]}, "log_probs"),
    "a log-prob of minus infinity": ({"log_probs": [-1.0, -np.inf, -1.0]}, "log_probs"),
    "a chance above 1": ({"log_probs": [-1.0, 0.5, -1.0]}, "log_probs"),
    "log-probs that are none": ({"log_probs": [-1.0, None, -1.0]}, "log_probs"),
    "log-probs as a text": ({"log_probs": "-1 -1 -1"}, "log_probs"),
    "a reward as a text": ({"reward": "1"}, "reward"),
    "an infinite reward": ({"reward": float("inf")}, "reward"),
    "another temperature": ({"temperature": 0.5}, "temperature"),
    "a temperature of NaN": ({"temperature": float("nan")}, "temperature"),
    "a version as a text": ({"version": "new"}, "version"),
    "a version below that of others": ({"version": -2}, "version"),
    "given up": ({"finish_reason": "abort"}, "finish_reason"),
    "another end": ({"finish_reason": "tired"}, "finish_reason"),
    "stretches beyond the end": ({"without_loss": [{"start": 1, "end": 4}]}, "without_loss"),
    "stretches without numbers": ({"without_loss": [{"start": "a", "end": 1}]}, "without_loss"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_wrong_row_is_refused_and_counted_by_its_reason(case):
    changes, reason = HOSTILE[case]
    log = read(ROW, {**ROW, **changes})
    assert log.refused == {reason: 1}
    assert (log.rows, log.accepted, log.remainder) == (2, 1, 1)
    assert log.examples[reason].startswith(f"{reason} (log:2: ")
    (label, count), *_ = log.counts()
    assert (count, f"{reason} (log:2" in label) == (1, True)


def test_a_log_without_a_row_to_learn_from_is_refused_with_the_first_of_each_reason():
    with pytest.raises(ValueError, match=r"none of 3 rows .*\n  2 refused: reward \(log:1: ''"):
        read({**ROW, "reward": ""}, {**ROW, "reward": "x"}, {})
    with pytest.raises(ValueError, match="none of 0 rows"):
        read()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*ROW, "without_loss", "version"]), values))
def test_no_row_does_anything_but_be_accepted_or_refused(columns):
    with suppress(RefusedRow):
        row = to_row({**ROW, **columns}, TERMS)
        assert len(row.completion.log_probs) == len(row.completion.token_ids) > 0


def test_repeats_are_left_out_unless_drawing_them_twice_is_likely():
    unlikely = {**ROW, "log_probs": [-30.0, -30.0, -0.5]}
    without = {**ROW, "log_probs": None}
    log = read(ROW, ROW, unlikely, unlikely, without, without)
    assert (log.repeats, log.accepted) == (2, 4)
    assert read(without, {**without, "id": 7}).repeats == 0


def test_our_own_files_come_back_as_the_same_groups(tmp_path):
    def sound(one: Experience) -> Experience:
        done = tuple(
            replace(each, temperature=0.7, finish_reason="stop", version_spans=())
            for each in one.group.completions
        )
        return replace(one, group=replace(one.group, completions=done))

    numbered = (experience(n, version=n % 5, problem=n) for n in range(60))
    whole = [x for x in numbered if all(len(c.token_ids) for c in x.group.completions)]
    groups = [replace(sound(x), problem=n) for n, x in enumerate(whole[:20])]
    # Again with the prompt of the first; and with a reward that was not judged.
    again = replace(groups[3].group, prompt_ids=groups[0].group.prompt_ids)
    groups.append(replace(groups[3], group=again, problem=0))
    groups[5] = replace(groups[5], rewards=np.array([np.nan, 1], np.float32))
    buffer = ReplayBuffer(Layout(2, 300), BufferLimits(), fifo, folder=tmp_path)
    buffer.insert(groups)
    buffer.flush()
    (file,) = tmp_path.glob("*.parquet")
    terms = LogTerms(group_size=2, encode_prompt=letters, encode=letters, temperature=0.7)
    log = read_log(read_parquet(file), terms)
    assert not log.refused
    assert repr(all_facts(log.experiences)) == repr(all_facts(groups))  # NaN is not equal to itself
    # A copy of the file beside it adds nothing.
    twice = read_log([*read_parquet(file), *read_parquet(file)], terms)
    assert (twice.repeats, twice.accepted) == (2 * len(groups), 2 * len(groups))
