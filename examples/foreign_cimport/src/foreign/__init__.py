"""Sessions with a time-out and a memory budget, built on kbroker's timing wheel and memory pool."""
