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
from tests.core.cases import slopes

P, G, T = 2, 4, 6
KEY = jax.random.key(5)


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
    kept = {"H": rng.uniform(0, 2, old.shape), "mask": mask, "rewards": rewards}
    return SimpleNamespace(lp=lp, old=old, prox=prox, ref=ref, **kept)


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
    "sequence_tis": (by_group(bessel), "sequence_tis", {"high": 2.0}, tokens),
    "clip_cov": (
        by_group(bessel),
        "clip_cov",
        {**CLIP, "share": 0.2, "cov_low": -0.5, "cov_high": 1.5},
        tokens,
    ),
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
    lots = np.asarray(jax.random.uniform(jax.random.fold_in(KEY, 1), x.lp.shape))
    b = SimpleNamespace(A=spread, old=x.old, prox=x.prox, ref=x.ref, mask=mask, lots=lots)

    def loss(lp):
        return reduce(getattr(reference, name)(lp, x.lp, b, **knobs), mask)

    return loss(x.lp), slopes(loss, x.lp, mask)


def ours(x, algorithm, rewards, knobs=None):
    fields = [jnp.asarray(a) for a in (x.old, x.prox, x.ref)]
    batch = TokenBatch(
        jnp.zeros(x.lp.shape), jnp.asarray(x.mask), *fields, entropy=jnp.asarray(x.H)
    )
    known, rewards = Along(jnp.asarray(x.mask)), jnp.asarray(rewards)
    return jax.value_and_grad(lambda lp: mean(algorithm(lp, batch, rewards, knobs, KEY, known)))(
        jnp.asarray(x.lp)
    )


@pytest.mark.parametrize("judged", [True, False], ids=["all judged", "one not judged"])
@pytest.mark.parametrize("name", TRANSCRIBED)
def test_the_whole_method_is_its_source(name, judged):
    x = case()
    kept = np.ones((P, G), bool)
    kept[0, 2] = judged
    value, gradient = transcribed(x, TRANSCRIBED[name], kept)
    numbers = TRANSCRIBED[name][2]
    found = ours(x, ALGORITHMS[name], np.where(kept, x.rewards, np.nan), numbers)
    np.testing.assert_allclose(found[0], value, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found[1], gradient, rtol=2e-4, atol=2e-6)
    assert np.any(gradient)


def shut(x, name):
    """Which tokens a gate shuts, from its definition; of pi/mu."""
    delta = np.where(x.mask, x.lp - x.old, 0)
    count = np.maximum(x.mask.sum(-1, keepdims=True), 1)
    total = np.broadcast_to(delta.sum(-1, keepdims=True), delta.shape)
    k3 = (np.exp(delta) - 1 - delta).sum(-1, keepdims=True)
    negative = np.broadcast_to(centered_by_group(x)[..., None] < 0, delta.shape)
    return {
        "token": (np.exp(delta) < 0.5) | (np.exp(delta) > 5.0),
        "sequence": np.exp(total) > 3.0,
        "geometric": np.abs(total / count) > np.log(1.001),
        "negatives": negative & (-total / count > 0.1),
        "k3": np.broadcast_to(k3 / count > 0.01, delta.shape),
        "top_entropy": np.quantile(x.H[x.mask], 0.8) > x.H,
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


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("groups", [(2, 4), (5, 1)], ids=["groups of four", "groups of one"])
def test_the_entropy_bonus_is_their_formula_down_to_the_logits(groups, share):
    """verl's `policy_loss - coef * agg_loss(entropy)`, behind TRL's mask by quantile."""
    rng, (n, g, t, v) = np.random.default_rng(1), (*groups, 4, 5)
    scores, ids = rng.normal(0, 1.5, (n, g, t, v)), rng.integers(0, v, (n, g, t, 1))
    mask = np.arange(t) < rng.integers(1, t + 1, (n, g, 1))
    mask[0, 0], mask[1, 0] = True, False
    rewards = rng.normal(size=(n, g))

    def policy(z, np=np):
        z = z - np.log(np.exp(z).sum(-1, keepdims=True))
        return np.take_along_axis(z, ids, -1)[..., 0], -(np.exp(z) * z).sum(-1)

    old = policy(scores)[0] + rng.normal(0, 0.3, (n, g, t))
    old[0, 0, :2] = policy(scores)[0][0, 0, :2] + [5.0, -5.0]
    least = -np.inf if share is None else np.quantile(policy(scores)[1][mask], 1 - share)
    kept = policy(scores)[1] >= least

    def expected(z):
        lp, entropy = policy(z)
        rho, a = np.exp(lp - old), rewards[..., None]
        losses = -np.minimum(rho * a, np.clip(rho, 0.8, 1.2) * a) * kept
        return (losses - 0.03 * entropy)[mask].sum() / mask.sum()

    gates = () if share is None else ("top_entropy",)
    method = with_parts(ALGORITHMS["grpo"], advantage="raw", reduction="token", gate=gates)
    method = with_parts(method, bonus="entropy")
    knobs = {"beta": 0.0, "entropy_coef": 0.03} | ({"top_share": share} if share else {})
    empty = TokenBatch(jnp.zeros(old.shape), jnp.asarray(mask), jnp.asarray(old))

    def total(z):
        lp, entropy = policy(z, jnp)
        return mean(method(lp, empty._replace(entropy=entropy), jnp.asarray(rewards), knobs))

    value, gradient = jax.value_and_grad(total)(jnp.asarray(scores))
    np.testing.assert_allclose(value, expected(scores), rtol=1e-9)
    np.testing.assert_allclose(gradient, slopes(expected, scores), rtol=1e-5, atol=1e-8)
    with pytest.raises(ValueError, match="reads entropy, and the batch has none"):
        method(policy(jnp.asarray(scores), jnp)[0], empty, jnp.asarray(rewards), knobs)


@pytest.mark.parametrize("groups", [(2, 4), (5, 1)], ids=["groups of four", "groups of one"])
def test_whitened_generalised_advantages_are_verls_and_their_returns_are_not_whitened(groups):
    """`compute_gae_advantage_return` of verl 0.9.1, and both losses, from rewards on."""
    rng, (n, g, t) = np.random.default_rng(2), (*groups, 5)
    mask = np.arange(t) < rng.integers(1, t + 1, (n, g, 1))
    mask[1, 0] = False
    rewards, values = rng.normal(size=(n, g)), rng.normal(size=(n, g, t))
    lp = -rng.uniform(0.5, 2, (n, g, t))
    old = lp + rng.normal(0, 0.3, lp.shape)
    old[0, 0, 0] = lp[0, 0, 0] + 5.0
    gamma, lam = 0.9, 0.8
    advantages = np.zeros((n, g, t))
    for i in np.ndindex(n, g):
        length, ahead, trace = mask[i].sum(), 0.0, 0.0
        for k in reversed(range(length)):
            earned = rewards[i] if k == length - 1 else 0.0
            trace = earned + gamma * ahead - values[i][k] + gamma * lam * trace
            advantages[i][k], ahead = trace, values[i][k]
    returns, seen = advantages + values, advantages[mask]
    white = (advantages - seen.mean()) / np.sqrt(seen.var(ddof=1) + 1e-8)
    now = values + 0.1 * rng.normal(size=values.shape)

    def expected(x, v):
        rho = np.exp(x - old)
        losses = -np.minimum(rho * white, np.clip(rho, 0.8, 1.2) * white) + (v - returns) ** 2
        return losses[mask].sum() / mask.sum()

    ppo = with_parts(ALGORITHMS["ppo"], whiten="tokens")
    known = Along(jnp.asarray(mask), values=jnp.asarray(values))
    batch = TokenBatch(jnp.zeros(lp.shape), jnp.asarray(mask), jnp.asarray(old))
    knobs = {"discount": gamma, "decay": lam}

    def total(x, v):
        return mean(ppo(x, batch, jnp.asarray(rewards), knobs, along=known, values=v))

    value, found = jax.value_and_grad(total, (0, 1))(jnp.asarray(lp), jnp.asarray(now))
    np.testing.assert_allclose(value, expected(lp, now), rtol=1e-9)
    np.testing.assert_allclose(found[0], slopes(lambda x: expected(x, now), lp), atol=1e-8)
    np.testing.assert_allclose(found[1], slopes(lambda v: expected(lp, v), now), atol=1e-8)
    title = "ppo, whiten tokens, discount 0.9, decay 0.8"
    assert ppo.title(ppo.settings(knobs)) == title
