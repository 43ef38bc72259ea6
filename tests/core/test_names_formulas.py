"""`docs/names.md` against the formulas of verl 0.9, Trinity-RFT 0.6 and Tunix.

Their losses by token are those of `tests.core.reference`, with their numbers.

TRL's own code is run instead: `tests/parity/trl/test_trl_names.py`.
"""

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
from tests.core import reference
from tests.core.cases import slopes

pytestmark = pytest.mark.slow

P, G, T, LENGTH = 2, 4, 5, 8
ROWS = [row for row in names.rows() if row.ours and not row.project.startswith("TRL")]
METHODS = [row for row in ROWS if row.ours.split(",")[0] in ALGORITHMS]
PARTS = [row for row in ROWS if row not in METHODS]


@pytest.fixture(scope="module", autouse=True)
def _in_double_precision():
    with jax.enable_x64():
        yield


def case():
    """lp, old (the trainer's), mu (the engine's), ref [P, G, T]; rewards and mask."""
    rng = np.random.default_rng(3)
    old = -rng.uniform(0.3, 2.5, (P, G, T))
    lp, mu, ref = (np.minimum(old + rng.normal(0, 0.8, old.shape), -0.02) for _ in range(3))
    mask = np.arange(T) < rng.integers(2, T + 1, (P, G, 1))
    rewards = np.array([[1.0, 0.0, 0.5, 0.0], [0.25, 0.75, 1.0, 0.5]])
    arrays = {"lp": lp, "old": old, "mu": mu, "ref": ref, "mask": mask, "rewards": rewards}
    return SimpleNamespace(**arrays, H=rng.uniform(0, 2, old.shape))


# Advantages, as they have them but for 1e-4, where they add 1e-6.
def centered(r):
    return r - r.mean(-1, keepdims=True)


def bessel(r):
    return centered(r) / (r.std(-1, ddof=1, keepdims=True) + 1e-4)


def population(r):
    return centered(r) / np.sqrt(r.var(-1, keepdims=True) + 1e-6)


def others(r):
    return r - (r.sum(-1, keepdims=True) - r) / (r.shape[-1] - 1)


def raw(r):
    return r


def lowered(r):
    return r - (r.mean(-1, keepdims=True) - 0.1)


def weighted(r):
    return centered(r) * np.exp(centered(r))


# Reductions.
def tokens(losses, mask):
    return (losses * mask).sum() / mask.sum()


def sequences(losses, mask):
    return ((losses * mask).sum(-1) / mask.sum(-1)).mean()


def sequence_sums(losses, mask):
    return (losses * mask).sum(-1).mean()


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


def detached_sapo(lp, held, b):
    return sapo(held, held, b) * lp


def token_icepop(lp, held, b):
    return -icepop(held - b.old) * b.A * lp


def negatives_masked(lp, held, b):
    drift = ((b.old - held) * b.mask).sum(-1, keepdims=True) / b.mask.sum(-1, keepdims=True)
    return dual(lp, held, b) * ~((b.A < 0) & (drift > 0.1))


def with_kl(loss, kind, beta):
    kls = {"k1": lambda d: -d, "k2": lambda d: d**2 / 2, "k3": lambda d: np.exp(d) - d - 1}
    return lambda lp, held, b: loss(lp, held, b) + beta * kls[kind](b.ref - lp)


def with_bonus(loss):
    return lambda lp, held, b: loss(lp, held, b) - 0.001 * b.H


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
        "entropy_coeff=0.001": (bessel, with_bonus(dual), tokens),
    },
    ("verl 0.9", "rollout_correction"): {
        "decoupled_token_is": (bessel, weighed(dual, token_weight), tokens),
        "decoupled_seq_is": (bessel, weighed(dual, sequence_weight), tokens),
        "decoupled_token_icepop": (bessel, weighed(dual, icepop), tokens),
        "bypass_ppo_clip": (bessel, dual, tokens),
        "bypass_pg_is": (bessel, partial(reference.sequence_tis, high=2.0), tokens),
        "bypass_pg_token_icepop": (bessel, token_icepop, tokens),
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
    spread = np.broadcast_to(advantage(x.rewards)[..., None], x.lp.shape)
    b = SimpleNamespace(**vars(x), A=spread, prox=x.old)

    def total(lp):
        return reduce(loss(lp, x.lp, b), x.mask)

    return total(x.lp), slopes(total, x.lp, x.mask)


def ours(x, title):
    algorithm, given = names.build(title)
    knobs = names.settings(algorithm, given, LENGTH)
    old, mu, ref, entropy = map(jnp.asarray, (x.old, x.mu, x.ref, x.H))
    engine = mu if " weight " in title else old
    batch = TokenBatch(jnp.zeros_like(old), jnp.asarray(x.mask), engine, old, ref, entropy=entropy)

    def total(lp):
        return mean(algorithm(lp, batch, jnp.asarray(x.rewards), knobs))

    return jax.value_and_grad(total)(jnp.asarray(x.lp))


@pytest.mark.parametrize(
    "row", [row for row in METHODS if stated(row)], ids=lambda row: f"{row.project} {row.theirs}"
)
def test_their_formula_gives_our_loss_and_gradient(row):
    x = case()
    expected, found = theirs(x, stated(row)), ours(x, row.ours)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-8)


def at_ratio_one(formula):
    x = case()
    x.old = x.mu = x.lp
    return theirs(x, formula)[1], x


def test_trinitys_sapo_is_not_the_papers():
    paper, x = at_ratio_one((bessel, sapo, tokens))
    trinitys, _ = at_ratio_one((bessel, detached_sapo, tokens))
    t = np.where(bessel(x.rewards) > 0, 1.0, 1.05)[..., None]
    np.testing.assert_allclose(trinitys, paper * 2 / t, rtol=1e-5, atol=1e-8)
    _, found = ours(x, "sapo, advantage group_standardized_bessel, reduction token")
    np.testing.assert_allclose(found, paper, rtol=1e-5, atol=1e-8)


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
    'opmd_baseline="logavgexp"': lambda r: r - np.log(np.exp(r).mean(-1, keepdims=True)),
    "asymre": lowered,
    "asymre_verl": lowered,
    "rec": centered,
}


@pytest.mark.parametrize("row", PARTS, ids=lambda row: f"{row.project} {row.theirs}")
def test_their_part_is_ours(row):
    x, (word, name) = case(), row.ours.split(" ")
    length = {"length": LENGTH} if name == "fixed_length" else {}
    rewards, mask = jnp.asarray(x.rewards), jnp.asarray(x.mask)
    if row.theirs in BY_LENGTH:
        expected = BY_LENGTH[row.theirs](x.rewards, x.mask.sum(-1))
        found = ADVANTAGES[name](rewards, Along(mask))
    elif word == "advantage":
        expected = THEIR_ADVANTAGES[row.theirs](x.rewards)
        found = ADVANTAGES[name](rewards)
    else:
        expected = THEIR_REDUCTIONS[row.theirs](x.lp, x.mask)
        found = mean(REDUCTIONS[name](jnp.asarray(x.lp), mask, **length))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
