"""`python -m apex_acer` is `apex-acer`."""

from apex_acer.system import look_here_last

if __name__ == "__main__":
    look_here_last()  # before anything else is imported
    import sys

    from apex_acer.cli import main

    sys.exit(main())
