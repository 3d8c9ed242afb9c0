"""Which experts tokens choose: traces read and described, modelled, fitted to another shape, handed to workers.

Imports nothing of itself, so that a worker can import `k3gate.model.routing.packed` without numpy.
"""
