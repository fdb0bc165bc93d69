"""`python -m eagle3ops`: the same entry point as the console script."""

from eagle3ops.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
