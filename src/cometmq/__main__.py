"""Makes ``python -m cometmq`` the same as the ``cometmq`` command."""

from cometmq.cli.main import main

if __name__ == "__main__":
    main()
