"""Django's test cases for task backends that are not about any backend, and why.

All others run unmodified: those of the dummy backend with a backend whose tasks wait, those of the immediate backend
with one whose tasks a worker runs at once.
"""

from __future__ import annotations

LIST = "changes an entry of the dummy backend's list of results"
HAS_RESULTS = "expects that the backend has no results; WithoutResultsTestCase runs it with one that has none"
HAS_TIMES = "expects that the backend refuses run_after"
IN_A_WORKER = "expects that an interrupt of a task ends the process that enqueues it; here, that is a worker"
ON_COMMIT = "expects that a task of a transaction runs before the transaction commits"

NOT_OURS = {
    "DummyBackendTestCase.test_refresh_result": LIST,
    "DummyBackendTestCase.test_refresh_result_async": LIST,
    "ImmediateBackendTestCase.test_cannot_get_result": HAS_RESULTS,
    "ImmediateBackendTestCase.test_cannot_refresh_result": HAS_RESULTS,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": HAS_TIMES,
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": IN_A_WORKER,
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": ON_COMMIT,
}
NOT_OURS_OF_BACKPORT = {**NOT_OURS, "ImmediateBackendTestCase.test_get_result_from_different_request": HAS_RESULTS}
"""The same for the package ``django-tasks``."""
