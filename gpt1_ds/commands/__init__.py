"""The commands of the program, one file each: the options it takes, and what it does with them.

Every file names its `COMMAND`, which cli.py adds to the parser. All files are imported for `gpt1-ds --help`, so they
import only what is light; the configuration, numpy, torch and everything that needs them is imported by the function
that runs the command.
"""
