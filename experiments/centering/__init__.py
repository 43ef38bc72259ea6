"""Score centring on stale samples."""
