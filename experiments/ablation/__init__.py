"""The ablations of "Revisiting Group Relative Policy Optimization" (arXiv:2505.22257)."""
