"""What the planner refuses, told in one line that names the field."""

from headwise.errors import UserError

__all__ = ["PlanError", "shown"]


class PlanError(UserError):
    """A config that the planner doesn't know, that lacks a field, or whose fields contradict each other.

    A cost is never guessed: whoever catches this has no number, rather than a wrong one.
    """


def shown(value: object) -> str:
    """A value in a message: there may be a megabyte where a number belongs, or what Python can't print at all."""
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints; lists in lists in lists
        return f"what can't be printed ({type(value).__name__})"
    return text if len(text) <= 60 else f"{text[:57]}..."
