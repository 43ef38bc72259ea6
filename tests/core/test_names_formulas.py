"""`docs/names.md` against the formulas of verl 0.9, Trinity-RFT 0.6 and Tunix, restated here.

TRL's own code is run instead: `tests/parity/trl/test_trl_names.py`.
"""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import ADVANTAGES, ALGORITHMS, REDUCTIONS
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Along
from tests import names

pytestmark = pytest.mark.slow

P, G, T, LENGTH = 2, 4, 5, 8
ROWS = [row for row in names.rows() if row.ours and not row.project.startswith("TRL")]
METHODS = [row for row in ROWS if row.ours.split(",")[0] in ALGORITHMS]
PARTS = [row for row in ROWS if row not in METHODS]
sg = jax.lax.stop_gradient


@pytest.fixture(scope="module", autouse=True)
def _in_double_precision():
    with jax.enable_x64():
        yield


@contextmanager
def loosely():
    """For their formulas, which mix bools, integers and ranks as torch does."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def case():
    """lp, old (the trainer's), mu (the engine's), ref [P, G, T]; rewards, mask, and their A."""
    rng = np.random.default_rng(3)
    old = -rng.uniform(0.3, 2.5, (P, G, T))
    lp, mu, ref = (old + rng.normal(0, 0.8, old.shape) for _ in range(3))
    mask = np.arange(T) < rng.integers(2, T + 1, (P, G, 1))
    rewards = np.array([[1.0, 0.0, 0.5, 0.0], [0.25, 0.75, 1.0, 0.5]])
    arrays = {"lp": lp, "old": old, "mu": mu, "ref": ref, "mask": mask, "rewards": rewards}
    arrays["H"] = rng.uniform(0, 2, old.shape)
    return SimpleNamespace(**{name: jnp.asarray(array) for name, array in arrays.items()})


# Advantages, as they have them but for 1e-4, where they add 1e-6.
def centered(r):
    return r - r.mean(-1, keepdims=True)


def bessel(r):
    return centered(r) / (r.std(-1, ddof=1, keepdims=True) + 1e-4)


def population(r):
    return centered(r) / jnp.sqrt(r.var(-1, keepdims=True) + 1e-6)


def others(r):
    return r - (r.sum(-1, keepdims=True) - r) / (r.shape[-1] - 1)


def raw(r):
    return r


def lowered(r):
    return r - (r.mean(-1, keepdims=True) - 0.1)


def weighted(r):
    return centered(r) * jnp.exp(centered(r))


# Reductions.
def tokens(x, losses):
    return (losses * x.mask).sum() / x.mask.sum()


def sequences(x, losses):
    return ((losses * x.mask).sum(-1) / x.mask.sum(-1)).mean()


def sequence_sums(x, losses):
    return (losses * x.mask).sum(-1).mean()


def fixed(x, losses):
    return sequence_sums(x, losses) / LENGTH


# Losses by token.
def ratio(x):
    return jnp.exp(x.lp - x.old)


def ppo(x, a, low=0.2, high=0.2, rho=ratio):
    r = rho(x)
    return jnp.maximum(-a * r, -a * jnp.clip(r, 1 - low, 1 + high))


def dual(x, a, c=3.0):
    return jnp.where(a < 0, jnp.minimum(-a * c, ppo(x, a)), ppo(x, a))


def sequence_mean(x, values):
    return (values * x.mask).sum(-1, keepdims=True) / x.mask.sum(-1, keepdims=True)


def gspo_ratio(x):
    return jnp.exp(x.lp - sg(x.lp) + sg(sequence_mean(x, x.lp - x.old)))


def reinforce(x, a):
    return -a * x.lp


def dppo(x, a, inside):
    return -a * sg(jnp.minimum(ratio(x), 3.0) * inside) * x.lp


def dppo_tv(x, a):
    gap = jnp.exp(x.lp) - jnp.exp(x.old)
    return dppo(x, a, jnp.where(a > 0, gap <= 0.2, gap >= -0.2))


def dppo_kl(x, a):
    p, q = jnp.exp(x.lp), jnp.exp(x.old)
    kl = q * (x.old - x.lp) + (1 - q) * jnp.log((1 - q) / (1 - p))
    return dppo(x, a, (kl <= 0.2) | jnp.where(a > 0, p <= q, p >= q))


def sapo(x, a):
    t = jnp.where(a > 0, 1.0, 1.05)
    return -a * jax.nn.sigmoid(t * (ratio(x) - 1)) * 4 / t


def detached_sapo(x, a):
    return sg(sapo(x, a)) * x.lp


def gmpo(x, a):
    d = x.lp - x.old
    s = jnp.sign(a)
    kept = s * jnp.minimum(s * d, s * jnp.clip(d, -0.2, 0.2))
    return -a * jnp.exp(sequence_mean(x, kept)) * jnp.ones_like(d)


def cispo(x, a, low, high):
    return -sg(jnp.clip(ratio(x), low, high)) * a * x.lp


def topr(x, a):
    return -sg(jnp.where(a <= 0, jnp.clip(ratio(x), 0, 1), 1.0)) * a * x.lp


def sppo(x, a):
    r = sg(ratio(x))
    return -a * (x.lp - x.old) * ((r >= 1 / 1.3) & (r <= 1.3))


def token_icepop(x, a):
    r = ratio(x)
    return -sg(jnp.where((r >= 0.5) & (r <= 5.0), r, 0.0)) * a * x.lp


def sequence_tis(x, a):
    total = ((x.lp - x.old) * x.mask).sum(-1, keepdims=True)
    return -sg(jnp.minimum(jnp.exp(total), 2.0)) * a * x.lp


def negatives_masked(x, a):
    drift = sequence_mean(x, sg(x.old - x.lp))
    return dual(x, a) * ~((a < 0) & (drift > 0.1))


def kl_cov(x, a):
    covariance = (a - a[x.mask].mean()) * (sg(x.lp) - sg(x.lp)[x.mask].mean())
    top = jnp.where(x.mask, covariance, -jnp.inf)
    return -a * ratio(x) + jnp.abs(x.lp - x.old) * (top == top.max())  # one token of few


def m2po(x, a):
    d = np.asarray(sg(x.lp - x.old))
    outward = np.asarray(x.mask) & (d * np.asarray(a) > 0)
    kept = np.sort(d[outward] ** 2)
    while kept.size and kept.mean() > 0.04:
        kept = kept[:-1]
    bound = kept[-1] if kept.size else -1.0
    return -a * ratio(x) * (~outward | (d**2 <= bound))


def rec(x, a, clip_mode="none", weight="none", coef=0.0):
    r = sg(ratio(x))
    one = ((r <= 1.2) & (a >= 0)) | ((r >= 0.8) & (a <= 0))
    two = (r >= 0.8) & (r <= 1.2)
    ring = two | ((a >= 0) & (r <= 0.4)) | ((a <= 0) & (r >= 3.0))
    inside = {"none": True, "one-side": one, "two-side": two, "ring": ring}[clip_mode]
    by = r if weight == "importance_sampling" else 1.0
    return -a * by * x.lp * inside + coef * (x.lp - x.old) ** 2


def with_kl(loss, kind, beta):
    kls = {"k1": lambda d: -d, "k2": lambda d: d**2 / 2, "k3": lambda d: jnp.exp(d) - d - 1}
    return lambda x, a: loss(x, a) + beta * kls[kind](x.ref - x.lp)


def with_bonus(loss):
    return lambda x, a: loss(x, a) - 0.001 * x.H


def trinity(loss):
    return with_kl(loss, "k2", 0.001)


def weighed(loss, weight):
    return lambda x, a: loss(x, a) * weight(x, (x.old - x.mu) * x.mask)


def token_weight(x, d, cap=2.0):
    return jnp.minimum(jnp.exp(d), cap)


def sequence_weight(x, d):
    return jnp.minimum(jnp.exp(d.sum(-1, keepdims=True)), 2.0)


def icepop(x, d):
    return jnp.where((jnp.exp(d) >= 0.5) & (jnp.exp(d) <= 5.0), jnp.exp(d), 0.0)


wide = partial(ppo, high=0.28)
narrow = partial(ppo, low=3e-4, high=4e-4, rho=gspo_ratio)
gspo = partial(ppo, rho=gspo_ratio)
FORMULAS = {
    ("verl 0.9", "loss_mode"): {
        "vanilla": (bessel, dual, tokens),
        "dppo_tv": (bessel, dppo_tv, tokens),
        "dppo_kl": (bessel, dppo_kl, tokens),
        "gspo": (bessel, gspo, tokens),
        "sapo": (bessel, sapo, sequences),
        "gpg": (bessel, reinforce, tokens),
        "geo_mean": (bessel, gmpo, sequences),
        "kl_cov": (bessel, kl_cov, tokens),
        "dro": (bessel, partial(rec, coef=0.1), tokens),
        "cispo": (bessel, partial(cispo, low=0.8, high=1.2), tokens),
        "bypass_mode": (bessel, dual, tokens),
        "entropy_coeff=0.001": (bessel, with_bonus(dual), tokens),
    },
    ("verl 0.9", "rollout_correction"): {
        "decoupled_token_is": (bessel, weighed(dual, token_weight), tokens),
        "decoupled_seq_is": (bessel, weighed(dual, sequence_weight), tokens),
        "decoupled_token_icepop": (bessel, weighed(dual, icepop), tokens),
        "bypass_ppo_clip": (bessel, dual, tokens),
        "bypass_pg_is": (bessel, sequence_tis, tokens),
        "bypass_pg_token_icepop": (bessel, token_icepop, tokens),
        "disabled": (bessel, dual, tokens),
    },
    ("Trinity-RFT 0.6", "algorithm_type"): {
        "grpo": (bessel, trinity(dual), tokens),
        "grpo_verl": (bessel, trinity(dual), tokens),
        "dapo": (bessel, dual, tokens),
        "rloo": (others, trinity(dual), tokens),
        "opmd": (centered, trinity(lambda x, a: -a * x.lp / 2), tokens),
        "asymre": (lowered, lambda x, a: -a * x.lp / 2, tokens),
        "topr": (raw, trinity(topr), tokens),
        "cispo": (bessel, trinity(partial(cispo, low=0.0, high=1.28)), tokens),
        "gspo": (bessel, trinity(narrow), tokens),
        "sppo": (centered, sppo, tokens),
        "rec": (centered, trinity(reinforce), tokens),
        "m2po": (bessel, m2po, tokens),
    },
    ("Trinity-RFT 0.6", "policy_loss_fn"): {
        "enable_sequence_masking=True": (bessel, trinity(negatives_masked), tokens),
    },
    ("Trinity-RFT 0.6", "rec"): {
        **{
            f'clip_mode="{clip}", weight="{weight}"': (
                centered,
                partial(rec, clip_mode=clip, weight=weight),
                tokens,
            )
            for clip in ("none", "one-side", "two-side", "ring")
            for weight in ("none", "importance_sampling")
            if (clip, weight) != ("none", "importance_sampling")
        },
        'clip_mode="one-side", weight="importance_sampling", std_normalize=True': (
            population,
            partial(rec, clip_mode="one-side", weight="importance_sampling"),
            tokens,
        ),
        'regularizer="k2", regularizer_coef=0.1': (centered, partial(rec, coef=0.1), tokens),
        'regularizer="forward-kl", regularizer_coef=0.1': (
            centered,
            lambda x, a: -a * x.lp - 0.1 * x.lp,
            tokens,
        ),
        'weight="advantage", temp=1.0': (weighted, reinforce, tokens),
    },
    ("Tunix, 22 August 2026", "configurations"): {
        "GRPOConfig()": (bessel, with_kl(ppo, "k1", 0.04), sequences),
        'GRPOConfig(kl_loss_mode="low_var_kl")': (bessel, with_kl(ppo, "k3", 0.04), sequences),
        'GRPOConfig(loss_algo="gspo-token")': (bessel, with_kl(gspo, "k1", 0.04), sequences),
        "GRPOConfig(epsilon_c=3.0)": (bessel, with_kl(dual, "k1", 0.04), sequences),
        'GRPOConfig(sampler_is="token")': (
            bessel,
            with_kl(weighed(ppo, token_weight), "k1", 0.04),
            sequences,
        ),
        "DAPOConfig()": (bessel, wide, tokens),
        "DrGRPOConfig()": (centered, with_kl(ppo, "k1", 0.04), fixed),
    },
}
COUNTED = "what is counted differs"
UNSTATED = {
    "raft": COUNTED,
    "decoupled_geo_rs": COUNTED,
    "decoupled_seq_is_rs": COUNTED,
    "decoupled_geo_rs_seq_tis": COUNTED,
    "decoupled_geo_rs_token_tis": COUNTED,
    "bypass_ppo_clip_geo_rs": COUNTED,
    "bypass_pg_geo_rs": COUNTED,
    "bypass_pg_geo_rs_token_tis": COUNTED,
    "bypass_pg_geo_rs_seq_tis": COUNTED,
    "decoupled_k3_rs": COUNTED,
    "decoupled_k3_rs_seq_tis": COUNTED,
    "decoupled_k3_rs_token_tis": COUNTED,
    "bypass_ppo_clip_k3_rs": COUNTED,
    "clip_cov": "drawn",
    "reinforceplusplus": "its advantage is stated below",
    "gae": "it reads values: test_recent_methods.py",
    "ppo": "the same",
    'drop="balance"': "drawn",
}


def stated(row):
    return FORMULAS.get((row.project, row.table), {}).get(row.theirs)


def test_every_method_has_a_formula():
    assert {row.theirs for row in METHODS if stated(row) is None} == set(UNSTATED)
    known = {(row.project, row.table, row.theirs) for row in METHODS}
    assert {(*table, name) for table, named in FORMULAS.items() for name in named} <= known


def theirs(x, formula):
    advantage, loss, reduce = formula

    def total(lp):
        now = SimpleNamespace(**{**vars(x), "lp": lp})
        a = jnp.broadcast_to(advantage(x.rewards)[..., None], lp.shape)
        return reduce(now, loss(now, a))

    with loosely():
        return jax.value_and_grad(total)(x.lp)


def ours(x, title):
    algorithm, given = names.build(title)
    knobs = names.settings(algorithm, given, LENGTH)
    engine = x.mu if " weight " in title else x.old
    batch = TokenBatch(jnp.zeros_like(x.lp), x.mask, engine, x.old, x.ref, entropy=x.H)

    def total(lp):
        return mean(algorithm(lp, batch, x.rewards, knobs))

    return jax.value_and_grad(total)(x.lp)


@pytest.mark.parametrize(
    "row", [row for row in METHODS if stated(row)], ids=lambda row: f"{row.project} {row.theirs}"
)
def test_their_formula_gives_our_loss_and_gradient(row):
    x = case()
    expected, found = theirs(x, stated(row)), ours(x, row.ours)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-8, atol=1e-12)


def at_ratio_one(formula):
    x = case()
    x.old = x.mu = x.lp
    return theirs(x, formula)[1], x


def test_trinitys_sapo_is_not_the_papers():
    paper, x = at_ratio_one((bessel, sapo, tokens))
    trinitys, _ = at_ratio_one((bessel, detached_sapo, tokens))
    t = np.where(bessel(x.rewards) > 0, 1.0, 1.05)[..., None]
    np.testing.assert_allclose(trinitys, np.asarray(paper) * 2 / t, rtol=1e-9, atol=1e-12)
    _, found = ours(x, "sapo, advantage group_standardized_bessel, reduction token")
    np.testing.assert_allclose(found, paper, rtol=1e-8, atol=1e-12)


def test_trinitys_topr_and_asymre_and_dapo_are_not_the_papers():
    x = case()
    for row, method in (("topr", "topr, reduction token"), ("asymre", "asymre"), ("dapo", "dapo")):
        formula = FORMULAS["Trinity-RFT 0.6", "algorithm_type"][row]
        assert not np.allclose(theirs(x, formula)[1], ours(x, method)[1], rtol=1e-3)


THEIR_REDUCTIONS = {
    "token-mean": tokens,
    "seq-mean-token-sum": sequence_sums,
    "seq-mean-token-mean": sequences,
    "sequence-mean-token-mean": sequences,
    "seq-mean-token-sum-norm": fixed,
    "sequence-mean-token-scale": fixed,
}


def whitened(before):
    def whiten(r, lengths):
        values = np.asarray(before(r))
        each = np.repeat(values.ravel(), np.asarray(lengths).ravel())
        return (values - each.mean()) / np.sqrt(each.var(ddof=1) + 1e-8)

    return whiten


BY_LENGTH = {
    "reinforce_plus_plus": whitened(raw),
    "reinforce_plus_plus_baseline": whitened(centered),
    "reinforceplusplus": whitened(raw),
    "opo": lambda r, n: r - (n * r).sum(-1, keepdims=True) / n.sum(-1, keepdims=True),
}
THEIR_ADVANTAGES = {
    "grpo": bessel,
    "grpo_verl": bessel,
    "grpo_vectorized": bessel,
    "norm_adv_by_std_in_grpo=False": centered,
    "rloo": others,
    "rloo_vectorized": others,
    "gpg": centered,
    "drgrpo": centered,
    'std_cal_level="batch"': lambda r: centered(r) / (r.std(ddof=1) + 1e-4),
    "reinforce": raw,
    "opmd": centered,
    "opmd_verl": centered,
    'opmd_baseline="logavgexp"': lambda r: r - jnp.log(jnp.exp(r).mean(-1, keepdims=True)),
    "asymre": lowered,
    "asymre_verl": lowered,
    "rec": centered,
}


@pytest.mark.parametrize("row", PARTS, ids=lambda row: f"{row.project} {row.theirs}")
def test_their_part_is_ours(row):
    x, (word, name) = case(), row.ours.split(" ")
    length = {"length": LENGTH} if name == "fixed_length" else {}
    with loosely():
        if row.theirs in BY_LENGTH:
            expected = BY_LENGTH[row.theirs](x.rewards, x.mask.sum(-1))
        elif word == "advantage":
            expected = THEIR_ADVANTAGES[row.theirs](x.rewards)
        else:
            expected = THEIR_REDUCTIONS[row.theirs](x, x.lp)
    if row.theirs in BY_LENGTH:
        found = ADVANTAGES[name](x.rewards, Along(x.mask))
    elif word == "advantage":
        found = ADVANTAGES[name](x.rewards)
    else:
        found = mean(REDUCTIONS[name](x.lp, x.mask, **length))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
