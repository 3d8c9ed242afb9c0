"""What the measurements say: the roofline ladder and the comparison of runs. Pure functions over records."""
