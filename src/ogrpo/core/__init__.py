"""Mathematics over token tensors: arrays in, arrays out, jax and nothing else of ours.

    log-ratio -> ratio -> surrogate -> weight -> + beta * KL -> (total, count)

`objectives` composes the rest; each module says the form its functions share.

Shapes are checked at the top of a function by `ogrpo.core.checks`, and not by chex. A check of ours
is a ValueError that names the argument, what it is and the remedy ("mask must be bool, got int32[2,
3]; pass mask != 0"), where chex raises an AssertionError of ranks; and the algebra needs JAX and
NumPy alone, so that a loss can be taken into another trainer without a third dependency.

Shapes stand in docstrings, `[..., G, T]`, and not in signatures as jaxtyping has them: a function
takes any leading axes, which its annotation could only repeat as `"*batch group tokens"` at each
argument, and nothing would hold it without a run-time checker on every call, eager and traced. The
checks at the top hold what matters, one shape for all arguments, with the words of the message
above.
"""
