"""How measuring is done: probe contract, plan, workers, statistics of samples. Measures nothing itself."""
