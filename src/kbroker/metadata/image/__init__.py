"""The immutable image of the metadata log, its changes by records, and the records of its snapshots."""
