"""What fits, how long a step takes, and which schedule keeps both sides busy."""
