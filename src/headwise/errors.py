"""The one exception that means: the person who called can put this right.

Importing this module must stay free, since the models, the study and the command line all raise from it.
"""

__all__ = ["UserError"]


class UserError(Exception):
    """A wrong input, told in one line: who refuses, what it expected, what it got, and what to do.

    The command line prints the line to standard error and exits with code 2. In Python it is an ordinary exception,
    so a caller can catch what a person could put right without catching the bugs.
    """
