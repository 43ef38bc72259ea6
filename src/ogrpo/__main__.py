"""`python -m ogrpo`: the command line."""

from ogrpo.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
