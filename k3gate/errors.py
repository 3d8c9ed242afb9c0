"""What can go wrong between a user and k3gate, and the exit code it ends with.

    K3GateError                 base; never raised itself
    +-- UsageError              exit 2: bad input: what, where, what to do
    +-- MemoryShortageError     exit 4: a process of ours was killed, as the kernel does when memory runs out
    +-- StorageError            exit 4: the store could not be written; what was stored stays
    +-- ProbeError              inside a worker: the case fails, the run goes on
        +-- NotPermittedError   the machine refuses; state `not_permitted`
        +-- NotPresentError     the machine lacks it; state `not_present`

The message of a `UsageError` is one line and is shown as it stands.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_UNPROVEN = 3
EXIT_PROBE_FAILED = 4
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class K3GateError(Exception):
    """Base of all errors that k3gate raises on purpose."""

    exit_code = EXIT_USAGE


class UsageError(K3GateError):
    """Unusable input. The message says what, where, and what to do, in one line."""


class MemoryShortageError(K3GateError):
    """A process of ours was killed from outside; the message says what to do, in one line."""

    exit_code = EXIT_PROBE_FAILED


class StorageError(K3GateError):
    """The store refused a write (no space, read-only, locked); what was stored before is intact."""

    exit_code = EXIT_PROBE_FAILED


class ProbeError(K3GateError):
    """A probe could not measure its case; the message becomes the reason of the case."""

    exit_code = EXIT_PROBE_FAILED


class NotPermittedError(ProbeError):
    """The machine refuses what the case needs; the message says which right is missing."""


class NotPresentError(ProbeError):
    """The machine lacks what the case needs."""
