"""`python -m wattherd`: the command `wattherd`, where no script of that name is on the path."""

from wattherd.cli.main import main

if __name__ == "__main__":
    main()
