"""The names of what is watched while a run goes on; `records.Series` has what each consists of.

Labels of temperatures, fans and power: sensor, role, of; of temperatures also limit; of events: counter, kind
(throttle, corrected, uncorrected), domain; of clocks: cpu, of; of drives: drive.
"""

from __future__ import annotations

TEMPERATURE = "temperature"
FAN = "fan"
POWER = "power"
CLOCK = "clock"
BUSY = "cpu.busy"
STOLEN = "cpu.stolen"
DISK_READ = "disk.read"
DISK_WRITTEN = "disk.written"
EVENTS = "events"
