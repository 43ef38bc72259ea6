"""Old completions as drafts: the law that comes out, summed over drafts, uniforms and redraws."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import drafts

V, T, EOS = 3, 3, 2
EDGE = 1e-9
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


def log(x):
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.log(x))


def kept_law(new, old, draft):
    """Chances of keeping 0, 1, ... tokens of a draft: `kept_tokens` at the ends of each interval.

    It is constant between 0, p(x_t)/q(x_t) and 1, so that both ends of both intervals are enough.
    """
    pairs = [(new[draft[:t]][x], old[draft[:t]][x]) for t, x in enumerate(draft)]
    cells = []
    for p, q in pairs:
        edge = min(1, p / q)
        ends = [(0.0, edge / 2), (edge - EDGE, edge / 2), (edge + EDGE, (1 - edge) / 2)]
        cells.append([x for x in [*ends, (1 - EDGE, (1 - edge) / 2)] if x[1] > 0])
    grid = np.array([*itertools.product(*cells)])  # [C, L, 2]
    p, q = (np.broadcast_to(x, grid.shape[:2]) for x in zip(*pairs, strict=True))
    everywhere = jnp.ones(grid.shape[:2], bool)
    kept = drafts.kept_tokens(log(p), log(q), jnp.asarray(grid[..., 0]), everywhere)
    return np.bincount(kept, weights=grid[..., 1].prod(1), minlength=len(draft) + 1)


def continued_law(new, old, length, after=drafts.residual_log_probs):
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
            other = jnp.full(V, -jnp.inf) if whole else log(old[start])
            following = np.exp(after(log(new[start]), other))
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
    assert abs(sum(law.values()) - 1) < 1e-7
    for completion, chance in law.items():
        assert abs(chance - expected.get(completion, 0)) < 1e-7
    before = law_of(old, T)
    assert max(abs(before.get(x, 0) - p) for x, p in expected.items()) > 0.05


def test_drafts_of_the_same_policy_are_kept_whole():
    """Theorem Drafts.same_never_rejected; where rounding rejects, the token is the policy's."""
    policy = make_policy(3, 0.5)
    for draft in law_of(policy, T):
        np.testing.assert_array_equal(kept_law(policy, policy, draft)[:-1], 0)
    row = log(policy[()])
    np.testing.assert_allclose(drafts.residual_log_probs(row, row), row)


def test_a_token_that_the_policy_never_draws_is_rejected_and_one_that_q_never_draws_is_kept():
    p, q = jnp.array([0.0, 0.0, 0.4, 0.4]), jnp.array([0.5, 0.0, 0.0, 0.8])
    zeros, mask = jnp.zeros((4, 1)), jnp.ones((4, 1), bool)
    kept = drafts.kept_tokens(log(p)[:, None], log(q)[:, None], zeros, mask)
    assert kept.tolist() == [0, 0, 1, 1]
    assert drafts.kept_tokens(zeros, zeros, zeros, ~mask).tolist() == [0] * 4
    nothing = drafts.kept_tokens(zeros * jnp.nan, zeros, zeros, mask)
    assert nothing.tolist() == [0] * 4


def test_what_follows_a_rejection_is_precise_where_the_policies_hardly_differ():
    """Against the definition, with p - q exact: of order 1e-9, where rounding leaves 7 digits."""
    base = np.array([0.2, 0.3, 0.5])
    shift = np.array([2.0, -3.0, 1.0]) * 1e-9
    law = np.exp(drafts.residual_log_probs(log(base + shift), log(base)))
    np.testing.assert_allclose(law, [2 / 3, 0, 1 / 3], atol=1e-6)


def test_refuted_a_redraw_from_the_policy_has_its_law():
    """Theorem Drafts.redraw_is_biased: .75 for .5."""
    new, old = {(): np.array([0.5, 0.5])}, {(): np.array([1.0, 0.0])}
    kept = kept_law(new, old, (0,))[1]
    assert kept == 0.5
    assert kept + (1 - kept) * new[()][0] == 0.75
    residual = np.exp(drafts.residual_log_probs(log(new[()]), log(old[()])))
    assert kept + (1 - kept) * residual[0] == 0.5


def test_refuted_weights_trained_on_a_draft_get_their_law_from_it():
    """Each draft of a fair coin raises its own chance to .8: it is kept always, not with .8."""
    old = {(): np.array([0.5, 0.5])}
    for x in range(2):
        new = {(): np.where(np.arange(2) == x, 0.8, 0.2)}
        assert kept_law(new, old, (x,))[1] == 1
