"""k3gate: may this machine be bought to run Kimi K3? An answer with evidence."""

__version__ = "0.1.0.dev0"
