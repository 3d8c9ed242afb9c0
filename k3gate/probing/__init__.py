"""How measuring is done: probe contract, plan, worker processes, statistics of samples. Measures nothing itself."""
