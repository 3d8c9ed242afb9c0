"""What lies in the files of a checkpoint, read from their headers alone; every number in them is checked."""
