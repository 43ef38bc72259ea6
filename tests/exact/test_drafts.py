"""Old completions as drafts: the law that comes out, summed over drafts and what follows them.

Token x of a draft of q is kept with chance min(1, p(x)/q(x)); in place of the first that is
rejected a token is drawn from (p - q)+ / sum (p - q)+ (arXiv:2211.17192, arXiv:2302.01318).
"""

import itertools

import numpy as np
import pytest

V, T, EOS = 3, 3, 2
PREFIXES: list[tuple[int, ...]] = [
    x for n in range(T) for x in itertools.product(range(EOS), repeat=n)
]


def make_policy(seed, zeros):
    """Next-token laws after each prefix without an end, some tokens impossible."""
    rng = np.random.default_rng(seed)
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for prefix in PREFIXES:
        weights = rng.dirichlet(np.ones(V))
        weights[rng.integers(V)] *= rng.random() > zeros
        tables[prefix] = weights / weights.sum()
    return tables


def law_of(policy, length, start: tuple[int, ...] = ()) -> dict[tuple[int, ...], float]:
    """Completion -> chance, of those that begin with `start`, given it."""
    if len(start) == length or EOS in start:
        return {start: 1.0}
    law = {}
    for token, chance in enumerate(policy[start]):
        if chance:
            rest = law_of(policy, length, (*start, token))
            law |= {x: chance * p for x, p in rest.items()}
    return law


def kept_law(new, old, draft):
    """Chances that 0, 1, ... tokens of a draft of `old` are kept."""
    stays = [min(1, new[draft[:t]][x] / old[draft[:t]][x]) for t, x in enumerate(draft)]
    return np.cumprod([1, *stays]) * (1 - np.array([*stays, 0]))


def residual_law(p, q):
    """Law of the token after a rejection; p where nothing is rejected but by rounding."""
    excess = np.maximum(p - q, 0)
    return excess / excess.sum() if excess.any() else p


def continued_law(new, old, length):
    """The law of completions of `new` continued from drafts of `old` of at most so many tokens."""
    law: dict[tuple[int, ...], float] = dict.fromkeys(
        itertools.chain(law_of(new, T), law_of(old, T)), 0.0
    )
    for draft, drawn in law_of(old, length).items():
        for kept, chance in enumerate(kept_law(new, old, draft)):
            start, whole = draft[:kept], kept == len(draft)
            if not chance:
                continue
            if whole and (EOS in draft or len(draft) == T):
                law[draft] += drawn * chance
                continue
            following = new[start] if whole else residual_law(new[start], old[start])
            for token in np.flatnonzero(following):
                for x, p in law_of(new, T, (*start, int(token))).items():
                    law[x] = law.get(x, 0) + drawn * chance * following[token] * p
    return law


@pytest.mark.parametrize("length", [T, T - 1])
@pytest.mark.parametrize("seed", range(6))
def test_completions_continued_from_drafts_have_the_policys_law(seed, length):
    """Theorem Drafts.draft_law, token by token; tokens impossible under either policy included."""
    new, old = make_policy(seed, 0.5), make_policy(100 + seed, 0.5)
    law, expected = continued_law(new, old, length), law_of(new, T)
    assert abs(sum(law.values()) - 1) < 1e-12
    for completion, chance in law.items():
        assert abs(chance - expected.get(completion, 0)) < 1e-12
    before = law_of(old, T)
    assert max(abs(before.get(x, 0) - p) for x, p in expected.items()) > 0.05


def test_drafts_of_the_same_policy_are_kept_whole():
    """Theorem Drafts.same_never_rejected; where rounding rejects, the token is the policy's."""
    policy = make_policy(3, 0.5)
    for draft in law_of(policy, T):
        np.testing.assert_array_equal(kept_law(policy, policy, draft)[:-1], 0)
    row = policy[()]
    np.testing.assert_array_equal(residual_law(row, row), row)


def test_refuted_a_redraw_from_the_policy_has_its_law():
    """Theorem Drafts.redraw_is_biased: .75 for .5."""
    new, old = {(): np.array([0.5, 0.5])}, {(): np.array([1.0, 0.0])}
    kept = kept_law(new, old, (0,))[1]
    assert kept == 0.5
    assert kept + (1 - kept) * new[()][0] == 0.75
    assert kept + (1 - kept) * residual_law(new[()], old[()])[0] == 0.5


def test_refuted_weights_trained_on_a_draft_get_their_law_from_it():
    """Each draft of a fair coin raises its own chance to .8: it is kept always, not with .8."""
    old = {(): np.array([0.5, 0.5])}
    for x in range(2):
        new = {(): np.where(np.arange(2) == x, 0.8, 0.2)}
        assert kept_law(new, old, (x,))[1] == 1
