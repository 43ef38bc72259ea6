"""Group-relative REINFORCE off policy: its methods where samples are fresh, stale and fixed."""
