"""Whole methods, from rewards to the gradient, against transcriptions of their sources.

Those of `docs/names.md`: the formulas of verl 0.9, Trinity-RFT 0.6 and Tunix, their losses by token those of
`tests.core.reference` with their numbers. TRL's own code is run instead: `tests/parity/trl/test_trl_names.py`.
Those of 2025 and 2026: the papers'. All on ragged masks, an empty completion, log-ratios of -5 and 5, and one
completion that was not judged.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import ADVANTAGES, ALGORITHMS, GATES, REDUCTIONS, with_parts
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Trajectory
from tests import names
from tests.core import reference
from tests.core.cases import arrays, of_sets, slopes
from tests.exact.conftest import float64  # noqa: F401

pytestmark = pytest.mark.slow

P, G, LENGTH = 2, 4, 8
KEY = jax.random.key(5)
EVERY = np.ones((P, G), bool)
ROWS = [row for row in names.rows() if row.ours and not row.project.startswith("TRL")]
METHODS = [row for row in ROWS if row.ours.split(",")[0] in ALGORITHMS]
PARTS = [row for row in ROWS if row not in METHODS]


def case():
    """`old` is the trainer's at the start of the update, `mu` the engine's; all edges bind."""
    x = arrays(148, spread=0.8)
    x.mu, x.prox = x.prox, x.old
    x.lp[0, 1, 0], x.old[0, 1, 0] = -5.5, -0.5
    x.lp[1, 0, 0], x.old[1, 0, 0] = -0.5, -5.5
    x.rewards = np.array([[1.0, 0.0, 0.5, 0.0], [0.25, 0.75, 1.0, 0.5]])
    x.uniforms = np.asarray(jax.random.uniform(jax.random.fold_in(KEY, 1), x.lp.shape))
    return x


# Advantages (x, kept) -> [P, G], of groups as they have them but for 1e-4, where they add 1e-6.
def by_group(advantage):
    """Lifts a formula of one group's rewards and lengths to batches; completions not judged are left out."""

    def credit(x, kept=EVERY):
        out = np.zeros((P, G))
        for n in range(P):
            there = kept[n]
            out[n, there] = advantage(x.rewards[n, there], x.mask[n, there].sum(-1))
        return out

    return credit


def whitened(before):
    def credit(x, kept=EVERY):
        values, lengths = before(x, kept), np.where(kept, x.mask.sum(-1), 0)
        each = np.repeat(values.ravel(), lengths.ravel())
        scaled = (values - each.mean()) / np.sqrt(each.var(ddof=1) + 1e-8)
        return np.where(lengths > 0, scaled, 0)

    return credit


def best_of_pairs(r, _):
    having, lacking, _ = of_sets(r, 2)
    return 2 * (having - lacking)


def passing_pairs(r, _):
    having, _, values = of_sets((r > 0).astype(float), 2)
    return (having - values.mean()) / values.std() if values.std() > 0 else r * 0


raw = by_group(lambda r, _: r)
centered = by_group(lambda r, _: r - r.mean())
bessel = by_group(lambda r, _: (r - r.mean()) / (r.std(ddof=1) + 1e-4))
population = by_group(lambda r, _: (r - r.mean()) / np.sqrt(r.var() + 1e-6))
others = by_group(lambda r, _: r - (r.sum() - r) / (len(r) - 1))
lowered = by_group(lambda r, _: r - (r.mean() - 0.1))
weighted = by_group(lambda r, _: (r - r.mean()) * np.exp(r - r.mean()))
over_mean = by_group(lambda r, _: (r - r.mean()) / r.mean())
by_length = by_group(lambda r, n: r - (n * r).sum() / n.sum())
softmax = by_group(lambda r, _: r - np.log(np.exp(r).mean()))


# Reductions.
def tokens(losses, mask):
    return losses[mask].sum() / mask.sum()


def sequences(losses, mask):
    lengths = np.maximum(mask.sum(-1, keepdims=True), 1)
    return tokens(losses / lengths, mask) * mask.sum() / mask.any(-1).sum()


def sequence_sums(losses, mask):
    return losses[mask].sum() / mask.any(-1).sum()


def fixed(losses, mask):
    return sequence_sums(losses, mask) / LENGTH


# Losses by token, (lp, held, batch) -> [P, G, T], and what is added to them or multiplied.
EPS = {"eps_low": 0.2, "eps_high": 0.2}
reinforce, kl_cov = reference.reinforce, partial(reference.kl_cov, share=2e-4, coef=1.0)
ppo, wide = (partial(reference.grpo, eps_low=0.2, eps_high=high) for high in (0.2, 0.28))
dual = partial(reference.dual_clip, **EPS, dual=3.0)
gspo = partial(reference.gspo, **EPS)
narrow = partial(reference.gspo, eps_low=3e-4, eps_high=4e-4)
dppo = {"low": 0.2, "high": 0.2, "cap": 3.0}
sapo = partial(reference.sapo, temperature_pos=1.0, temperature_neg=1.05)
halved = partial(reference.opmd_min, tau=1.0)
squared = partial(reference.opmd_kimi, coef=0.1)
clip_cov = partial(reference.clip_cov, **EPS, share=0.2, cov_low=-0.5, cov_high=1.5)
m2po_released = partial(reference.m2po_released, threshold=0.04, eps_low=0.3, eps_high=0.5)
RECS = {
    "none": {"none": reinforce},
    **{
        clip: {
            "none": partial(getattr(reference, name), **knobs),
            "importance_sampling": partial(getattr(reference, f"{name}_is"), **knobs),
        }
        for clip, name, knobs in (
            ("one-side", "rec_one_side", EPS),
            ("two-side", "rec_two_side", EPS),
            ("ring", "rec_ring", {**EPS, "outer_low": 0.6, "outer_high": 2.0}),
        )
    },
}


def negatives_masked(lp, held, b):
    lengths = np.maximum(b.mask.sum(-1, keepdims=True), 1)
    drift = ((b.old - held) * b.mask).sum(-1, keepdims=True) / lengths
    return dual(lp, held, b) * ~((b.A < 0) & (drift > 0.1))


def with_kl(loss, kind, beta):
    kls = {"k1": lambda d: -d, "k2": lambda d: d**2 / 2, "k3": lambda d: np.exp(d) - d - 1}
    return lambda lp, held, b: loss(lp, held, b) + beta * kls[kind](b.ref - lp)


def trinity(loss):
    return with_kl(loss, "k2", 0.001)


def weighed(loss, weight):
    return lambda lp, held, b: loss(lp, held, b) * weight((b.old - b.mu) * b.mask)


def token_weight(d):
    return np.minimum(np.exp(d), 2.0)


def sequence_weight(d):
    return np.minimum(np.exp(d.sum(-1, keepdims=True)), 2.0)


def icepop(d):
    return np.where((np.exp(d) >= 0.5) & (np.exp(d) <= 5.0), np.exp(d), 0.0)


truncated = weighed(ppo, token_weight)
FORMULAS = {
    ("verl 0.9", "loss_mode"): {
        "vanilla": (bessel, dual, tokens),
        "dppo_tv": (bessel, partial(reference.dppo_tv, **dppo), tokens),
        "dppo_kl": (bessel, partial(reference.dppo_kl, **dppo), tokens),
        "gspo": (bessel, gspo, tokens),
        "sapo": (bessel, sapo, sequences),
        "gpg": (bessel, reinforce, tokens),
        "geo_mean": (bessel, partial(reference.gmpo, **EPS), sequences),
        "kl_cov": (bessel, kl_cov, tokens),
        "dro": (bessel, squared, tokens),
        "cispo": (bessel, partial(reference.cispo, low=0.8, high=1.2), tokens),
        "bypass_mode": (bessel, dual, tokens),
        "entropy_coeff=0.001": (
            bessel,
            lambda lp, held, b: dual(lp, held, b) - 0.001 * b.H,
            tokens,
        ),
    },
    ("verl 0.9", "rollout_correction"): {
        "decoupled_token_is": (bessel, weighed(dual, token_weight), tokens),
        "decoupled_seq_is": (bessel, weighed(dual, sequence_weight), tokens),
        "decoupled_token_icepop": (bessel, weighed(dual, icepop), tokens),
        "bypass_ppo_clip": (bessel, dual, tokens),
        "bypass_pg_is": (bessel, partial(reference.sequence_tis, high=2.0), tokens),
        "bypass_pg_token_icepop": (
            bessel,
            lambda lp, held, b: -icepop(held - b.old) * b.A * lp,
            tokens,
        ),
        "disabled": (bessel, dual, tokens),
    },
    ("Trinity-RFT 0.6", "algorithm_type"): {
        "grpo": (bessel, trinity(dual), tokens),
        "grpo_verl": (bessel, trinity(dual), tokens),
        "dapo": (bessel, dual, tokens),
        "rloo": (others, trinity(dual), tokens),
        "opmd": (centered, trinity(halved), tokens),
        "asymre": (lowered, halved, tokens),
        "topr": (raw, trinity(reference.topr_token), tokens),
        "cispo": (bessel, trinity(partial(reference.cispo, low=0.0, high=1.28)), tokens),
        "gspo": (bessel, trinity(narrow), tokens),
        "sppo": (centered, reference.sppo, tokens),
        "rec": (centered, trinity(reinforce), tokens),
        "m2po": (bessel, partial(reference.m2po, threshold=0.04), tokens),
    },
    ("Trinity-RFT 0.6", "policy_loss_fn"): {
        "enable_sequence_masking=True": (bessel, trinity(negatives_masked), tokens),
    },
    ("Trinity-RFT 0.6", "rec"): {
        **{
            f'clip_mode="{clip}", weight="{weight}"': (centered, loss, tokens)
            for clip, losses in RECS.items()
            for weight, loss in losses.items()
        },
        'clip_mode="one-side", weight="importance_sampling", std_normalize=True': (
            population,
            RECS["one-side"]["importance_sampling"],
            tokens,
        ),
        'regularizer="k2", regularizer_coef=0.1': (centered, squared, tokens),
        'regularizer="forward-kl", regularizer_coef=0.1': (
            centered,
            lambda lp, held, b: -(b.A + 0.1) * lp,
            tokens,
        ),
        'weight="advantage", temp=1.0': (weighted, reinforce, tokens),
    },
    ("Tunix, 22 August 2026", "configurations"): {
        "GRPOConfig()": (bessel, with_kl(ppo, "k1", 0.04), sequences),
        'GRPOConfig(kl_loss_mode="low_var_kl")': (bessel, with_kl(ppo, "k3", 0.04), sequences),
        'GRPOConfig(loss_algo="gspo-token")': (bessel, with_kl(gspo, "k1", 0.04), sequences),
        "GRPOConfig(epsilon_c=3.0)": (bessel, with_kl(dual, "k1", 0.04), sequences),
        'GRPOConfig(sampler_is="token")': (bessel, with_kl(truncated, "k1", 0.04), sequences),
        "DAPOConfig()": (bessel, wide, tokens),
        "DrGRPOConfig()": (centered, with_kl(ppo, "k1", 0.04), fixed),
    },
}
UNSTATED = {
    # What is counted differs.
    *("raft", "decoupled_geo_rs", "decoupled_seq_is_rs", "decoupled_geo_rs_seq_tis"),
    *("decoupled_geo_rs_token_tis", "bypass_ppo_clip_geo_rs", "bypass_pg_geo_rs"),
    *("bypass_pg_geo_rs_token_tis", "bypass_pg_geo_rs_seq_tis", "decoupled_k3_rs"),
    *("decoupled_k3_rs_seq_tis", "decoupled_k3_rs_token_tis", "bypass_ppo_clip_k3_rs"),
    *("clip_cov", 'drop="balance"'),  # drawn
    "reinforceplusplus",  # its advantage is stated below
    *("gae", "ppo"),  # they read values: the last test
}


def stated(row):
    return FORMULAS.get((row.project, row.table), {}).get(row.theirs)


def test_every_method_has_a_formula():
    assert {row.theirs for row in METHODS if stated(row) is None} == UNSTATED
    known = {(row.project, row.table, row.theirs) for row in METHODS}
    assert {(*table, name) for table, named in FORMULAS.items() for name in named} <= known


def theirs(x, formula, kept=EVERY):
    """The loss and its gradient by central differences, stopped terms held."""
    credit, loss, reduce = formula
    mask = x.mask & kept[..., None]
    spread = np.broadcast_to(credit(x, kept)[..., None], x.lp.shape)
    b = SimpleNamespace(**{**vars(x), "A": spread, "mask": mask})

    def total(lp):
        return reduce(loss(lp, x.lp, b), mask)

    return total(x.lp), slopes(total, x.lp, mask)


def ours(x, algorithm, knobs=None, kept=EVERY, engine="old"):
    fields = map(jnp.asarray, (vars(x)[engine], x.prox, x.ref))
    batch = TokenBatch(jnp.zeros(x.lp.shape), jnp.asarray(x.mask), *fields)
    batch = batch._replace(entropy=jnp.asarray(x.H))
    known = Trajectory(jnp.asarray(x.mask))
    rewards = jnp.asarray(np.where(kept, x.rewards, np.nan))

    def total(lp):
        return mean(algorithm(lp, batch, rewards, knobs, KEY, known))

    return jax.value_and_grad(total)(jnp.asarray(x.lp))


def titled(x, title, kept=EVERY):
    algorithm, overrides = names.build(title)
    engine = "mu" if " weight " in title else "old"
    return ours(x, algorithm, names.settings(algorithm, overrides, LENGTH), kept, engine)


PAPERS = {
    "opo": (by_length, reinforce, sequence_sums),
    "maxrl": (over_mean, reinforce, sequence_sums),
    "maxpo": (by_group(best_of_pairs), reinforce, sequence_sums),
    "reinforce_pp": (whitened(raw), ppo, tokens),
    "reinforce_pp_baseline": (whitened(centered), ppo, tokens),
    "pass_at_k": (by_group(passing_pairs), ppo, tokens),
    "ctpo": (population, partial(reference.ctpo, **EPS), tokens),
    "prime_rl": (centered, partial(reference.prime_rl, low=0.2, high=0.2, coef=1e-3), tokens),
    "kl_cov": (bessel, kl_cov, tokens),
    "distill": (centered, partial(reference.distill, low=0.2, coef=1e-3), tokens),
    "sequence_tis": (bessel, partial(reference.sequence_tis, high=2.0), tokens),
    "clip_cov, share 0.2, cov_low -0.5, cov_high 1.5": (bessel, clip_cov, tokens),
    "m2po_released": (population, m2po_released, tokens),
}
SOURCES = {
    f"{row.project} {row.theirs}, {row.ours}": (row.ours, stated(row))
    for row in METHODS
    if stated(row)
}
SOURCES |= {title: (title, formula) for title, formula in PAPERS.items()}


@pytest.mark.parametrize("source", SOURCES)
def test_the_whole_method_is_its_source(source):
    """One completion of the first group was not judged, all of the second were."""
    x, kept, (title, formula) = case(), EVERY.copy(), SOURCES[source]
    kept[0, 2] = False
    (value, gradient), actual = theirs(x, formula, kept), titled(x, title, kept)
    np.testing.assert_allclose(actual[0], value, rtol=1e-9)
    np.testing.assert_allclose(actual[1], gradient, rtol=1e-5, atol=1e-8)
    assert np.any(gradient)


def test_trinitys_topr_and_asymre_and_dapo_are_not_the_papers():
    x = case()
    for row, method in (("topr", "topr, reduction token"), ("asymre", "asymre"), ("dapo", "dapo")):
        formula = FORMULAS["Trinity-RFT 0.6", "algorithm_type"][row]
        assert not np.allclose(theirs(x, formula)[1], titled(x, method)[1], rtol=1e-3)


def test_trinitys_sapo_is_not_the_papers():
    """Of ratio 1, where ours is the paper's."""
    x = case()
    x.old = x.prox = x.mu = x.lp
    detached = (bessel, lambda lp, held, b: sapo(held, held, b) * lp, tokens)
    _, actual = titled(x, "sapo, advantage group_standardized_bessel, reduction token")
    np.testing.assert_allclose(actual, theirs(x, (bessel, sapo, tokens))[1], rtol=1e-5, atol=1e-8)
    t = np.where(bessel(x) > 0, 1.0, 1.05)[..., None]
    np.testing.assert_allclose(theirs(x, detached)[1], actual * 2 / t, rtol=1e-5, atol=1e-8)


THEIR_REDUCTIONS = {
    "token-mean": tokens,
    "seq-mean-token-sum": sequence_sums,
    **dict.fromkeys(("seq-mean-token-mean", "sequence-mean-token-mean"), sequences),
    **dict.fromkeys(("seq-mean-token-sum-norm", "sequence-mean-token-scale"), fixed),
}
BY_LENGTH = {"whitened", "group_whitened", "length_weighted"}
THEIR_ADVANTAGES = {
    **dict.fromkeys(("grpo", "grpo_verl", "grpo_vectorized"), bessel),
    **dict.fromkeys(("gpg", "drgrpo", "opmd", "opmd_verl", "rec"), centered),
    "norm_adv_by_std_in_grpo=False": centered,
    **dict.fromkeys(("rloo", "rloo_vectorized"), others),
    'std_cal_level="batch"': lambda x: centered(x) / (x.rewards.std(ddof=1) + 1e-4),
    "reinforce": raw,
    'opmd_baseline="logavgexp"': softmax,
    **dict.fromkeys(("asymre", "asymre_verl"), lowered),
    **dict.fromkeys(("reinforce_plus_plus", "reinforceplusplus"), whitened(raw)),
    "reinforce_plus_plus_baseline": whitened(centered),
    "opo": by_length,
}


@pytest.mark.parametrize("row", PARTS, ids=lambda row: f"{row.project} {row.theirs}")
def test_their_part_is_ours(row):
    x, (word, name) = case(), row.ours.split(" ")
    length = {"length": LENGTH} if name == "fixed_length" else {}
    rewards, mask = jnp.asarray(x.rewards), jnp.asarray(x.mask)
    if word == "advantage":
        trajectory = [Trajectory(mask)] if name in BY_LENGTH else []
        expected, actual = THEIR_ADVANTAGES[row.theirs](x), ADVANTAGES[name](rewards, *trajectory)
    else:
        expected = THEIR_REDUCTIONS[row.theirs](x.lp, x.mask)
        actual = mean(REDUCTIONS[name](jnp.asarray(x.lp), mask, **length))
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def shut(x, name):
    """Returns the tokens that a gate shuts, from its definition; of pi/mu."""
    delta = np.where(x.mask, x.lp - x.old, 0)
    count = np.maximum(x.mask.sum(-1, keepdims=True), 1)
    total = np.broadcast_to(delta.sum(-1, keepdims=True), delta.shape)
    k3 = (np.exp(delta) - 1 - delta).sum(-1, keepdims=True)
    negative = np.broadcast_to(centered(x)[..., None] < 0, delta.shape)
    return {
        "token": (np.exp(delta) < 0.5) | (np.exp(delta) > 5.0),
        "sequence": np.exp(total) > 3.0,
        "geometric": np.abs(total / count) > np.log(1.001),
        "negatives": negative & (-total / count > 0.1),
        "k3": np.broadcast_to(k3 / count > 0.01, delta.shape),
        "top_entropy": np.quantile(x.H[x.mask], 0.8) > x.H,
    }[name]


@pytest.mark.parametrize(
    "stack", [(name,) for name in GATES] + [("token", "sequence", "negatives")]
)
def test_gates_multiply_any_loss_and_their_tokens_still_count(stack):
    x, base = case(), with_parts(ALGORITHMS["dr_grpo"], reduction="token")
    algorithm = with_parts(base, gate=stack)
    (_, plain), (_, gradient) = (ours(x, method) for method in (base, algorithm))
    closed = np.any([shut(x, name) for name in stack], axis=0)
    np.testing.assert_allclose(gradient, np.where(closed, 0, plain), rtol=1e-9, atol=1e-12)
    title = ", ".join(["dr_grpo", "reduction token", *(f"gate {name}" for name in stack)])
    assert algorithm.title(algorithm.settings({})) == title
    assert {n for g in stack for n in GATES[g].knobs} <= set(algorithm.knobs)


def test_beside_a_weight_gates_look_at_what_came_before_the_update_but_for_negatives():
    x = case()
    far = np.where(x.mask, x.prox - x.mu, 0).sum(-1)
    stack = with_parts(ALGORITHMS["reinforce"], weight="truncated", gate=("sequence",))
    plain = with_parts(ALGORITHMS["reinforce"], weight="truncated")
    closed = np.exp(far) > 3.0
    assert 0 < closed.sum() < closed.size
    expected = np.where(closed[..., None], 0, ours(x, plain, engine="mu")[1])
    np.testing.assert_allclose(ours(x, stack, engine="mu")[1], expected, rtol=1e-9)


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
    known = Trajectory(jnp.asarray(mask), values=jnp.asarray(values))
    batch = TokenBatch(jnp.zeros(lp.shape), jnp.asarray(mask), jnp.asarray(old))
    knobs = {"discount": gamma, "decay": lam}

    def total(x, v):
        return mean(ppo(x, batch, jnp.asarray(rewards), knobs, trajectory=known, values=v))

    value, actual = jax.value_and_grad(total, (0, 1))(jnp.asarray(lp), jnp.asarray(now))
    np.testing.assert_allclose(value, expected(lp, now), rtol=1e-9)
    np.testing.assert_allclose(actual[0], slopes(lambda x: expected(x, now), lp), atol=1e-8)
    np.testing.assert_allclose(actual[1], slopes(lambda v: expected(lp, v), now), atol=1e-8)
    title = "ppo, whiten tokens, discount 0.9, decay 0.8"
    assert ppo.title(ppo.settings(knobs)) == title
