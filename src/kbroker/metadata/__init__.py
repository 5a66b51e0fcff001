"""Metadata of the cluster: topics, configs, features, and the file that stores them."""
