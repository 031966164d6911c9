"""``python -m distrlcc`` is ``distrlcc``."""

from distrlcc.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
