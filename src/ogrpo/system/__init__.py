"""Files, locks, the terminal and optional packages: what every room stands on."""
