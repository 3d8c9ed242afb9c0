"""What this machine is: read-only, from an injectable root; never measures."""

from k3gate.host.inventory import document, read, stable, volatile

__all__ = ["document", "read", "stable", "volatile"]
