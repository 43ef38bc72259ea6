"""Files that a run leaves behind: its folder, its progress, its plots and its pages."""
