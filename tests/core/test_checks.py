"""The core's errors name the argument."""

import jax
import jax.numpy as jnp
import pytest

from ogrpo.core import checks, estimators


@pytest.mark.parametrize("value", [-1.0, float("nan"), jnp.array([0.1, -0.1])])
def test_a_known_scalar_is_judged_inside_a_jit(value):
    with pytest.raises(ValueError, match="eps must be >= 0"):
        jax.jit(lambda x: (checks.check_nonnegative(eps=value), x)[1])(1.0)


def test_a_traced_scalar_is_the_callers_business():
    jax.jit(lambda eps: (checks.check_nonnegative(eps=eps), eps)[1])(-1.0)


def test_rank_is_checked():
    with pytest.raises(ValueError, match=r"expected arrays \[..., T\], got {'mask': \(\)}"):
        checks.check_axes("T", mask=jnp.array(True))


def test_terms_need_one_weight_per_sample():
    with pytest.raises(ValueError, match=r"need weights \[n\]"):
        estimators.importance_terms(jnp.ones(3), jnp.ones(4))


def test_a_table_too_large_to_list_is_refused():
    with pytest.raises(ValueError, match=r"cannot list 10\^9 samples"):
        estimators.every_sample(jnp.full(10, 0.1), 9)
