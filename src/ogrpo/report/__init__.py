"""What a run leaves behind and shows: its folder, its progress, its plots and its page."""
