"""Groups to put into buffers, and what it means that two are the same."""

import numpy as np

from ogrpo.batch import Batch
from ogrpo.data.replay import Experience, Layout
from ogrpo.protocol import Completion, Group, VersionSpan

G = 2
LAYOUT = Layout(group_size=G, vocab_size=300)


def loss_mask(number: int, g: int, length: int) -> np.ndarray | None:
    """None for most; for the others all False, all True, or anything between."""
    if number % 4 != 1:
        return None
    share = (0.0, 1.0, 0.5)[(number // 4 + g) % 3]
    return np.random.default_rng([number, g, 8]).random(length) < share


def experience(number: int, *, version: int = 0, problem: int | None = None, rewards=None):
    """A group that differs from those of other numbers in every field."""
    rng = np.random.default_rng([number, 7])

    def completion(g: int) -> Completion:
        length = int(rng.integers(0, 6))
        spans = (VersionSpan(version, 0, length), VersionSpan(version + 1, length, length))
        return Completion(
            token_ids=rng.integers(0, 300, length).astype(np.int32),
            log_probs=-rng.exponential(size=length).astype(np.float32),
            policy_version=version + g,
            temperature=float(rng.uniform(0.5, 1.5)),
            finish_reason=("stop", "length", "abort")[int(rng.integers(3))],
            version_spans=spans if number % 3 == 0 and g == 1 else (),
            loss_mask=loss_mask(number, g, length),
        )

    prompt = rng.integers(0, 300, int(rng.integers(1, 5))).astype(np.int32)
    given = rng.normal(size=G) if rewards is None else rewards
    return Experience(
        Group(prompt, tuple(completion(g) for g in range(G))),
        rewards=np.array(given, np.float32),
        problem=number if problem is None else problem,
    )


def check_same(found: Batch, expected: Batch) -> None:
    """The same arrays of the same types under the same names."""
    found_, expected_ = (
        {name: x for name, x in batch._asdict().items() if x is not None}
        for batch in (found, expected)
    )
    assert found_.keys() == expected_.keys()
    for name, array in found_.items():
        np.testing.assert_array_equal(array, expected_[name])
        assert array.dtype == expected_[name].dtype, name


def facts(one: Experience) -> tuple:
    """Everything that a group says, exactly, in a form that `==` compares."""
    return (
        one.group.prompt_ids.tolist(),
        [
            (
                c.token_ids.tolist(),
                c.log_probs.tolist(),
                c.policy_version,
                c.temperature,
                c.finish_reason,
                c.version_spans,
                c.carries_loss.tolist(),
            )
            for c in one.group.completions
        ],
        one.rewards.tolist(),
        one.problem,
    )
