"""What runs in the server: its own folder, so that a server can have it on PYTHONPATH alone."""
