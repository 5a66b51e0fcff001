"""Sessions with a time-out and a memory budget, on the cores of kbroker."""
