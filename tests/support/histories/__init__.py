"""Random histories of requests about groups and logs, replayed on two brokers whose responses must be equal.

`mixes` draws the steps of a history from a seed, `replay` sends them to both brokers, `differences` names the
deliberate differences, and `shortest` reduces a history whose responses differ.
"""
