"""Share partitions: records locked by members of share groups, share sessions, delayed share fetches (KIP-932)."""
