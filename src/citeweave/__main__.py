"""`python -m citeweave` is the command line."""

from citeweave.cli import main

if __name__ == "__main__":
    main()
