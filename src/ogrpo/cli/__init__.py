"""The command line of `ogrpo`."""
