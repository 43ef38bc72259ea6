"""The server's side, in a folder that a server can have on PYTHONPATH by itself."""
