"""Accelerated operations, one folder each: reference, fast versions, benchmark.

They are passed into the policy as functions (`attention_fn`, `log_probs_fn`); none is here yet.
"""
