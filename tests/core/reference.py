"""Every objective once more, in NumPy float64 loops, from the papers' formulas and not from ours.

Each takes `lp`, the differentiated log-probs, and `held`, the same numbers where the paper stops
the gradient; finite differences in `lp` alone are then the gradient the paper means.
"""
# All formulas share one signature, whatever they use of it.

import functools
import math
from types import SimpleNamespace

import numpy as np
from scipy import optimize


def _by_sequence(formula):
    """Lifts a formula `(x, h, s, *, knobs)` of a completion's kept tokens, arrays [L], to batches."""

    @functools.wraps(formula)
    def whole(lp, held, b, **knobs):
        out = np.zeros_like(lp)
        for i in np.ndindex(lp.shape[:-1]):
            m = b.mask[i]
            s = SimpleNamespace(A=b.A[i][m], old=b.old[i][m], prox=b.prox[i][m], ref=b.ref[i][m])
            if m.any():
                out[i][m] = formula(lp[i][m], held[i][m], s, **knobs)
        return out

    return whole


def _by_token(formula):
    """Likewise of one token, `(x, h, t, *, knobs)` of floats."""

    @functools.wraps(formula)
    def each(x, h, s, **knobs):
        fields = zip(*vars(s).values(), strict=True)
        tokens = [SimpleNamespace(**dict(zip(vars(s), values, strict=True))) for values in fields]
        return [formula(*token, **knobs) for token in zip(x, h, tokens, strict=True)]

    return _by_sequence(each)


def _clip_case(r, center, a, low, high):
    """The case form of f_eps, instead of min and clip."""
    if a >= 0:
        return a * min(r, center + high)
    return a * max(r, max(center - low, 0.0))


@_by_token
def reinforce(x, h, t):
    return -t.A * x


@_by_token
def grpo(x, h, t, *, eps_low=0.15, eps_high=0.3):
    return -_clip_case(math.exp(x - t.old), 1.0, t.A, eps_low, eps_high)


@_by_token
def dual_clip(x, h, t, *, eps_low=0.15, eps_high=0.3, dual=1.4):
    gain = _clip_case(math.exp(x - t.old), 1.0, t.A, eps_low, eps_high)
    return -(max(gain, dual * t.A) if t.A < 0 else gain)


@_by_token
def two_sided(x, h, t, *, eps_low=0.15, eps_high=0.3, delta=1.2):
    ratio = math.exp(x - t.old)
    if t.A >= 0:
        return -t.A * min(ratio, 1 + eps_high, delta)
    return -t.A * max(min(ratio, delta), min(max(ratio, 1 - eps_low), 1 + eps_high))


@_by_token
def off_policy_grpo(x, h, t, *, eps_low=0.15, eps_high=0.3):
    return -_clip_case(math.exp(x - t.old), math.exp(t.prox - t.old), t.A, eps_low, eps_high)


@_by_token
def decoupled(x, h, t, *, eps_low=0.15, eps_high=0.3, cap=1.1):
    clipped = _clip_case(math.exp(x - t.prox), 1.0, t.A, eps_low, eps_high)
    return -min(math.exp(t.prox - t.old), cap) * clipped


@_by_sequence
def gspo(x, h, s, *, eps_low=0.05, eps_high=0.1):
    ratio = math.exp((h - s.old).mean()) * np.exp(x - h)
    return [-_clip_case(r, 1.0, a, eps_low, eps_high) for r, a in zip(ratio, s.A, strict=True)]


@_by_token
def cispo(x, h, t, *, low=0.8, high=1.4):
    return -min(max(math.exp(h - t.old), low), high) * t.A * x


@_by_token
def sapo(x, h, t, *, temperature_pos=1.0, temperature_neg=1.3):
    temp = temperature_pos if t.A > 0 else temperature_neg
    sigmoid = 1 / (1 + math.exp(-temp * (math.exp(x - t.old) - 1)))
    return -t.A * 4 * sigmoid / temp


@_by_sequence
def topr(x, h, s):
    return -np.where(s.A > 0, 1.0, min(math.exp((h - s.old).sum()), 1.0)) * s.A * x


@_by_token
def topr_token(x, h, t):
    return -(1.0 if t.A > 0 else min(math.exp(h - t.old), 1.0)) * t.A * x


@_by_token
def sppo(x, h, t, *, low=1 / 1.3, high=1.3):
    return -t.A * (x - t.old) if low <= math.exp(h - t.old) <= high else 0.0


@_by_sequence
def gmpo(x, h, s, *, eps_low=0.2, eps_high=0.3):
    delta, sign = x - s.old, np.where(s.A < 0, -1.0, 1.0)
    picked = sign * np.minimum(sign * delta, sign * np.clip(delta, -eps_low, eps_high))
    return -s.A * math.exp(picked.mean())


def m2po(lp, held, b, *, threshold=0.1):
    delta = held - b.old
    ranked = b.mask & (delta * b.A > 0)
    left = ranked.copy()
    while left.any() and (delta[left] ** 2).mean() > threshold:
        left[np.unravel_index(np.argmax(np.where(left, delta**2, -1)), left.shape)] = False
    kept = np.where(ranked, left, True)
    loss = -1.0 * kept * np.exp(lp - b.old) * b.A
    return np.where(b.mask, loss, 0.0)


def _dppo(x, h, t, far, low, high, cap):
    rho = math.exp(h - t.old)
    shut = (t.A > 0 and rho > 1 and far > high) or (t.A < 0 and rho < 1 and far > low)
    return 0.0 if shut else -min(rho, cap) * t.A * x


@_by_token
def dppo_tv(x, h, t, *, low=0.06, high=0.04, cap=1.3):
    return _dppo(x, h, t, abs(math.exp(h) - math.exp(t.old)), low, high, cap)


@_by_token
def dppo_kl(x, h, t, *, low=0.02, high=0.01, cap=1.3):
    new, old = math.exp(h), math.exp(t.old)
    far = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
    return _dppo(x, h, t, far, low, high, cap)


@_by_token
def rec_one_side(x, h, t, *, eps_low=0.15, eps_high=0.3):
    r = math.exp(h - t.old)
    kept = (r <= 1 + eps_high and t.A >= 0) or (r >= 1 - eps_low and t.A <= 0)
    return -t.A * x if kept else 0.0


@_by_token
def rec_two_side(x, h, t, *, eps_low=0.15, eps_high=0.3):
    return -t.A * x if 1 - eps_low <= math.exp(h - t.old) <= 1 + eps_high else 0.0


@_by_token
def rec_ring(x, h, t, *, eps_low=0.15, eps_high=0.3, outer_low=0.3, outer_high=0.6):
    r = math.exp(h - t.old)
    outside = (t.A >= 0 and r <= 1 - outer_low) or (t.A <= 0 and r >= 1 + outer_high)
    return -t.A * x if outside or 1 - eps_low <= r <= 1 + eps_high else 0.0


def _weighted(formula):
    """The same tokens, each times its ratio, held."""

    @functools.wraps(formula)
    def whole(lp, held, b, **knobs):
        return np.exp(held - b.old) * formula(lp, held, b, **knobs)

    return whole


rec_one_side_is, rec_two_side_is, rec_ring_is = map(
    _weighted, (rec_one_side, rec_two_side, rec_ring)
)


@_by_token
def opmd_kimi(x, h, t, *, coef=0.1):
    return -t.A * x + coef * (x - t.old) ** 2


@_by_sequence
def opmd_kimi_sequence(x, h, s, *, tau=0.1):
    return -s.A * x + tau / 2 * (x - s.old).sum() ** 2 / len(x)


@_by_token
def opmd_min(x, h, t, *, tau=1.0):
    return -t.A * x / (1 + tau)


def opmd_pairwise(lp, held, b, *, tau=0.7):
    out = np.zeros_like(lp)
    for n in range(lp.shape[0]):
        there = {g: m for g, m in enumerate(b.mask[n]) if m.any()}
        moved = {g: (lp[n, g] - held[n, g])[m].sum() for g, m in there.items()}
        residual = {g: b.A[n, g][m].mean() - tau * moved[g] for g, m in there.items()}
        for g, m in there.items():
            out[n, g][m] = (residual[g] - np.mean([*residual.values()])) ** 2 / m.sum()
    return out


@_by_sequence
def oapl(x, h, s, *, slope=0.7):
    return (s.A - slope * (x - s.old).sum()) ** 2 / len(x)


def dpo(lp, held, b, *, tau=0.7):
    out = np.zeros_like(lp)
    for n in range(lp.shape[0]):
        there = [g for g in range(lp.shape[1]) if b.mask[n, g].any()]
        gain = {g: (lp[n, g] - b.ref[n, g])[b.mask[n, g]].sum() for g in there}
        credit = {g: b.A[n, g][b.mask[n, g]].mean() for g in there}
        pairs = [(i, j) for i in there for j in there if credit[i] > credit[j]]
        for i, j in pairs:
            cost = -math.log(1 / (1 + math.exp(-tau * (gain[i] - gain[j]))))
            for g in (i, j):
                m = b.mask[n, g]
                out[n, g][m] += len(there) * cost / 2 / len(pairs) / m.sum()
    return out


@_by_sequence
def vespo(x, h, s, *, power_pos=2.0, rate_pos=3.0, power_neg=3.0, rate_neg=2.0):
    ratio = math.exp((h - s.old).sum())
    rising = ratio**power_pos * math.exp(rate_pos * (1 - ratio))
    falling = ratio**power_neg * math.exp(rate_neg * (1 - ratio))
    return -np.where(s.A >= 0, rising, falling) * s.A * x


@_by_sequence
def vtrace(x, h, s, *, decay=0.9, ratio_cap=1.2, trace_cap=1.1):
    rho, weights = np.exp(h - s.old), []
    for n, between in enumerate(rho[k + 1 : -1] for k in range(len(rho))):
        ends = {n, len(rho) - 1}
        weights.append(np.prod([min(rho[end], ratio_cap) for end in ends]))
        weights[n] *= np.prod([decay * min(r, trace_cap) for r in between])
    return -np.array(weights) * s.A * x


@_by_sequence
def ctpo(x, h, s, *, eps_low=0.15, eps_high=0.2):
    ratio, root = np.exp(np.cumsum(h - s.old) + x - h), np.sqrt(np.arange(1, len(x) + 1))
    clipped = np.clip(ratio, np.exp(-eps_low * root), np.exp(eps_high * root))
    return -np.minimum(ratio * s.A, clipped * s.A)


@_by_token
def prime_rl(x, h, t, *, low=0.06, high=0.04, coef=0.3):
    moved = math.exp(h) - math.exp(t.old)
    shut = moved > high if t.A > 0 else moved < -low
    return (0.0 if shut else -math.exp(x - t.old) * t.A) + coef * (x - t.old) ** 2


@_by_token
def distill(x, h, t, *, low=0.05, coef=0.3):
    gain = 0.0 if math.exp(h) - math.exp(t.old) < -low else math.exp(x - t.old) * (t.ref - h)
    return -gain + coef * (x - t.old) ** 2


def kl_cov(lp, held, b, *, share=0.2, coef=0.7):
    out = np.where(b.mask, -np.exp(lp - b.old) * b.A, 0.0)
    places = np.argwhere(b.mask)
    if len(places) == 0:
        return out
    off = [x[b.mask] - x[b.mask].mean() for x in (b.A, held)]
    ranked = np.argsort(-(off[0] * off[1]), kind="stable")
    for n in ranked[: max(1, int(share * len(places)))]:
        i = tuple(places[n])
        out[i] += coef * abs(lp[i] - b.old[i])
    return out


@_by_sequence
def sequence_tis(x, h, s, *, high=1.1):
    return -min(math.exp((h - s.old).sum()), high) * s.A * x


def clip_cov(lp, held, b, *, eps_low=0.1, eps_high=0.2, share=0.3, cov_low=-0.5, cov_high=1.5):
    rho = np.exp(held - b.old)
    a, p = (x - x[b.mask].mean() if b.mask.any() else x for x in (b.A, held))
    outward = ((b.A > 0) & (rho > 1 + eps_high)) | ((b.A < 0) & (rho < 1 - eps_low))
    among = np.argwhere(b.mask & ~outward & (a * p > cov_low) & (a * p < cov_high))
    few = max(1, int(share * b.mask.sum()))
    dropped = sorted(map(tuple, among), key=lambda i: b.uniforms[i])[:few]
    out = grpo(lp, held, b, eps_low=eps_low, eps_high=eps_high)
    for i in dropped:
        out[i] = 0.0
    return out


def m2po_released(lp, held, b, *, threshold=0.1, eps_low=0.05, eps_high=0.1):
    squares, width = (held - b.old)[b.mask] ** 2, 60.0
    if squares.size and squares.mean() >= threshold:

        def excess(cap):
            return np.minimum(squares, cap).mean() - threshold

        width = math.sqrt(optimize.brentq(excess, 0.0, squares.max(), xtol=1e-16))
    ends = min(math.exp(-width), 1 - eps_low), max(math.exp(width), 1 + eps_high)
    ratio = np.exp(lp - b.old)
    return np.where(b.mask, -np.minimum(ratio * b.A, np.clip(ratio, *ends) * b.A), 0.0)
