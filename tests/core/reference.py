"""Every objective once more, in NumPy float64 loops, from the papers' formulas and not from ours.

Each takes `lp`, the differentiated log-probs, and `held`, the same numbers where the paper stops
the gradient; finite differences in `lp` alone are then the gradient the paper means.
"""
# All formulas share one signature, whatever they use of it.

import functools
import math
from types import SimpleNamespace

import numpy as np


def _by_token(formula):
    """Lifts a formula `(x, h, t, *, knobs)` of floats to `(lp, held, b, *, knobs)`; 0 where masked."""

    @functools.wraps(formula)
    def whole(lp, held, b, **knobs):
        out = np.zeros_like(lp)
        for i in map(tuple, np.argwhere(b.mask)):
            token = SimpleNamespace(A=b.A[i], old=b.old[i], prox=b.prox[i], ref=b.ref[i])
            out[i] = formula(lp[i], held[i], token, **knobs)
        return out

    return whole


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


def _mean_over_tokens(values, mask):
    """Mean over the kept tokens of each sequence, at each of its tokens."""
    out = np.zeros_like(values)
    for i in np.ndindex(values.shape[:-1]):
        if mask[i].any():
            out[i] = values[i][mask[i]].mean()
    return out


def gspo(lp, held, b, *, eps_low=0.05, eps_high=0.1):
    ratio = np.exp(_mean_over_tokens(held - b.old, b.mask)) * np.exp(lp - held)
    out = np.zeros_like(lp)
    for i in map(tuple, np.argwhere(b.mask)):
        out[i] = -_clip_case(ratio[i], 1.0, b.A[i], eps_low, eps_high)
    return out


@_by_token
def cispo(x, h, t, *, low=0.8, high=1.4):
    return -min(max(math.exp(h - t.old), low), high) * t.A * x


@_by_token
def sapo(x, h, t, *, temperature_pos=1.0, temperature_neg=1.3):
    temp = temperature_pos if t.A > 0 else temperature_neg
    sigmoid = 1 / (1 + math.exp(-temp * (math.exp(x - t.old) - 1)))
    return -t.A * 4 * sigmoid / temp


def topr(lp, held, b):
    total = _mean_over_tokens(held - b.old, b.mask) * b.mask.sum(-1, keepdims=True)
    taper = np.where(b.A > 0, 1.0, np.minimum(np.exp(total), 1.0))
    return np.where(b.mask, -taper * b.A * lp, 0.0)


@_by_token
def topr_token(x, h, t):
    return -(1.0 if t.A > 0 else min(math.exp(h - t.old), 1.0)) * t.A * x


@_by_token
def sppo(x, h, t, *, low=1 / 1.3, high=1.3):
    return -t.A * (x - t.old) if low <= math.exp(h - t.old) <= high else 0.0


def gmpo(lp, held, b, *, eps_low=0.2, eps_high=0.3):
    delta = lp - b.old
    sign = np.where(b.A < 0, -1.0, 1.0)
    picked = sign * np.minimum(sign * delta, sign * np.clip(delta, -eps_low, eps_high))
    loss = -b.A * np.exp(_mean_over_tokens(picked, b.mask))
    return np.where(b.mask, loss, 0.0)


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


def _one_side(r, a, eps_low, eps_high):
    return (r <= 1 + eps_high and a >= 0) or (r >= 1 - eps_low and a <= 0)


def _ring(r, a, eps_low, eps_high, outer_low, outer_high):
    outside = (a >= 0 and r <= 1 - outer_low) or (a <= 0 and r >= 1 + outer_high)
    return outside or 1 - eps_low <= r <= 1 + eps_high


@_by_token
def rec_one_side(x, h, t, *, eps_low=0.15, eps_high=0.3):
    return -t.A * x if _one_side(math.exp(h - t.old), t.A, eps_low, eps_high) else 0.0


@_by_token
def rec_one_side_is(x, h, t, *, eps_low=0.15, eps_high=0.3):
    rho = math.exp(h - t.old)
    return -t.A * rho * x if _one_side(rho, t.A, eps_low, eps_high) else 0.0


@_by_token
def rec_two_side(x, h, t, *, eps_low=0.15, eps_high=0.3):
    return -t.A * x if 1 - eps_low <= math.exp(h - t.old) <= 1 + eps_high else 0.0


@_by_token
def rec_two_side_is(x, h, t, *, eps_low=0.15, eps_high=0.3):
    rho = math.exp(h - t.old)
    return -t.A * rho * x if 1 - eps_low <= rho <= 1 + eps_high else 0.0


@_by_token
def rec_ring(x, h, t, *, eps_low=0.15, eps_high=0.3, outer_low=0.3, outer_high=0.6):
    kept = _ring(math.exp(h - t.old), t.A, eps_low, eps_high, outer_low, outer_high)
    return -t.A * x if kept else 0.0


@_by_token
def rec_ring_is(x, h, t, *, eps_low=0.15, eps_high=0.3, outer_low=0.3, outer_high=0.6):
    rho = math.exp(h - t.old)
    return -t.A * rho * x if _ring(rho, t.A, eps_low, eps_high, outer_low, outer_high) else 0.0


@_by_token
def opmd_kimi(x, h, t, *, coef=0.1):
    return -t.A * x + coef * (x - t.old) ** 2


def opmd_kimi_sequence(lp, held, b, *, tau=0.1):
    total = np.where(b.mask, lp - b.old, 0.0).sum(-1, keepdims=True)
    penalty = tau / 2 * total**2 / np.maximum(b.mask.sum(-1, keepdims=True), 1)
    return np.where(b.mask, -b.A * lp + penalty, 0.0)


@_by_token
def opmd_min(x, h, t, *, tau=1.0):
    return -t.A * x / (1 + tau)


def opmd_pairwise(lp, held, b, *, tau=0.7):
    out = np.zeros_like(lp)
    for n in range(lp.shape[0]):
        size = lp.shape[1]
        residual = np.zeros(size)
        for g in range(size):
            m = b.mask[n, g]
            reward = b.A[n, g][m].mean() if m.any() else 0.0
            residual[g] = reward - tau * (lp[n, g][m].sum() - held[n, g][m].sum())
        there = b.mask[n].any(-1)
        for g in range(size):
            m = b.mask[n, g]
            out[n, g][m] = (residual[g] - residual[there].mean()) ** 2 / max(m.sum(), 1)
    return out


def oapl(lp, held, b, *, slope=0.7):
    out = np.zeros_like(lp)
    for i in np.ndindex(lp.shape[:-1]):
        m = b.mask[i]
        if m.any():
            out[i][m] = (b.A[i][m] - slope * (lp[i][m] - b.old[i][m]).sum()) ** 2 / m.sum()
    return out


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


def vespo(lp, held, b, *, power_pos=2.0, rate_pos=3.0, power_neg=3.0, rate_neg=2.0):
    out = np.zeros_like(lp)
    for i in np.ndindex(lp.shape[:-1]):
        m = b.mask[i]
        ratio = math.exp((held[i][m] - b.old[i][m]).sum())
        for place in np.flatnonzero(m):
            power, rate = (power_pos, rate_pos) if b.A[i][place] >= 0 else (power_neg, rate_neg)
            weight = ratio**power * math.exp(rate * (1 - ratio))
            out[i][place] = -weight * b.A[i][place] * lp[i][place]
    return out


def vtrace(lp, held, b, *, decay=0.9, ratio_cap=1.2, trace_cap=1.1):
    out = np.zeros_like(lp)
    for i in np.ndindex(lp.shape[:-1]):
        places = np.flatnonzero(b.mask[i])
        rho = np.exp(held[i] - b.old[i])
        for n, place in enumerate(places):
            weight = min(rho[place], ratio_cap)
            for later in places[n + 1 : -1]:
                weight *= decay * min(rho[later], trace_cap)
            if place != places[-1]:
                weight *= min(rho[places[-1]], ratio_cap)
            out[i][place] = -weight * b.A[i][place] * lp[i][place]
    return out


def ctpo(lp, held, b, *, eps_low=0.15, eps_high=0.2):
    out = np.zeros_like(lp)
    for i in np.ndindex(lp.shape[:-1]):
        total, place = 0.0, 0
        for t in np.flatnonzero(b.mask[i]):
            total, place = total + held[i][t] - b.old[i][t], place + 1
            ratio = math.exp(total + lp[i][t] - held[i][t])
            ends = math.exp(-eps_low * place**0.5), math.exp(eps_high * place**0.5)
            a = b.A[i][t]
            out[i][t] = -min(ratio * a, min(max(ratio, ends[0]), ends[1]) * a)
    return out


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


def sequence_tis(lp, held, b, *, high=1.1):
    total = np.where(b.mask, held - b.old, 0).sum(-1, keepdims=True)
    return np.where(b.mask, -np.minimum(np.exp(total), high) * b.A * lp, 0.0)


def clip_cov(lp, held, b, *, eps_low=0.1, eps_high=0.2, share=0.3, cov_low=-0.5, cov_high=1.5):
    rho = np.exp(held - b.old)
    a, p = (x - x[b.mask].mean() if b.mask.any() else x for x in (b.A, held))
    outward = ((b.A > 0) & (rho > 1 + eps_high)) | ((b.A < 0) & (rho < 1 - eps_low))
    among = np.argwhere(b.mask & ~outward & (a * p > cov_low) & (a * p < cov_high))
    few = max(1, int(share * b.mask.sum()))
    dropped = sorted(map(tuple, among), key=lambda i: b.lots[i])[:few]
    out = grpo(lp, held, b, eps_low=eps_low, eps_high=eps_high)
    for i in dropped:
        out[i] = 0.0
    return out


def m2po_released(lp, held, b, *, threshold=0.1, eps_low=0.05, eps_high=0.1):
    squares = (held - b.old)[b.mask] ** 2
    if squares.size == 0:
        return np.zeros_like(lp)
    low, high = 0.0, 1e4  # bisection on c, mean min(D^2, c) rising in c
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.minimum(squares, middle).mean() < threshold else (low, middle)
        )
    width = math.sqrt(high) if squares.mean() >= threshold else 60.0
    ends = min(math.exp(-width), 1 - eps_low), max(math.exp(width), 1 + eps_high)

    @_by_token
    def loss(x, h, t):
        ratio = math.exp(x - t.old)
        return -min(ratio * t.A, min(max(ratio, ends[0]), ends[1]) * t.A)

    return loss(lp, held, b)
