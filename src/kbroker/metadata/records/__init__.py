"""Records of Kafka's metadata log: their form in a batch, in the log and in a snapshot."""
