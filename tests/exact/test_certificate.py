"""The certificate of improvement: its coverage by enumeration, and the cases where it must fail.

Values of three outcomes make the law of n draws a multinomial, summed here in full. The theorems
are those of `proofs/Certificate.v`.
"""

import functools
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds, certificates
from ogrpo.core.surrogates import clipped_surrogate
from ogrpo.report.certificates import FINEST, Claim, is_accepted
from tests.exact.draws import EPS, distributions, for_all, multinomial, values, widths

pytestmark = pytest.mark.slow

RATES = (0.1, 0.4, 0.8)
BAND = {"eps_low": 0.2, "eps_high": 0.2}
UNIT = {"reward_low": 0.0, "reward_high": 1.0}


@functools.partial(jax.jit, static_argnames="rates")
def limits(outcomes, table, floor, delta, rates):
    """The bound for every row of `outcomes` [C, n], the values of the outcomes in `table` [Y]."""

    def limit(row):
        return certificates.betting_confidence(table[row], floor=floor, delta=delta, rates=rates)

    return jax.vmap(limit)(outcomes).bound


def failure_probability(mu, table, truth, floor, *, n, delta, rates=RATES):
    """P(bound > truth) under n independent draws, by summing over all multisets."""
    drawn, law = multinomial(n, mu)
    outcomes = np.stack([np.repeat(np.arange(len(mu)), c) for c in drawn])
    bound = limits(outcomes, jnp.asarray(table), floor, delta, rates)
    return law[np.asarray(bound) > truth + EPS].sum()


def gap(pi, pi_k, mu, r, **knobs):
    ratio, center = bounds.density_ratio(pi, mu), bounds.density_ratio(pi_k, mu)
    return certificates.improvement_gap(ratio, center, jnp.asarray(r), **(BAND | UNIT | knobs))


rewards = functools.partial(values, low=0, high=8)


@for_all(*[distributions(3, least=0)] * 3, rewards(3), widths)
def test_gap_is_below_the_improvement_on_average(mu, pi, pi_k, r, eps):
    """Pi_k and pi are free to leave the support of mu, whose mass it cannot see, or to lack mass.

    Theorems Certificate.gap_mean, Certificate.gap_ge.
    """
    table = gap(pi, pi_k, mu, r, eps_high=eps)
    assert mu @ table <= (pi - pi_k) @ r + EPS
    assert jnp.min(table) >= -1


@for_all(distributions(3), distributions(3), rewards(3), widths)
def test_on_policy_the_gap_is_the_clipped_surrogates_increase(mu, pi, r, eps):
    """Theorem minorise_maximise: c = 1 leaves f_eps(rho, 1, r) - r and no other noise.

    Theorem Certificate.gap_same.
    """
    ratio = bounds.density_ratio(pi, mu)
    surrogate = clipped_surrogate(ratio, jnp.asarray(r), eps_low=eps, eps_high=eps)
    table = gap(pi, mu, mu, r, eps_low=eps, eps_high=eps)
    np.testing.assert_allclose(table, surrogate - r, atol=EPS)
    np.testing.assert_allclose(gap(mu, mu, mu, r), 0, atol=EPS)
    np.testing.assert_allclose(gap(pi, pi, mu, r), pi / mu - 1, atol=EPS)


@for_all(distributions(3), values(3), st.sampled_from([1, 3, 12]), st.sampled_from([0.1, 0.5]))
def test_betting_confidence_covers(mu, x, n, delta):
    """Any values above -floor, however large: wrong with probability at most delta."""
    table = np.exp2(4 * x) - 1
    assert failure_probability(mu, table, mu @ table, 1.0, n=n, delta=delta) <= delta


@for_all(values(), values(low=0, high=24), values(low=0, high=24), widths, widths)
def test_known_ratios_allow_any_baseline(a, x, c, low, high):
    """f(x, c, a) - c a >= -A R for ratios <= R and |a| <= A: theorem Certificate.mm_gap_ge."""
    gain = clipped_surrogate(jnp.asarray(x), a, eps_low=low, eps_high=high, center=jnp.asarray(c))
    assert np.all(gain - c * a >= -abs(a).max() * max(x.max(), c.max()) - EPS)


@pytest.mark.parametrize(
    ("win", "n", "delta", "share"),
    [(0.94, 2, 0.9, 0.98), (0.74, 3, 0.5, 0.8), (0.78, 12, 0.1, 0.5), (0.82, 20, 0.05, 0.37)],
)
def test_coverage_is_close_to_attained(win, n, delta, share):
    """Laws on -1 and 0 that spend much of delta; less radius would fail."""
    mu, table = np.array([(1 - win) / 2, (1 - win) / 2, win]), np.array([-1.0, -1.0, 0.0])
    wrong = failure_probability(mu, table, mu @ table, 1.0, n=n, delta=delta, rates=(0.9,))
    assert share * delta <= wrong <= delta


@for_all(st.lists(st.integers(-8, 40), min_size=12, max_size=12), st.sampled_from([0.05, 0.4]))
def test_betting_is_never_weaker_than_the_exponential_rates(x, delta):
    """On every sample, at delta shared by the rates; and where x >= -1 exp(l x - psi x^2) <= 1 + l x.

    Theorems Anytime.betting_dominates, Calculus.fan_exp.
    """
    x = np.array(x) / 8
    betting = limits(np.arange(12)[None], jnp.asarray(x), 1.0, delta, RATES)[0]
    for rate in RATES:
        psi = -np.log1p(-rate) - rate
        assert np.all(np.exp(rate * x - psi * x**2) <= 1 + rate * x + EPS)
        noise = (np.log(len(RATES) / delta) + psi * (x**2).sum()) / rate
        assert betting >= (x.sum() - noise) / x.size - EPS


def test_the_wealth_is_the_theorems_and_falls_with_the_mean():
    """The wealth at the bound is 1/delta and falls with the mean: Anytime.wealth_decreases."""
    x, floor, delta, rates = np.array([0.3, -0.2, 0.7, 0.1] * 9), 0.5, 0.1, (0.2, 0.6)

    def wealth(m):
        won = [np.prod((1 + rate * x / floor) / (1 + rate * m / floor)) for rate in rates]
        return np.mean(won)

    seen = certificates.betting_confidence(jnp.asarray(x), floor=floor, delta=delta, rates=rates)
    assert wealth(float(seen.bound)) == pytest.approx(1 / delta, rel=1e-9)
    assert np.all(np.diff([wealth(m) for m in np.linspace(-0.5, 2, 50)]) < 0)
    np.testing.assert_allclose(seen.mean, 0.225)
    np.testing.assert_allclose(seen.evidence, np.log(wealth(0.0)))


DEPTH = 6


def walked():
    """Returns of every history the values seen, their conditional means and its probability.

    The law chases its luck: the chance of outcome 1 and both values follow from the past.
    """
    paths = np.array([*itertools.product((0, 1), repeat=DEPTH)])
    seen, means, probs = np.zeros(paths.shape), np.zeros(paths.shape), np.ones(len(paths))
    for step in range(DEPTH):
        ahead = paths[:, :step].mean(-1) if step else np.zeros(len(paths))
        chance = np.where(ahead > 0.5, 0.05, 0.3)
        low, high, hit = -np.where(ahead > 0.3, 1.0, 0.4), 0.5 + 3 * ahead, paths[:, step] == 1
        seen[:, step] = np.where(hit, high, low)
        means[:, step] = (1 - chance) * low + chance * high
        probs *= np.where(hit, chance, 1 - chance)
    return seen, means, probs


@pytest.mark.parametrize("delta", [0.2, 0.5])
def test_bounds_read_after_every_draw_of_a_past_that_chooses_the_next_all_hold(delta):
    """P(the running mean of the conditional means is ever below its bound) <= delta.

    Theorem Anytime.anytime_confidence.
    """
    seen, means, probs = walked()
    places, wrong = np.arange(seen.size).reshape(seen.shape), np.zeros(len(seen), bool)
    for t in range(1, DEPTH + 1):
        bound = limits(places[:, :t], jnp.asarray(seen.ravel()), 1.0, delta, RATES)
        wrong |= np.asarray(bound) > means[:, :t].mean(-1) + EPS
    assert 0 < probs[wrong].sum() <= delta


def test_the_wealth_against_the_conditional_means_is_a_fair_game_that_rarely_gets_rich():
    """E[W_t+1 | past] = W_t, and P(max_t W_t >= c) <= 1/c, on every path of six draws.

    Theorems Anytime.betting_is_fair, Anytime.ville.
    """
    seen, means, probs = walked()
    wealth = np.mean([np.cumprod((1 + k * seen) / (1 + k * means), -1) for k in RATES], axis=0)
    before = np.ones(len(seen))
    for t, after in enumerate(wealth.T):
        past = (2**t, -1)  # histories that agree up to t are neighbours
        chance = probs.reshape(past) / probs.reshape(past).sum(-1, keepdims=True)
        expected = (chance * after.reshape(past)).sum(-1)
        np.testing.assert_allclose(expected, before.reshape(past)[:, 0], rtol=1e-12)
        before = after
    for c in (1.5, 2.0, 4.0):
        assert probs[wealth.max(-1) >= c].sum() <= 1 / c


@for_all(
    distributions(3), distributions(3, least=0), distributions(3, least=0), rewards(3), examples=5
)
def test_certificates_of_draws_in_sequence_cover(mu, pi, pi_k, r):
    """Two draws, the second of a prompt and policies that the first has chosen.

    Theorem Certificate.certificate_anytime.
    """
    tables = [gap(pi, pi_k, mu, r), gap(pi_k, pi, mu, r[::-1])]
    gains = [(pi - pi_k) @ r, (pi_k - pi) @ r[::-1]]
    wrong = 0.0
    for i, j in itertools.product(range(3), repeat=2):
        after = int(r[i] > 0.5)
        drawn = jnp.array([tables[0][i], tables[after][j]])
        bounds_seen = [float(limits(np.arange(t)[None], drawn, 1.0, 0.3, RATES)[0]) for t in (1, 2)]
        truths = [gains[0], (gains[0] + gains[after]) / 2]
        wrong += mu[i] * mu[j] * any(b > g + EPS for b, g in zip(bounds_seen, truths, strict=True))
    assert wrong <= 0.3


def mixture_table(pi, pi_k, r, share):
    """The gap of each outcome, its ratios being to the mixture of new and old."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.nan_to_num(np.log(pi) - np.log(pi_k), nan=0.0, posinf=np.inf, neginf=-np.inf)
    ratio, center = certificates.mixture_ratios(jnp.asarray(logs), share=share)
    wide = UNIT | {"eps_low": 1.0, "eps_high": 1 / share}
    return np.asarray(certificates.improvement_gap(ratio, center, jnp.asarray(r), **wide))


@for_all(distributions(3, least=0), distributions(3, least=0), rewards(3))
def test_old_and_new_draws_in_equal_shares_need_no_support_and_no_chi_square(pi, pi_k, r):
    """E_m X = J(pi) - J(pi_k), X >= -1; in equal shares |X| <= 1, E_m X^2 <= TV; r in [0, 1].

    Theorems Balance.halves_mean, Balance.halves_range, Balance.halves_second_moment.
    """
    table = mixture_table(pi, pi_k, r, 0.5)
    m = (pi + pi_k) / 2
    halved = np.divide((pi - pi_k) * (r - 0.5), m, out=np.zeros(3), where=m > 0)
    np.testing.assert_allclose(m * table, m * halved, atol=EPS)
    assert abs(halved).max() <= 1 + EPS
    assert m @ table**2 <= bounds.total_variation(jnp.asarray(pi), jnp.asarray(pi_k)) + EPS
    for share in (0.1, 0.4, 0.5):
        table, m = mixture_table(pi, pi_k, r, share), share * pi + (1 - share) * pi_k
        np.testing.assert_allclose(m @ table, (pi - pi_k) @ r, atol=EPS)
        assert table.min() >= -1 - EPS


@for_all(distributions(3), distributions(3, 3), rewards(3))
def test_several_samplers_are_one_mixture_with_bounded_ratios(shares, samplers, r):
    """Ratios of at most 1/w_j; the gain between two samplers from the draws of all.

    Theorems Balance.mixture_mean, Balance.balance_ratio, Balance.balance_mean,
    Balance.balance_range.
    """
    m = shares @ samplers
    ratios = np.array([bounds.density_ratio(jnp.asarray(mu), jnp.asarray(m)) for mu in samplers])
    assert np.all(shares[:, None] * ratios <= 1 + EPS)
    table = (ratios[0] - ratios[1]) * (r - 0.5)
    np.testing.assert_allclose(shares @ (samplers @ table), m @ table, atol=EPS)
    np.testing.assert_allclose(m @ table, (samplers[0] - samplers[1]) @ r, atol=EPS)
    assert abs(table).max() <= max(1 / shares[0], 1 / shares[1]) * abs(r - 0.5).max() + EPS


@for_all(distributions(3, least=0), distributions(3, least=0), rewards(3), st.integers(0, 8))
def test_pairs_measure_the_gain_however_the_two_depend(pi, pi_k, r, apart):
    """E[r(new) - r(old)] = J(pi) - J(pi_k), from independent draws to those with one random number.

    Theorem Balance.paired_mean. The last are equal but for a chance of the sum of distances
    between the distribution functions.
    """
    edges = [np.concatenate([[0], np.cumsum(p / p.sum())]) for p in (pi, pi_k)]
    low = np.maximum(edges[0][:-1, None], edges[1][None, :-1])
    high = np.minimum(edges[0][1:, None], edges[1][None, 1:])
    common = np.maximum(high - low, 0)
    q = common * apart / 8 + np.outer(pi, pi_k) * (1 - apart / 8)
    np.testing.assert_allclose(q.sum(axis=1), pi, atol=EPS)
    np.testing.assert_allclose(q.sum(axis=0), pi_k, atol=EPS)
    table = r[:, None] - r[None, :]
    np.testing.assert_allclose((q * table).sum(), (pi - pi_k) @ r, atol=EPS)
    assert table.min() >= -1
    distance = abs(edges[0] - edges[1])[1:-1].sum()
    assert 1 - np.trace(common) <= distance + EPS


def test_ratios_to_a_mixture_stay_finite_where_those_between_policies_explode():
    """log pi/pi_k of +-1e4 and infinity: at most 1/share and 1/(1 - share)."""
    logs = jnp.array([-jnp.inf, -1e4, 0.0, 1e4, jnp.inf])
    ratio, center = certificates.mixture_ratios(logs, share=0.2)
    np.testing.assert_allclose(ratio, [0, 0, 1, 5, 5], atol=1e-30)
    np.testing.assert_allclose(center, [1.25, 1.25, 1, 0, 0], atol=1e-30)
    assert np.isfinite(certificates.mixture_ratios(logs, share=0.0)[0]).all()


def test_the_size_of_a_certificate_counts_the_range_of_its_values():
    """E X = .05, E X^2 = .005: 93 draws by Bernstein's radius; 12 without its last term."""
    n = float(certificates.certificate_size(0.05, 0.005, floor=1.0, delta=0.05))
    odds = np.log(20)
    assert np.sqrt(2 * odds * 0.005 / n) + odds / n == pytest.approx(0.05)
    assert n == pytest.approx(93.4, abs=0.1)
    small = certificates.certificate_size(1e-8, 0.25, floor=1.0, delta=0.05)
    assert np.isinf(certificates.certificate_size(0.0, 0.0, floor=1.0, delta=0.05))
    assert float(small) == pytest.approx(2 * odds * 0.25 / 1e-16, rel=1e-4)
    assert 2 * odds * 0.005 / 0.05**2 == pytest.approx(12, abs=0.05)


def test_a_small_step_is_certified_from_130_draws():
    """(.5, .5) -> (.45, .55) at .05, by the stakes of a run: P(bound > 0), summed over all draws."""
    mu, stakes = np.array([0.5, 0.5]), (0.05, 0.1, 0.2, 0.4, 0.8)
    table = np.asarray(gap(np.array([0.45, 0.55]), mu, mu, np.array([0.0, 1.0])))
    np.testing.assert_allclose(table, [0, 0.1], atol=EPS)
    certified = functools.partial(failure_probability, mu, table, 0.0, 1.0, rates=stakes)
    assert certified(n=120, delta=0.05) < 0.9 < certified(n=130, delta=0.05)


@for_all(st.floats(1e-6, 1.0), st.integers(10, 10**6), st.floats(0.01, 0.5), st.floats(0.1, 4))
def test_bernstein_rate_gives_bernsteins_radius(square, n, delta, floor):
    """At most floor ln(1/delta)/n + sqrt(2 ln(1/delta) E[X^2]/n): theorem Certificate.bernstein_radius."""
    rate = certificates.bernstein_rate(square, n, floor=floor, delta=delta)
    odds = np.log(1 / delta)
    psi = -jnp.log1p(-rate) - rate
    radius = floor * odds / (n * rate) + psi / (rate * floor) * square
    assert 0 < rate < 1
    assert radius <= (floor * odds / n + np.sqrt(2 * odds * square / n)) * (1 + EPS)


def proportional(mu, *tables, n):
    """Repeats every outcome as often as mu says, the limit of n draws. Each table [Y] -> [n]."""
    times = np.round(np.asarray(mu) * n).astype(int)
    np.testing.assert_allclose(times, np.asarray(mu) * n)
    return [jnp.asarray(np.repeat(table, times)) for table in tables]


def certify(drawn, floor=1.0):
    return certificates.betting_confidence(drawn, floor=floor, delta=0.05, rates=RATES).bound


def test_refuted_certificate_with_the_unit_centre():
    """Failure (i): r' = 1 instead of pi_k/mu certifies a gain while J falls from .95 to .6.

    What it certifies is the gain over mu; with the exact centre nothing is certified.
    """
    mu, r = np.array([0.5, 0.25, 0.25]), np.array([0.0, 1.0, 1.0])
    pi_k, pi = np.array([0.05, 0.75, 0.2]), np.array([0.4, 0.3, 0.3])
    ratio, center = bounds.density_ratio(pi, mu), bounds.density_ratio(pi_k, mu)
    ratio, center, drawn = proportional(mu, ratio, center, r, n=4000)
    wrong = certificates.improvement_gap(ratio, jnp.ones(4000), drawn, **BAND, **UNIT)
    right = certificates.improvement_gap(ratio, center, drawn, **BAND, **UNIT)
    assert (pi - pi_k) @ r < 0 < certify(wrong) < (pi - mu) @ r + EPS
    assert certify(right) < (pi - pi_k) @ r


def test_refuted_certificate_by_token():
    """Failure (ii): XOR reward; token ratios, clipped and summed, rise .0125 while J falls .0175."""
    xor = np.array([0.0, 1.0, 1.0, 0.0])
    mu, pi = np.array([0.04, 0.16, 0.76, 0.04]), np.array([0.0025, 0.0475, 0.855, 0.095])
    first = np.repeat([0.05 / 0.2, 0.95 / 0.8], 2)
    second = np.array([0.05 / 0.2, 0.95 / 0.8, 0.9 / 0.95, 0.1 / 0.05])
    ones, first, second, r = proportional(mu, np.ones(4), first, second, xor, n=200_000)
    wrong = sum(
        certificates.improvement_gap(ratio, ones, r, **BAND, **UNIT) for ratio in (first, second)
    )
    right = certificates.improvement_gap(first * second, ones, r, **BAND, **UNIT)
    assert float(jnp.mean(wrong)) == pytest.approx(0.0125)
    assert (pi - mu) @ xor == pytest.approx(-0.0175)
    assert certify(wrong, floor=2.0) > 0
    assert certify(right) < (pi - mu) @ xor


def test_refuted_certificate_weighted_by_one_over_sigma():
    """Failure (iii): p = .5 -> .4 and .02 -> .06, mean gap over sigma rises, mean J falls."""
    wrong, right = [], []
    for before, after in ((0.5, 0.4), (0.02, 0.06)):
        mu, pi = np.array([1 - before, before]), np.array([1 - after, after])
        table = gap(pi, mu, mu, np.array([0.0, 1.0]), eps_high=2.0)
        (drawn,) = proportional(mu, table, n=20_000)
        right.append(drawn)
        wrong.append(drawn / np.sqrt(before * (1 - before)))
    floor = 1 / np.sqrt(0.02 * 0.98)
    assert certify(jnp.stack(wrong), floor) > 0
    assert certify(jnp.stack(right)) < (-0.1 + 0.04) / 2


def test_refuted_certificate_on_samples_that_made_the_update():
    """Stale samples: doubling what was seen to win, at the expense of the unseen, looks good.

    1000 outcomes, half of them winning, 100 distinct ones drawn: the mean of the seen rises by
    eps_high per winner, and J falls, whatever the draw.
    """
    r = np.arange(1000) % 2.0
    mu = np.full(1000, 1 / 1000)
    seen = np.arange(100)
    pi = np.where((r == 1) & (np.arange(1000) >= 100), 0.4, 1.0) * mu
    pi[seen] *= 1 + r[seen]
    pi[r == 0] += (1 - pi.sum()) / 500
    table = np.asarray(gap(pi, mu, mu, r))
    assert (pi - mu) @ r < 0 < certify(jnp.asarray(table[seen]))
    assert certify(jnp.asarray(table)) < 0


def test_a_value_below_the_floor_certifies_nothing():
    below = jnp.array([0.5] * 99 + [-1.5])
    assert certify(below) == -jnp.inf
    assert jnp.isnan(certify(below.at[0].set(jnp.nan)))


def test_certificate_composes_and_traces():
    """One function under jit, the same numbers, float32 and bfloat16 in."""
    ratio, center, r = jnp.array([[0.9, 1.2]] * 50), jnp.ones((50, 2)), jnp.array([[0.0, 1.0]] * 50)

    def whole(*arrays):
        x = certificates.improvement_gap(*arrays, **BAND, **UNIT)
        return certificates.betting_confidence(x, floor=1.0, delta=0.1, rates=RATES)

    by_hand = whole(ratio, center, r)
    np.testing.assert_allclose(jax.jit(whole)(ratio, center, r), by_hand, atol=EPS)
    of_these_rewards = jax.jit(lambda ratio: whole(ratio, center, r))
    np.testing.assert_allclose(of_these_rewards(ratio), by_hand, atol=EPS)
    np.testing.assert_allclose(by_hand.mean, 0.1)
    half = whole(*(x.astype(jnp.bfloat16) for x in (ratio, center, r)))
    assert half.bound.dtype == jnp.float32
    np.testing.assert_allclose(half.bound, by_hand.bound, atol=1e-2)


PHASES, DRAWN = 3, 400
READ = DRAWN * np.arange(1, PHASES + 1)


def logged(rng, *, gain):
    """A log of three samplers, each of which follows from what the one before has drawn.

    Returns the candidate, and of each phase the sampler, its outcomes and their rewards.
    """
    means = np.array([0.2, 0.8, 0.4, 0.6])
    logits, phases = rng.normal(size=4) * 0.5, []
    for _ in range(PHASES):
        mu = np.exp(logits) / np.exp(logits).sum()
        outcomes = rng.choice(4, size=DRAWN, p=mu)
        earned = rng.binomial(1, means[outcomes]).astype(float)
        phases.append((mu, outcomes, earned))
        logits = logits + 0.3 * np.bincount(outcomes, earned - 0.5, 4) / DRAWN
    pi = phases[0][0] + gain * np.array([-1, 1, 0.4, -0.4])
    return pi / pi.sum(), means, phases


@jax.jit
@jax.vmap
def bounds_read(x):
    """The bounds [PHASES] of the values of one log, read after each phase."""
    drawn = jnp.asarray(np.arange(DRAWN * PHASES) < READ[:, None])
    bet = functools.partial(certificates.betting_confidence, floor=1.0, delta=0.05, rates=RATES)
    return jax.vmap(lambda where: bet(x, where=where).bound)(drawn)


def test_what_a_log_of_other_policies_supports_covers():
    """200 logs read after every phase, delta .05: no more than ten bounds are ever too high.

    Behaviour log-probs are known, or counted from 60 other draws of each sampler. These estimates
    alone make bounds of a policy without a gain too high more often than stated, with the largest
    error of the log-ratios as slack not.
    """
    rng, knobs = np.random.default_rng(0), UNIT | {"headroom": 5.0}
    values, gains = {"known": [], "slack": [], "estimate": []}, []
    for run in range(200):
        pi, means, phases = logged(rng, gain=0.05 * (run % 2))
        known, outcomes, earned = zip(*phases, strict=True)
        counted = [(rng.multinomial(60, mu) + 0.2) / 60.8 for mu in known]
        error = float(np.abs(np.log(known) - np.log(counted)).max())
        ways = (("known", known, 0.0), ("slack", counted, error), ("estimate", counted, 0.0))
        for name, samplers, slack in ways:
            logs = [np.log(pi / mu)[drawn] for mu, drawn in zip(samplers, outcomes, strict=True)]
            log_ratio, rewards = map(np.concatenate, (logs, earned))
            x = certificates.logged_gain(jnp.asarray(log_ratio), rewards, slack=slack, **knobs)
            values[name].append(np.asarray(x))
        gains.append(np.cumsum([(pi - mu) @ means for mu in known]) / np.arange(1, PHASES + 1))
    seen = {name: np.asarray(bounds_read(np.stack(logs))) for name, logs in values.items()}
    wrong = {name: (bound > np.array(gains)).any(1).sum() for name, bound in seen.items()}
    assert max(wrong["known"], wrong["slack"]) <= 10 < wrong["estimate"], wrong
    assert (seen["known"][1::2, -1] > 0).sum() >= 10


def test_what_whole_numbers_accept_after_rounds_of_old_and_new_draws_is_rarely_above_the_gain():
    """Two rounds, each of two draws of the old policy and one of the new: all 3^6 paths, summed.

    The second round's policies follow from the first. A bound above the gain is accepted only if
    the least such is. Theorem Checked.accepted_certified.
    """
    r = np.array([0.0, 1.0, 0.5])
    policies = np.array([[0.7, 0.1, 0.2], [0.1, 0.6, 0.3], [0.6, 0.3, 0.1]])
    tables = {
        pair: np.floor(mixture_table(*policies[list(pair)], r, 1 / 3) * FINEST).astype(int).tolist()
        for pair in ((1, 0), (2, 0), (0, 1))
    }
    wrong, delta = 0.0, Fraction(3, 4)

    def is_wrong(gains, truth):
        above = int(np.floor(truth * FINEST)) + 1
        return is_accepted(Claim(1, 0, 0, delta, FINEST, above, tuple(gains)))

    def rounds(pair):
        new, old = policies[list(pair)]
        for path in itertools.product(range(3), repeat=3):
            yield path, old[path[0]] * old[path[1]] * new[path[2]], (new - old) @ r

    for path, chance, gain in rounds((2, 0)):
        seen = [tables[2, 0][y] for y in path]
        after = (1, 0) if path[0] == 1 else (0, 1)
        if is_wrong(seen, gain):
            wrong += chance
            continue
        for later, then, change in rounds(after):
            both = [*seen, *(tables[after][y] for y in later)]
            wrong += chance * then * is_wrong(both, (gain + change) / 2)
    assert 0 < wrong <= delta
