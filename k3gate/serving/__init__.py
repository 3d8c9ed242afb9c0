"""A live runtime: detection, load driver, recording and comparing outputs. Empty in this version."""
