"""What this machine is: read-only, from an injectable root; never measures."""

from k3gate.host.inventory import document, read, stable, volatile, with_bmc

__all__ = ["document", "read", "stable", "volatile", "with_bmc"]
