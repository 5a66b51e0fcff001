"""Metadata of the cluster: topics, configs, features, their controller, and the log that stores them."""
