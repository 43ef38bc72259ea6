"""The proved inequalities along a training run, enumerated and sampled."""
