"""The main study: off-policy GRPO on grade-school mathematics."""
