"""Mathematics over token tensors: arrays in, arrays out, jax and nothing else of ours.

    log-ratio -> ratio -> surrogate -> weight -> + beta * KL -> (total, count)

`objectives` composes the rest; each module says the form its functions share.
"""
