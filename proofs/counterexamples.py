"""The claims that fail, each with the smallest example found. Python alone: no dependency.

    python proofs/counterexamples.py

Every function returns a claim that one number is at most another, and the two numbers.
"""

from collections.abc import Callable
from math import exp, log, sqrt
from typing import NamedTuple


class Counterexample(NamedTuple):
    """The claim says `lesser` <= `greater`."""

    claim: str
    lesser: float
    greater: float

    @property
    def fails(self) -> bool:
        """Whether the order is the other way about, by more than rounding."""
        return self.lesser > self.greater + 1e-9


def mean(p, f):
    """E_p[f]."""
    return sum(a * b for a, b in zip(p, f, strict=True))


def total_variation(p, q):
    """Half of the sum of absolute differences."""
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def kl(p, q):
    """KL(p||q) in nats."""
    return sum(a * log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def chi_square(p, q):
    """chi^2(p||q)."""
    return sum((a - b) ** 2 / b for a, b in zip(p, q, strict=True))


def surrogate(eps, alpha, pi, r):
    """sigma and L_alpha(pi) = E_alpha[(pi/alpha) (r - E_alpha r)/sigma]."""
    center = mean(alpha, r)
    sigma = sqrt(mean(alpha, [(x - center) ** 2 for x in r]) + eps)
    ratio = [b / a if a > 0 else 0.0 for a, b in zip(alpha, pi, strict=True)]
    return sigma, mean(alpha, [w * (x - center) / sigma for w, x in zip(ratio, r, strict=True)])


def published(eps, alpha, pi, pi_k, r):
    """The right side of Theorem 1 of arXiv:2505.22257."""
    sigma, value = surrogate(eps, alpha, pi, r)
    far = (1 - sigma) / sigma * total_variation(pi, alpha) + total_variation(pi_k, alpha)
    return value - 2 * far


def clip(x, low, high):
    """x, within [low, high]."""
    return min(max(x, low), high)


def f_eps(eps, ratio, center, a):
    """Equation 6's f: min(r a, clip(r, max(r' - eps, 0), r' + eps) a)."""
    return min(ratio * a, clip(ratio, max(center - eps, 0), center + eps) * a)


# The proposal's Theorems 1-3


def kl_ball_promises_improvement():
    """KL(pi_new||mu) = 0 and J drops by one, from an old policy that is not mu."""
    mu, new, old, r = (1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0)
    delta = kl(new, mu)
    promised = mean(old, r) - sqrt(delta / 2)
    return Counterexample(
        "J(old) - sqrt(delta / 2) <= J(new) if KL(new||mu) <= delta", promised, mean(new, r)
    )


def clip_error(eps, n, rho, r):
    """MSE of the mean of n terms clip(rho, 1 -+ eps) r, outcomes equally likely."""
    mu = [1 / len(rho)] * len(rho)
    kept = [clip(w, 1 - eps, 1 + eps) * x for w, x in zip(rho, r, strict=True)]
    first = mean(mu, kept)
    bias = first - mean(mu, [w * x for w, x in zip(rho, r, strict=True)])
    return (mean(mu, [k * k for k in kept]) - first**2) / n + bias**2


def proposed_width(rho, r):
    """sqrt(Var r / Var rho), outcomes equally likely."""
    spread = [sum((x - sum(v) / len(v)) ** 2 for x in v) for v in (r, rho)]
    return sqrt(spread[0] / spread[1])


def clip_width_from_two_variances(a=0.5, n=3):
    """rho = 1 -+ a, r = 1{rho = 1 + a}: 1/(2a) at every n, where (n a - 1)/(n + 1) is best."""
    rho, r = (1 - a, 1 + a), (0.0, 1.0)
    best = max(0.0, (n * a - 1) / (n + 1))
    return Counterexample(
        "MSE at eps* = sqrt(Var r / Var rho) is the least there is",
        clip_error(proposed_width(rho, r), n, rho, r),
        clip_error(best, n, rho, r),
    )


def clip_width_follows_the_unit_of_reward(scale=0.1, n=9):
    """The same rewards in another unit: the proposed width shrinks tenfold, the best does not."""
    rho, r = (0.5, 1.5), (0.0, scale)
    assert proposed_width(rho, (0.0, 1.0)) * scale == proposed_width(rho, r)
    best = (n * 0.5 - 1) / (n + 1)
    return Counterexample(
        "MSE at eps* is the least there is, whatever the unit of reward",
        clip_error(proposed_width(rho, r), n, rho, r),
        clip_error(best, n, rho, r),
    )


def clip_width_where_rewards_ignore_the_ratio(n=1000):
    """r independent of rho: no ratio at all (eps = 0) is best at every n."""
    rho, r = (0.5, 0.5, 1.5, 1.5), (0.0, 1.0, 0.0, 1.0)
    return Counterexample(
        "MSE at eps* is the least there is, r independent of rho",
        clip_error(proposed_width(rho, r), n, rho, r),
        clip_error(0.0, n, rho, r),
    )


def kl_bounds_the_variance(delta=0.1, p=1e-3):
    """p against q = p exp(-delta/p): KL <= delta, chi^2 beyond any bound as p -> 0."""
    q = p * exp(-delta / p)
    pi, mu = (p, 1 - p), (q, 1 - q)
    assert kl(pi, mu) <= delta
    return Counterexample(
        "chi^2 <= exp(delta) - 1 where KL <= delta", chi_square(pi, mu), exp(delta) - 1
    )


def ess_of_unnormalised_weights(n=8):
    """n equal weights of one: the effective sample size is n, and 1/sum rho^2 is 1/n."""
    rho = [1.0] * n
    ess = sum(rho) ** 2 / sum(w * w for w in rho)
    return Counterexample("ESS <= 1 / sum rho^2", ess, 1 / sum(w * w for w in rho))


# arXiv:2505.22257


def published_bound_at_sigma_above_one():
    """eps = .9 is allowed (0 < eps < 1), sigma is 1.07, and the TV term changes sign."""
    alpha, pi, r = (0.5, 0.5), (0.4, 0.6), (0.0, 1.0)
    return Counterexample(
        "Theorem 1 of the paper, 0 < eps < 1",
        published(0.9, alpha, pi, alpha, r),
        mean(pi, r) - mean(alpha, r),
    )


def published_bound_off_the_support():
    """alpha = pi_k never draws where pi lives: L_alpha(pi) is 0 and J falls by one."""
    alpha, pi, r = (1.0, 0.0), (0.0, 1.0), (1.0, 0.0)
    return Counterexample(
        "Theorem 1 of the paper, any policy pi",
        published(0.74, alpha, pi, alpha, r),
        mean(pi, r) - mean(alpha, r),
    )


def sigma_at_most_a_quarter():
    """A fair coin: the variance is 1/4, its root 1/2."""
    sigma, _ = surrogate(0.0, (0.5, 0.5), (0.5, 0.5), (0.0, 1.0))
    return Counterexample("sigma <= 1/4 for rewards in [0, 1]", sigma, 0.25)


def published_bound_promises_improvement():
    """The best policy near a fair coin improves J; the bound says at most zero (Corollary 1)."""
    alpha, pi, r = (0.5, 0.5), (0.4, 0.6), (0.0, 1.0)
    gain = mean(pi, r) - mean(alpha, r)
    return Counterexample(
        "the gain of the best policy near alpha <= what Corollary 1 promises of it",
        gain,
        published(0.0, alpha, pi, alpha, r),
    )


def clip_bounds_the_ratio():
    """a = -1: the surrogate still falls at r = 100, the clip at 1.2 notwithstanding."""
    return Counterexample(
        "f_eps(1.2, 1, -1) <= f_eps(100, 1, -1): the clip bounds the ratio",
        f_eps(0.2, 1.2, 1, -1.0),
        f_eps(0.2, 100.0, 1, -1.0),
    )


def clipped_gain_with_the_unit_centre():
    """r' ~ 1 for pi_k/alpha: the clipped objective doubles, J falls from .95 to .6."""
    alpha, r, sigma = (0.5, 0.25, 0.25), (0.0, 1.0, 1.0), 0.5
    pi_k, pi = (0.05, 0.75, 0.2), (0.4, 0.3, 0.3)
    values = [
        mean(
            alpha,
            [
                f_eps(0.2, p / a, 1, (x - 0.5) / sigma)
                for p, a, x in zip(policy, alpha, r, strict=True)
            ],
        )
        for policy in (pi_k, pi)
    ]
    return Counterexample(
        "sigma x rise of the clipped objective, centre 1, <= rise of J",
        sigma * (values[1] - values[0]),
        mean(pi, r) - mean(pi_k, r),
    )


def two_tokens(first, second):
    """Chances of both tokens of 00, 01, 10 and 11, from P(y1 = 1) and P(y2 = 1 | y1)."""
    starts, follows = (1 - first, first), [(1 - p, p) for p in second]
    return [(starts[y1], follows[y1][y2]) for y1 in (0, 1) for y2 in (0, 1)]


def clipped_gain_by_token():
    """Two tokens, XOR reward: token-clipped and summed, +.0407; J: .52 -> .48."""
    mu, pi, r = two_tokens(0.05, (0.5, 0.1)), two_tokens(0.3, (0.6, 0.8)), (0.0, 1.0, 1.0, 0.0)
    before, after = ([first * second for first, second in policy] for policy in (mu, pi))
    clipped = [
        sum(f_eps(0.2, new / old, 1, x - 0.52) for new, old in zip(p, m, strict=True))
        for p, m, x in zip(pi, mu, r, strict=True)
    ]
    return Counterexample(
        "rise of the token-clipped objective <= rise of J",
        mean(before, clipped),
        mean(after, r) - mean(before, r),
    )


def gain_weighted_by_one_over_sigma():
    """Two prompts: p = .5 -> .4 and .02 -> .06. The sum of L rises, the sum of J falls."""
    moves = ((0.5, 0.4), (0.02, 0.06))
    promised = sum(surrogate(0.0, (1 - p, p), (1 - q, q), (0.0, 1.0))[1] for p, q in moves)
    return Counterexample(
        "sum of standardised gains <= sum of the rises of J", promised, sum(q - p for p, q in moves)
    )


PROPOSAL: tuple[Callable[[], Counterexample], ...] = (
    kl_ball_promises_improvement,
    clip_width_from_two_variances,
    clip_width_follows_the_unit_of_reward,
    clip_width_where_rewards_ignore_the_ratio,
    kl_bounds_the_variance,
    ess_of_unnormalised_weights,
)
PAPER: tuple[Callable[[], Counterexample], ...] = (
    published_bound_at_sigma_above_one,
    published_bound_off_the_support,
    sigma_at_most_a_quarter,
    published_bound_promises_improvement,
    clip_bounds_the_ratio,
    clipped_gain_with_the_unit_centre,
    clipped_gain_by_token,
    gain_weighted_by_one_over_sigma,
)


def main() -> None:
    """Print every claim and its two numbers."""
    for title, examples in (("The proposal", PROPOSAL), ("arXiv:2505.22257", PAPER)):
        print(title)
        for example in examples:
            found = example()
            verdict = "fails" if found.fails else "holds"
            print(f"  {verdict}: {found.lesser:.4g} <= {found.greater:.4g}   {found.claim}")


if __name__ == "__main__":
    main()
