"""Errors of other libraries as one line for a person."""

from pulse_resources.errors import first_line

RAISED = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "raw_zone.py", line 1, in part
    raise ValueError("first")
ValueError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "rebuild.py", line 2, in rebuild_task
    open(path)
    ^^^^^^^^^^
FileNotFoundError: [Errno 2] Path does not exist 'bucket/raw/a.gz'. Detail: no such file

JVM stacktrace:
  at org.apache.spark
"""


def test_an_error_of_a_task_is_the_exception_of_the_task() -> None:
    error = "FileNotFoundError: [Errno 2] Path does not exist 'bucket/raw/a.gz'. Detail: no such file"
    assert first_line(RuntimeError(RAISED)) == error


def test_a_traceback_that_was_cut_off() -> None:
    cut = RAISED.partition("Traceback")[0] + "Traceback (most recent call last):\n  File"
    assert first_line(RuntimeError(cut)).startswith("An exception was thrown from the Python worker")
