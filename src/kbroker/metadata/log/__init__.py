"""The metadata log on disk: the folder of its one partition, and the files that format a log folder."""
