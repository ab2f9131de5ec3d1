from tests.fixtures import demo, one_thread

__all__ = ["demo", "one_thread"]
