"""`python -m anabranch`."""

from anabranch.cli import main

if __name__ == "__main__":  # a worker process that imports this file must not start over
    main()
