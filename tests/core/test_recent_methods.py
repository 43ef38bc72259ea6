"""The methods of 2025 and 2026, from rewards to the gradient, against transcriptions of their sources.

Ragged masks, an empty completion, log-ratios of -5 and 5, and one completion that was not judged.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import ALGORITHMS, GATES, with_parts
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Along
from tests.core import reference

P, G, T = 2, 4, 6


@pytest.fixture(scope="module", autouse=True)
def _in_double_precision():
    with jax.enable_x64():
        yield


def case():
    rng = np.random.default_rng(12)
    old = -rng.uniform(0.3, 2.5, (P, G, T))
    lp, prox, ref = (np.minimum(old + rng.normal(0, 0.5, old.shape), -0.02) for _ in range(3))
    lp[0, 1, 0], old[0, 1, 0] = -5.5, -0.5
    lp[1, 0, 1], old[1, 0, 1] = -0.5, -5.5
    mask = np.arange(T) < rng.integers(2, T + 1, (P, G, 1))
    mask[1, 2] = False
    rewards = np.array([[1.0, 0.0, 0.5, 0.0], [0.25, 0.75, 1.0, 0.5]])
    return SimpleNamespace(lp=lp, old=old, prox=prox, ref=ref, mask=mask, rewards=rewards)


def centered(r, _):
    return r - r.mean()


def standardized(r, _):
    return (r - r.mean()) / np.sqrt(r.var() + 1e-6) if np.ptp(r) else r * 0


def bessel(r, _):
    return (r - r.mean()) / (r.std(ddof=1) + 1e-4)


def over_mean(r, _):
    return (r - r.mean()) / r.mean() if r.mean() > 0 else r * 0


def by_length(r, lengths):
    return r - (lengths * r).sum() / lengths.sum()


def of_pairs(r, _):
    """MaxPO for k = 2, by every pair."""
    n = len(r)
    having = [np.mean([max(r[i], r[j]) for j in range(n) if j != i]) for i in range(n)]
    pairs = [(i, j) for i in range(n) for j in range(i)]
    lacking = [np.mean([max(r[a], r[b]) for a, b in pairs if i not in (a, b)]) for i in range(n)]
    return 2 * (np.array(having) - lacking)


def passing_pairs(r, _):
    n = len(r)
    pairs = {(i, j): float(max(r[i], r[j]) > 0) for i in range(n) for j in range(i)}
    values = np.array([*pairs.values()])
    mine = [np.mean([v for p, v in pairs.items() if i in p]) for i in range(n)]
    return (np.array(mine) - values.mean()) / values.std() if values.std() > 0 else r * 0


def by_group(advantage):
    def credit(x, kept):
        out = np.zeros((P, G))
        for n in range(P):
            there = kept[n]
            out[n, there] = advantage(x.rewards[n, there], x.mask[n, there].sum(-1))
        return out

    return credit


def whitened(before):
    def credit(x, kept):
        values = by_group(before)(x, kept)
        lengths = np.where(kept, x.mask.sum(-1), 0)
        tokens = np.repeat(values.ravel(), lengths.ravel())
        return (values - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)

    return credit


def tokens(losses, mask):
    return losses[mask].sum() / mask.sum()


def sums(losses, mask):
    return losses[mask].sum() / mask.any(-1).sum()


CLIP = {"eps_low": 0.2, "eps_high": 0.2}
TRANSCRIBED = {
    "opo": (by_group(by_length), "reinforce", {}, sums),
    "maxrl": (by_group(over_mean), "reinforce", {}, sums),
    "maxpo": (by_group(of_pairs), "reinforce", {}, sums),
    "reinforce_pp": (whitened(lambda r, _: r), "grpo", CLIP, tokens),
    "reinforce_pp_baseline": (whitened(centered), "grpo", CLIP, tokens),
    "pass_at_k": (by_group(passing_pairs), "grpo", CLIP, tokens),
    "ctpo": (by_group(standardized), "ctpo", CLIP, tokens),
    "prime_rl": (by_group(centered), "prime_rl", {"low": 0.2, "high": 0.2, "coef": 1e-3}, tokens),
    "kl_cov": (by_group(bessel), "kl_cov", {"share": 2e-4, "coef": 1.0}, tokens),
    "distill": (by_group(centered), "distill", {"low": 0.2, "coef": 1e-3}, tokens),
    "m2po_released": (
        by_group(standardized),
        "m2po_released",
        {"threshold": 0.04, "eps_low": 0.3, "eps_high": 0.5},
        tokens,
    ),
}


def transcribed(x, entry, kept):
    """The loss and its gradient by central differences, stopped terms held."""
    credit, name, knobs, reduce = entry
    mask = x.mask & kept[..., None]
    spread = np.broadcast_to(credit(x, kept)[..., None], x.lp.shape)
    b = SimpleNamespace(A=spread, old=x.old, prox=x.prox, ref=x.ref, mask=mask)

    def loss(lp):
        return reduce(getattr(reference, name)(lp, x.lp, b, **knobs), mask)

    step, gradient = 1e-6, np.zeros(x.lp.shape)
    for i in map(tuple, np.argwhere(mask)):
        move = np.zeros(x.lp.shape)
        move[i] = step
        gradient[i] = (loss(x.lp + move) - loss(x.lp - move)) / (2 * step)
    return loss(x.lp), gradient


def ours(x, algorithm, rewards):
    fields = [jnp.asarray(a) for a in (x.old, x.prox, x.ref)]
    batch = TokenBatch(jnp.zeros(x.lp.shape), jnp.asarray(x.mask), *fields)
    known = Along(jnp.asarray(x.mask))
    return jax.value_and_grad(
        lambda lp: mean(algorithm(lp, batch, jnp.asarray(rewards), along=known))
    )(jnp.asarray(x.lp))


@pytest.mark.parametrize("judged", [True, False], ids=["all judged", "one not judged"])
@pytest.mark.parametrize("name", TRANSCRIBED)
def test_the_whole_method_is_its_source(name, judged):
    x = case()
    kept = np.ones((P, G), bool)
    kept[0, 2] = judged
    value, gradient = transcribed(x, TRANSCRIBED[name], kept)
    found = ours(x, ALGORITHMS[name], np.where(kept, x.rewards, np.nan))
    np.testing.assert_allclose(found[0], value, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found[1], gradient, rtol=2e-4, atol=2e-6)
    assert np.any(gradient)


def shut(x, name):
    """Which tokens a gate shuts, from its definition; of pi/mu."""
    delta = np.where(x.mask, x.lp - x.old, 0)
    count = np.maximum(x.mask.sum(-1, keepdims=True), 1)
    total = np.broadcast_to(delta.sum(-1, keepdims=True), delta.shape)
    negative = np.broadcast_to(centered_by_group(x)[..., None] < 0, delta.shape)
    return {
        "token": (np.exp(delta) < 0.5) | (np.exp(delta) > 5.0),
        "sequence": np.exp(total) > 3.0,
        "geometric": np.abs(total / count) > np.log(1.001),
        "negatives": negative & (-total / count > 0.1),
    }[name]


def centered_by_group(x):
    return x.rewards - x.rewards.mean(1, keepdims=True)


@pytest.mark.parametrize(
    "stack", [(name,) for name in GATES] + [("token", "sequence", "negatives")]
)
def test_gates_multiply_any_loss_and_their_tokens_still_count(stack):
    x = case()
    base = ALGORITHMS["dr_grpo"]
    base = with_parts(base, reduction="token")
    algorithm = with_parts(base, gate=stack)
    _, plain = ours(x, base, x.rewards)
    _, gradient = ours(x, algorithm, x.rewards)
    closed = np.any([shut(x, name) for name in stack], axis=0)
    np.testing.assert_allclose(gradient, np.where(closed, 0, plain), rtol=1e-9, atol=1e-12)
    title = ", ".join(["dr_grpo", "reduction token", *(f"gate {name}" for name in stack)])
    assert algorithm.title(algorithm.settings({})) == title
    assert {n for g in stack for n in GATES[g].knobs} <= set(algorithm.knobs)


def test_beside_a_weight_gates_look_at_what_came_before_the_update_but_for_negatives():
    x = case()
    far = np.where(x.mask, x.prox - x.old, 0).sum(-1)
    stack = with_parts(ALGORITHMS["reinforce"], weight="truncated", gate=("sequence",))
    plain = with_parts(ALGORITHMS["reinforce"], weight="truncated")
    closed = np.exp(far) > 3.0
    assert 0 < closed.sum() < closed.size
    expected = np.where(closed[..., None], 0, ours(x, plain, x.rewards)[1])
    np.testing.assert_allclose(ours(x, stack, x.rewards)[1], expected, rtol=1e-9)
    with pytest.raises(ValueError, match="name each once"):
        with_parts(plain, gate=("token", "token"))
    with pytest.raises(ValueError, match="there is no gate 'best'"):
        with_parts(plain, gate=("best",))
