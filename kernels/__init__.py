"""Accelerated operations, one folder each: reference (the oracle) and fast versions.

They are passed into the policy as functions (`log_probs_fn`, `attention_fn`); nothing else in
`ogrpo` imports them. The folder lies beside `src`, and its one import name is `ogrpo.kernels`.
"""
